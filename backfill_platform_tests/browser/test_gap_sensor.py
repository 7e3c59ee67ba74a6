"""A pipeline that is watched: its sensor is switched on by hand, finds an hour that somebody has dropped, and repairs it.

What the pages of the sensor, of its run and of the check `no_gap` show is compared with the warehouse.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from backfill_platform.domain.hours import HOUR, partition_key
from backfill_platform.examples import clickstream
from backfill_platform_tests.browser.watched_pipeline import EVERY, HOURS
from backfill_platform_tests.fixtures_stack import Stack, Stacks
from backfill_platform_tests.fixtures_warehouse import raw, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.slow, pytest.mark.browser]

Keep = Callable[[str], None]
Rows = dict[str, list[str]]

KEYS = [partition_key(clickstream.pipeline.start + n * HOUR) for n in range(HOURS)]
DROPPED_HOUR = datetime(1998, 4, 30, 23, tzinfo=UTC)
DROPPED = partition_key(DROPPED_HOUR)
WAIT = 180_000

SENSOR = "watched_gaps"
TABLE = "transformed.watched_sessions"
ASSET = "warehouse/watched_sessions"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A `backfill up` of its own: a sensor that runs by itself is nothing for tests that count runs."""
    found = Stacks(tmp_path_factory.mktemp("watched") / "home", ["backfill_platform_tests.browser.watched_pipeline"])
    yield found.running()
    found.end()


@pytest.fixture(scope="module")
def published(watched: Stack) -> Rows:
    """What the warehouse holds after the sensor has asked for all hours: none of them had ever landed."""
    wait_until(lambda: list(contents(watched)) == KEYS and is_quiet(watched), WAIT / 1000)
    return contents(watched)


@pytest.fixture(scope="module")
def repaired(tab: "Page", keep: Keep, watched: Stack, published: Rows) -> str:
    """The run that repairs an hour dropped while the sensor was off, as the page of the sensor leads to it."""
    from playwright.sync_api import expect

    open_sensor(tab, watched)
    switch_off(tab, watched)
    requests = tab.get_by_role("row").filter(has_text="2 runs requested").filter(has_text="View logs")
    before = " ".join(requests.first.locator("td").first.inner_text().split())
    expect(requests.first).to_contain_text(before)
    keep("40 sensor switched off")

    known = set(runs(watched))
    drop(watched, DROPPED_HOUR)
    assert list(contents(watched)) == [key for key in KEYS if key != DROPPED]
    switch(tab).click()
    wait_until(lambda: sensor_status(watched) == "RUNNING")
    expect(switch(tab).locator("input")).to_be_checked()
    expect(requests.first).not_to_contain_text(before, timeout=WAIT)
    keep("41 sensor has found the gap")
    (repair,) = [run for run, (job, _) in runs(watched).items() if run not in known and job == "watched_repair"]
    tab.get_by_role("button", name="Runs", exact=True).click()
    tab.get_by_text(repair[:8]).first.click()
    return repair


def test_the_request_of_the_sensor_appears_and_succeeds(page: "Page", keep: Keep, watched: Stack, repaired: str) -> None:
    from playwright.sync_api import expect

    outcome = page.get_by_text(re.compile("^(Success|Failure|Canceled)$"))
    outcome.wait_for(timeout=WAIT)
    keep("42 the run that it asked for")
    expect(outcome).to_have_text("Success")
    assert watched.run_status(repaired) == "SUCCESS"


def test_the_rows_are_back_and_nothing_else_has_changed(watched: Stack, published: Rows, repaired: str) -> None:
    wait_until(lambda: is_quiet(watched), WAIT / 1000)
    assert contents(watched) == published


def test_the_gap_is_shown_as_found_and_then_as_gone(
    page: "Page", keep: Keep, watched: Stack, published: Rows, repaired: str
) -> None:
    wait_until(lambda: is_quiet(watched), WAIT / 1000)
    page.goto(f"{watched.url}/assets/{ASSET}?view=checks&checkDetail=no_gap")
    page.get_by_text("0 of 1 hours of [1998-04-30T23, 1998-05-01T00) have a gap").wait_for()
    keep("43 nothing is missing any more")
    page.get_by_role("tab", name="Execution history").click()
    page.get_by_role("row").filter(has_text=DROPPED).first.wait_for()
    history = [row.inner_text() for row in page.get_by_role("row").filter(has_text=DROPPED).all()]
    keep("44 what was found before")
    gone, mended, found, *_ = history
    assert {"Passed", "nothing is wrong"} <= lines(gone)
    assert {"Passed", "materialized"} <= lines(mended)
    rows = published[DROPPED][0]
    assert {"Failed", f"missing: no rows, but the lake has {rows}"} <= lines(found)
    page.get_by_role("tab", name="Partitions").nth(1).click()
    page.get_by_text("Failed (0)", exact=True).first.wait_for()
    keep("45 the hour passes")
    assert [passed for passed, _ in verdicts_of(watched, "no_gap", DROPPED)][-3:] == [False, True, True]


def lines(text: str) -> set[str]:
    """The lines of a text, without what is around them."""
    return {part.strip() for part in re.split(r"[\n\t]", text)}


def verdicts_of(stack: Stack, check: str, key: str) -> list[tuple[bool, str]]:
    """Whether an hour passed a check, and why, from the first time to the last."""
    found = stack.graphql(
        "query($asset: AssetKeyInput!, $check: String!, $partition: String!) {"
        " assetCheckExecutions(assetKey: $asset, checkName: $check, limit: 100, partition: $partition)"
        " { evaluation { success description } } }",
        asset={"path": ASSET.split("/")},
        check=check,
        partition=key,
    )["assetCheckExecutions"]
    evaluations = [one["evaluation"] for one in found if one["evaluation"]]
    return [(one["success"], one["description"]) for one in reversed(evaluations)]


def open_sensor(page: "Page", stack: Stack) -> None:
    """Open the page of the sensor."""
    page.goto(f"{stack.url}/locations/backfill_platform/sensors/{SENSOR}")
    switch(page).wait_for()


def switch(page: "Page") -> "Locator":
    """What switches a sensor on and off, on its page."""
    return page.get_by_role("row", name="Running").locator("label")


def switch_off(page: "Page", stack: Stack) -> None:
    """Switch the sensor off for good.

    Dagster's daemon writes the state that it has read a moment before, when a look begins and when it ends
    (`dagster/_daemon/sensor.py`): a switch in between is undone. So it is looked at again after the time of a look, as a
    person would.
    """
    for _ in range(5):
        switch(page).click()
        wait_until(lambda: sensor_status(stack) == "STOPPED")
        page.wait_for_timeout(2 * EVERY.total_seconds() * 1000)
        page.reload()
        switch(page).wait_for()
        if not switch(page).locator("input").is_checked():
            return
    raise AssertionError("the sensor does not stay switched off")


def sensor_status(stack: Stack) -> str:
    """Whether the sensor is RUNNING or STOPPED."""
    answer = stack.graphql(
        "query($of: SensorSelector!) { sensorOrError(sensorSelector: $of) { ... on Sensor { sensorState { status } } } }",
        of={"repositoryLocationName": "backfill_platform", "repositoryName": "__repository__", "sensorName": SENSOR},
    )
    return str(answer["sensorOrError"]["sensorState"]["status"])


def runs(stack: Stack) -> dict[str, tuple[str, str]]:
    """The job and the status of every run."""
    found = stack.graphql("{ runsOrError { ... on Runs { results { id jobName status } } } }")["runsOrError"]["results"]
    return {run["id"]: (run["jobName"], run["status"]) for run in found}


def is_quiet(stack: Stack) -> bool:
    """Whether every run has ended, and the sensor knows of no gap."""
    cursor = stack.graphql(
        "query($of: SensorSelector!) { sensorOrError(sensorSelector: $of) { ... on Sensor { sensorState {"
        " typeSpecificData { ... on SensorData { lastCursor } } } } } }",
        of={"repositoryLocationName": "backfill_platform", "repositoryName": "__repository__", "sensorName": SENSOR},
    )["sensorOrError"]["sensorState"]["typeSpecificData"]["lastCursor"]
    ended = {status for job, status in runs(stack).values() if job != "watched_damaged_hours"}
    return '"asked": {}' in (cursor or "") and ended == {"SUCCESS"}


def contents(stack: Stack) -> Rows:
    """The number of rows of each hour that readers see, and a digest of them, from ClickHouse itself."""
    if not int(stack.query(f"EXISTS TABLE {TABLE}")[0][0]):
        return {}
    found = stack.query(
        "SELECT formatDateTime(hour, '%Y-%m-%d-%H:%i', 'UTC') AS key, count(), sum(cityHash64(* EXCEPT sign))"
        f" FROM {TABLE} FINAL GROUP BY key ORDER BY key"
    )
    return {key: numbers for key, *numbers in found}


def drop(stack: Stack, hour: datetime) -> None:
    """Drop the rows of an hour from the warehouse, behind the platform's back."""
    sql = f"ALTER TABLE {TABLE} DELETE WHERE hour = toDateTime({int(hour.timestamp())}) SETTINGS mutations_sync = 2"
    answer = raw(stack.warehouse_url, sql.encode())
    assert answer.status == 200, answer.body
