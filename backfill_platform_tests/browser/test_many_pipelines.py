"""Pipelines of two centuries beside one another in the Dagster UI: each has its own hours, and its runs their place."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from backfill_platform.domain.hours import HourRange, partition_key
from backfill_platform.domain.run_order import order_of
from backfill_platform.examples import playbacks
from backfill_platform_tests.fixtures_stack import Stack
from backfill_platform_tests.fixtures_warehouse import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.whole, pytest.mark.browser]

HOURS = list(playbacks.HOURS)
RANGE = HourRange(HOURS[2], HOURS[4])
WAIT = 180


def test_a_range_of_one_pipeline_is_launched_with_the_others_loaded(
    page: "Page", keep: Callable[[str], None], stack: Stack
) -> None:
    from playwright.sync_api import expect

    for group, count in (("clickstream", 24), ("payments", 8764), ("playbacks", 12)):
        page.goto(f"{stack.url}/locations/backfill_platform/asset-groups/{group}")
        page.get_by_text(f"{count:,} partitions").first.wait_for()
    keep("40 a group of 2017")

    page.goto(f"{stack.url}/locations/backfill_platform/asset-groups/playbacks/list")
    page.locator('label:has([data-testid="checkbox-raw/playbacks"])').click()
    page.get_by_role("button", name="Materialize selected").click()
    dialog = page.get_by_role("dialog")
    hours = dialog.get_by_placeholder("ex: ")
    hours.fill(f"[{partition_key(HOURS[2])}...{partition_key(HOURS[3])}]")
    hours.press("Enter")
    expect(dialog.get_by_text("2 partitions", exact=True)).to_be_visible()
    keep("41 a range of 2017")
    dialog.get_by_role("button", name="Launch backfill").click()
    told = page.get_by_text("Created backfill")
    told.wait_for()
    backfill = told.inner_text().split()[-1]

    wait_until(lambda: set(stack.runs(backfill).values()) in ({"SUCCESS"}, {"FAILURE"}), WAIT)
    ((run, status),) = stack.runs(backfill).items()
    assert status == "SUCCESS"
    assert stack.partitions("raw/playbacks") == {partition_key(hour): "MATERIALIZED" for hour in RANGE}
    tags = {
        tag["key"]: tag["value"]
        for tag in stack.graphql("query($id: ID!) { runOrError(runId: $id) { ... on Run { tags { key value } } } }", id=run)[
            "runOrError"
        ]["tags"]
    }
    assert tags["backfill/pipeline"] == "playbacks"
    assert tags["dagster/priority"] == str(order_of(0, RANGE.start))
