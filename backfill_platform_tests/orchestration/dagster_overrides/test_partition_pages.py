"""Pages of partition keys, the newest first, as Dagster's plots ask for them."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from backfill_platform.domain.hours import partition_key
from backfill_platform.orchestration.dagster_overrides.partition_pages import page_back_from_the_end

START = datetime(1998, 4, 30, 22, tzinfo=UTC)
END = START + timedelta(hours=7)
NOW = datetime(2026, 11, 23, 18, 30, tzinfo=UTC)
EVERY = [partition_key(START + timedelta(hours=number)) for number in range(7)]


@pytest.fixture(autouse=True)
def paged(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = dg.TimeWindowPartitionsDefinition
    monkeypatch.setattr(definition, "get_paginated_partition_keys", definition.get_paginated_partition_keys)
    page_back_from_the_end()


def pages(hours: dg.HourlyPartitionsDefinition, limit: int, *, ascending: bool) -> list[list[str]]:
    """The first five pages at most."""
    found: list[list[str]] = []
    cursor = None
    with dg.partition_loading_context(NOW) as context:
        while len(found) < 5:
            page = hours.get_paginated_partition_keys(context, limit, ascending, cursor)
            found.append(list(page.results))
            if not page.has_more:
                break
            cursor = page.cursor
    return found


def test_pages_of_a_finished_pipeline_begin_with_its_last_hour() -> None:
    finished = dg.HourlyPartitionsDefinition(START, END)
    newest_first = pages(finished, 3, ascending=False)
    assert newest_first[0] == EVERY[:-4:-1]
    assert [key for page in newest_first for key in page] == EVERY[::-1]
    assert [key for page in pages(finished, 3, ascending=True) for key in page] == EVERY


def test_pages_of_a_live_pipeline_begin_now() -> None:
    live = dg.HourlyPartitionsDefinition(START)
    (first, second, *_) = pages(live, 2, ascending=False)
    assert [*first, *second] == [partition_key(NOW.replace(minute=0) - timedelta(hours=number)) for number in range(1, 5)]
    ends_later = dg.HourlyPartitionsDefinition(START, NOW + timedelta(days=1))
    assert pages(ends_later, 2, ascending=False)[0] == first
