"""Events by hour from the lake's files: from bounds where they tell, else from the column."""

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from backfill_platform.adapters.iceberg.event_counts import events_by_hour
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.hours import HourRange, hour_of
from backfill_platform.domain.tables import Table
from backfill_platform.domain.uris import local_path
from backfill_platform_tests.adapters.iceberg.test_lake import TABLE, Writer, put
from backfill_platform_tests.events import hour

HOURS = HourRange(hour(1), hour(4))


@pytest.fixture
def table(lake: Lake) -> Table:
    lake.ensure(TABLE)
    return TABLE


def put_late(lake: Lake, table: Table, folder: Path) -> dict[datetime, list[str]]:
    """Hours of whose events some came late, some in the hour itself, and one file holds two event hours."""
    write = Writer(folder)
    files = {
        hour(0): write(hour(0), 4000),  # an hour and 400 seconds
        hour(1): write(hour(1), 30),
        hour(2): [*write(hour(2), 20), *write(hour(2), 50, late=timedelta(minutes=70, seconds=20))],
        hour(5): write(hour(5), 7, late=timedelta(hours=2)),
        hour(6): write(hour(6), 9),
    }
    put(lake, table, files)
    return files


def oracle(files: dict[datetime, list[str]]) -> Counter[datetime]:
    found: Counter[datetime] = Counter()
    for uris in files.values():
        for uri in uris:
            times = pq.read_table(Path(local_path(uri) or "")).column("event_time").to_pylist()
            found.update(at for time in times if (at := hour_of(time)) in HOURS)
    return found


def test_events_are_counted_by_their_own_hour(lake: Lake, table: Table, tmp_path: Path) -> None:
    files = put_late(lake, table, tmp_path)
    uris = [file.uri for file in lake.files(table)]
    found = events_by_hour(lake, table, "event_time", uris, HOURS)
    assert found == oracle(files)
    assert set(found) == {hour(1), hour(2), hour(3)}


def test_only_files_that_reach_over_an_hour_are_read(lake: Lake, table: Table, tmp_path: Path) -> None:
    files = put_late(lake, table, tmp_path)
    uris, wanted = [file.uri for file in lake.files(table)], oracle(files)
    for at, (uri, *_) in files.items():
        if at != hour(0):  # an hour and 400 seconds
            Path(local_path(uri) or "").unlink()
    assert events_by_hour(lake, table, "event_time", uris, HOURS) == wanted
    Path(local_path(files[hour(0)][0]) or "").unlink()
    with pytest.raises(FileNotFoundError):
        events_by_hour(lake, table, "event_time", uris, HOURS)


def test_files_that_were_not_planned_do_not_count(lake: Lake, table: Table, tmp_path: Path) -> None:
    """Somebody else commits between the plan of a repair and its count."""
    put_late(lake, table, tmp_path)
    uris = [file.uri for file in lake.files(table)]
    (tmp_path / "more").mkdir()
    put(lake, table, {hour(3): Writer(tmp_path / "more")(hour(3), 5)})
    assert events_by_hour(lake, table, "event_time", uris, HOURS)[hour(3)] == 7


def test_a_file_that_was_replaced_meanwhile_is_read(lake: Lake, table: Table, tmp_path: Path) -> None:
    files = put_late(lake, table, tmp_path)
    uris = [file.uri for file in lake.files(table)]
    (tmp_path / "more").mkdir()
    put(lake, table, {hour(1): Writer(tmp_path / "more")(hour(1), 5)})
    assert events_by_hour(lake, table, "event_time", uris, HOURS) == oracle(files)
