"""A data engineer backfills a range of hours in the Dagster UI, and reads there what became of every hour.

Two backfills are launched by hand, one after the other, and run side by side: one that succeeds, and one with an hour that
breaks a check. What the pages show is compared with the requests themselves, with GraphQL and with the warehouse.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from backfill_platform.domain.hours import HOUR, format_hour, partition_key
from backfill_platform.examples import clickstream_reference
from backfill_platform.examples.clickstream import REQUESTS_FILE
from backfill_platform_tests.browser.failing_pipeline import BROKEN_HOUR
from backfill_platform_tests.fixtures_stack import Stack, Stacks
from backfill_platform_tests.fixtures_warehouse import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.whole, pytest.mark.browser]

Keep = Callable[[str], None]

FIRST = datetime(1998, 4, 30, 22, tzinfo=UTC)
HOURS = [FIRST + n * HOUR for n in range(4)]
END = HOURS[-1] + HOUR
KEYS = [partition_key(hour) for hour in HOURS]
BROKEN = partition_key(BROKEN_HOUR)
DAY = [partition_key(FIRST + n * HOUR) for n in range(24)]
WAIT = 180_000

SOUND = ("raw/clickstream", "transformed/sessions", "aggregated/site_hourly", "warehouse/sessions", "warehouse/site_hourly")
CHECKED = ("raw/checked", "transformed/checked_sessions", "warehouse/checked_sessions")

# Every row of a list of partitions is an element with the key and, beside it, a dot: the colours of the dots by key.
DOTS = """rows => {
  const probe = document.body.appendChild(document.createElement('i')), names = {};
  for (const name of ['green', 'red', 'gray', 'blue', 'yellow']) {
    probe.style.background = `var(--color-accent-${name})`;
    names[getComputedStyle(probe).backgroundColor] = name;
  }
  probe.remove();
  return rows.map(row => [row.dataset.tooltip, names[getComputedStyle(row.nextElementSibling).backgroundColor] ?? '?']);
}"""

# The rows of the table of metadata, without the tables inside of its cells.
METADATA = """table => [...table.rows].map(row => [row.cells[0].innerText.trim(), row.cells[1].innerText.trim()])"""


@dataclass(frozen=True)
class Expected:
    """What the requests of the range say of an hour."""

    sessions: int
    extended: int


@pytest.fixture(scope="module")
def expected() -> dict[str, Expected]:
    """The sessions of each hour of the range, from its requests and in plain Python."""
    requests, _ = clickstream_reference.read_requests(REQUESTS_FILE)
    sessions: Counter[object] = Counter()
    extended: Counter[object] = Counter()
    for hour, _, _, ended_at, *_ in clickstream_reference.sessions((r for r in requests if r.at < END), END):
        assert isinstance(hour, datetime)
        assert isinstance(ended_at, datetime)
        sessions[hour] += 1
        extended[hour] += ended_at >= hour + HOUR
    return {partition_key(hour): Expected(sessions[hour], extended[hour]) for hour in HOURS}


@dataclass(frozen=True)
class Launched:
    """The ids of the two backfills."""

    sound: str
    checked: str


@pytest.fixture(scope="module")
def launched(tab: "Page", keep: Keep, stacks: Stacks) -> Launched:
    """Both backfills, launched in the pages of their groups."""
    url = stacks.running().url
    tab.goto(f"{url}/locations/backfill_platform/asset-groups/clickstream")
    tab.get_by_text("24 partitions").first.wait_for()
    keep("01 asset graph before")
    sound = launch(tab, keep, url, "clickstream", SOUND, "02 sound")
    return Launched(sound, launch(tab, keep, url, "checked", CHECKED, "03 checked"))


def launch(page: "Page", keep: Keep, url: str, group: str, assets: tuple[str, ...], name: str) -> str:
    """Choose assets in the list of a group, materialize them for the range, and return the id of the backfill."""
    from playwright.sync_api import expect

    page.goto(f"{url}/locations/backfill_platform/asset-groups/{group}/list")
    for asset in assets:
        page.locator(f'label:has([data-testid="checkbox-{asset}"])').click()
    keep(f"{name} assets chosen")
    page.get_by_role("button", name=f"Materialize selected ({len(assets)})").click()
    dialog = page.get_by_role("dialog")
    hours = dialog.get_by_placeholder("ex: ")
    hours.fill(f"[{KEYS[0]}...{KEYS[-1]}]")
    hours.press("Enter")
    expect(dialog.get_by_text("4 partitions", exact=True)).to_be_visible()
    keep(f"{name} range of hours")
    dialog.get_by_role("button", name="Launch backfill").click()
    told = page.get_by_text("Created backfill")
    told.wait_for()
    return told.inner_text().split()[-1]


def test_the_backfill_of_a_range_is_one_run_that_succeeds(page: "Page", keep: Keep, stack: Stack, launched: Launched) -> None:
    from playwright.sync_api import expect

    page.goto(f"{stack.url}/runs/b/{launched.sound}")
    expect(status_of_backfill(page)).to_contain_text("In progress")
    expect(page.get_by_text(f"{KEYS[0]}...{KEYS[-1]}")).to_be_visible()
    keep("04 backfill in progress")
    wait_until(lambda: bool(stack.runs(launched.sound)), WAIT / 1000)
    (run,) = stack.runs(launched.sound)
    page.goto(f"{stack.url}/runs/{run}")
    outcome = page.get_by_text(re.compile("^(Success|Failure|Canceled)$"))
    outcome.wait_for(timeout=WAIT)
    keep("05 the run")
    expect(outcome).to_have_text("Success")
    expect(page.get_by_text("5 assets")).to_be_visible()
    assert stack.runs(launched.sound) == {run: "SUCCESS"}


def test_exactly_the_hours_of_the_range_are_green(page: "Page", keep: Keep, stack: Stack, sound: Launched) -> None:
    page.goto(f"{stack.url}/assets/warehouse/sessions?view=partitions")
    page.get_by_text("Materialized (4)").wait_for()
    page.get_by_text("Missing (20)").wait_for()
    keep("07 partitions")
    assert dots(page) == {key: "green" if key in KEYS else "gray" for key in DAY}
    for asset in SOUND:
        assert stack.partitions(asset) == dict.fromkeys(KEYS, "MATERIALIZED"), asset
    assert not stack.partitions("dry_run/sessions"), "it was not chosen"


def test_each_hour_has_its_own_facts(
    page: "Page", keep: Keep, stack: Stack, sound: Launched, expected: dict[str, Expected]
) -> None:
    page.goto(f"{stack.url}/assets/warehouse/sessions?view=partitions")
    for key in (KEYS[1], KEYS[2]):
        rows = str(expected[key].sessions)
        facts = open_hour(page, key, "fingerprint_after")
        assert {name: facts[name] for name in ("status", "rows", "cancels", "states", "untouched")} == {
            "status": "published",
            "rows": rows,
            "cancels": "0",
            "states": rows,
            "untouched": "0",
        }
        assert re.fullmatch(rf"{rows}:[0-9a-f]{{16}}", facts["fingerprint_after"])
        assert facts["fingerprint_after"] == facts["fingerprint_desired"] != facts["fingerprint_before"]
        assert re.fullmatch(r"r\d{8}t\d{6}_[0-9a-f]{6}", facts["repair"])
        assert {"totals of the hour", "samples"} <= facts.keys()
    keep("08 an hour in the warehouse")

    page.goto(f"{stack.url}/assets/transformed/sessions?view=partitions")
    facts = open_hour(page, KEYS[1], "sessions_extended")
    keep("09 an hour in the lake")
    assert facts["rows"] == str(expected[KEYS[1]].sessions)
    assert facts["quarantined"] == "0"
    assert facts["sessions_extended"] == str(expected[KEYS[1]].extended) != "0"

    for key in KEYS:
        assert stored_facts(stack, "transformed/sessions", key, "rows", "sessions_extended") == [
            expected[key].sessions,
            expected[key].extended,
        ]
        assert stored_facts(stack, "warehouse/sessions", key, "rows") == [expected[key].sessions]
    assert warehouse_rows(stack, "sessions") == {key: found.sessions for key, found in expected.items()}


def test_the_run_is_summed_up_hour_by_hour(
    page: "Page", keep: Keep, stack: Stack, sound: Launched, expected: dict[str, Expected]
) -> None:
    page.goto(f"{stack.url}/assets/transformed/sessions?view=events")
    page.get_by_text("sessions_cut_at_first_read_end").wait_for()
    table = page.locator("table table", has_text="verdict")
    keep("10 the run of a range")
    headers, *rows = [line.locator("th, td").all_inner_texts() for line in table.locator("tr").all()]
    assert headers[:4] == ["hour (UTC)", "verdict", "", "rows"]
    plain = [(row[0].replace("\N{NON-BREAKING HYPHEN}", "-"), row[1], int(row[3])) for row in rows]
    assert plain == [(format_hour(hour), "ok", expected[partition_key(hour)].sessions) for hour in HOURS]
    bars = [len(row[2]) for row in rows]
    assert bars[0] == max(bars) > bars[-1] > 0, "the longest bar is that of the most rows"
    box = table.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 1500, "the table fits on the page"


def test_checks_are_shown_for_each_hour(page: "Page", keep: Keep, stack: Stack, sound: Launched) -> None:
    open_check(page, stack, "transformed/sessions", "rows_add_up")
    page.get_by_text("Rows computed = written + quarantined. An hour that fails it is not").wait_for()
    keep("11 a check")
    for asset, check in (("transformed/sessions", "rows_valid"), ("warehouse/sessions", "matches_lake")):
        open_check(page, stack, asset, check)
        page.get_by_role("tab", name="Partitions").nth(1).click()
        page.get_by_text("Passed (4)").wait_for()
        page.get_by_text("Missing (20)").wait_for()
        assert dots(page) == {key: "green" if key in KEYS else "gray" for key in DAY}
    keep("12 a check by hour")


def test_an_hour_whose_check_fails_is_named_and_the_others_are_published(
    page: "Page", keep: Keep, stack: Stack, launched: Launched, expected: dict[str, Expected]
) -> None:
    from playwright.sync_api import expect

    wait_until(lambda: set(stack.runs(launched.checked).values()) in ({"SUCCESS"}, {"FAILURE"}), WAIT / 1000)
    page.goto(f"{stack.url}/assets/transformed/checked_sessions?view=partitions")
    page.get_by_text("Failed (1)").wait_for()
    page.get_by_text("Materialized (3)").wait_for()
    keep("21 partitions with a failed hour")
    colours = {key: "green" if key in KEYS else "gray" for key in DAY} | {BROKEN: "red"}
    assert dots(page) == colours
    row(page, BROKEN).click()
    expect(page.get_by_text("failed, and did not materialize this asset")).to_be_visible()
    keep("22 the failed hour")
    page.get_by_role("button", name="View logs").click()
    reason = f"transformed/checked_sessions {format_hour(BROKEN_HOUR)}: failed enough clients"
    expect(page.get_by_role("dialog").get_by_text(reason).last).to_be_visible()
    keep("23 its reason in the log")

    ((run, status),) = stack.runs(launched.checked).items()
    assert status == "FAILURE"
    page.goto(f"{stack.url}/runs/{run}")
    expect(page.get_by_text("2 hours were not materialized:").last).to_be_visible()
    expect(page.get_by_text(reason).last).to_be_visible()
    keep("24 the run with a failed hour")

    open_check(page, stack, "transformed/checked_sessions", "enough_clients")
    page.get_by_role("tab", name="Partitions").nth(1).click()
    page.get_by_text("Passed (3)").wait_for()
    row(page, BROKEN).click()
    expect(page.get_by_text("an hour has about as many clients as its neighbours")).to_be_visible()
    keep("25 the failed check by hour")
    assert dots(page) == colours

    mixed = {key: "FAILED" if key == BROKEN else "MATERIALIZED" for key in KEYS}
    assert {asset: stack.partitions(asset) for asset in CHECKED} == {
        "raw/checked": dict.fromkeys(KEYS, "MATERIALIZED"),
        **dict.fromkeys(CHECKED[1:], mixed),
    }
    others = {key: found.sessions for key, found in expected.items() if key != BROKEN}
    assert warehouse_rows(stack, "checked_sessions") == others


def test_the_pages_of_the_backfills_and_the_graph_sum_it_up(page: "Page", keep: Keep, stack: Stack, launched: Launched) -> None:
    from playwright.sync_api import expect

    ended = re.compile("Succeeded|Failed|Cancel")
    page.goto(f"{stack.url}/runs/b/{launched.sound}")
    expect(status_of_backfill(page)).to_contain_text(ended, timeout=WAIT)
    expect(page.get_by_text("100% completed")).to_have_count(len(SOUND))
    keep("30 backfill succeeded")
    assert "Succeeded" in status_of_backfill(page).inner_text()

    page.goto(f"{stack.url}/runs/b/{launched.checked}")
    expect(status_of_backfill(page)).to_contain_text(ended, timeout=WAIT)
    expect(page.get_by_text("100% completed")).to_have_count(len(CHECKED))
    keep("31 backfill with a failed hour")
    assert "Failed" in status_of_backfill(page).inner_text()

    page.goto(f"{stack.url}/locations/backfill_platform/asset-groups/clickstream")
    expect(page.get_by_text("16% filled")).to_have_count(len(SOUND))
    for layer, assets in {"raw": 1, "transformed": 1, "aggregated": 1, "dry_run": 2, "warehouse": 2}.items():
        expect(page.get_by_text(layer, exact=True)).to_have_count(assets)
    keep("32 asset graph after")


@pytest.fixture
def sound(stack: Stack, launched: Launched) -> Launched:
    """The backfill that succeeds, over: its runs have ended."""
    wait_until(lambda: set(stack.runs(launched.sound).values()) in ({"SUCCESS"}, {"FAILURE"}), WAIT / 1000)
    assert set(stack.runs(launched.sound).values()) == {"SUCCESS"}
    return launched


def status_of_backfill(page: "Page") -> "Locator":
    """Where the page of a backfill says how it stands."""
    return page.get_by_text("Status", exact=True).locator("..")


def row(page: "Page", key: str) -> "Locator":
    """The row of a partition in the list of them."""
    return page.locator(f'[data-tooltip="{key}"]')


def dots(page: "Page") -> dict[str, str]:
    """The colour of each partition in the list of them."""
    return dict(page.locator('[data-tooltip^="199"]').evaluate_all(DOTS))


def open_hour(page: "Page", key: str, awaited: str) -> dict[str, str]:
    """Open a partition in the list of them; its metadata."""
    row(page, key).click()
    page.get_by_role("heading", name=key).or_(page.get_by_text(key, exact=True)).first.wait_for()
    table = page.locator("table", has_text=awaited).first
    table.wait_for()
    return dict(table.evaluate(METADATA))


def open_check(page: "Page", stack: Stack, asset: str, check: str) -> None:
    """Open the page of a check."""
    page.goto(f"{stack.url}/assets/{asset}?view=checks&checkDetail={check}")
    page.get_by_text("Execution history").wait_for()


def stored_facts(stack: Stack, asset: str, key: str, *names: str) -> list[int]:
    """Whole numbers in the metadata of the only materialization of an hour."""
    answer = stack.graphql(
        "query($key: AssetKeyInput!, $partitions: [String!]) { assetNodeOrError(assetKey: $key) { ... on AssetNode {"
        " assetMaterializations(partitions: $partitions) {"
        " metadataEntries { label ... on IntMetadataEntry { intValue } } } } } }",
        key={"path": asset.split("/")},
        partitions=[key],
    )
    (event,) = answer["assetNodeOrError"]["assetMaterializations"]
    entries = {entry["label"]: entry.get("intValue") for entry in event["metadataEntries"]}
    return [entries[name] for name in names]


def warehouse_rows(stack: Stack, table: str) -> dict[str, int]:
    """The rows that the warehouse has of each hour, from ClickHouse itself."""
    found = stack.query(
        f"SELECT formatDateTime(hour, '%Y-%m-%d-%H:%i', 'UTC'), sum(sign) FROM transformed.{table} GROUP BY hour"
    )
    return {key: int(rows) for key, rows in found}
