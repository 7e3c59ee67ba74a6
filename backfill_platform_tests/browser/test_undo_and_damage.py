"""A repair is undone by the link in its report; its hours are shown as failed, and published again from the check's link."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from backfill_platform_tests.fixtures_stack import ROOT, Stack, Stacks, environment
from backfill_platform_tests.fixtures_warehouse import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.whole, pytest.mark.browser]

Keep = Callable[[str], None]
PIPELINES = ["backfill_platform.examples.clickstream"]
KEYS = ["1998-04-30-22:00", "1998-04-30-23:00", "1998-05-01-00:00"]
RANGE = f"[{KEYS[0]}...{KEYS[-1]}]"
ASSET = "warehouse/sessions"
WAIT = 180_000


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A `backfill up` of its own, with three hours that the command line has published."""
    stacks = Stacks(tmp_path_factory.mktemp("undone") / "home", PIPELINES)
    stack = stacks.running()
    command = ["backfill_platform.cli", "run", "clickstream", "--from", "1998-04-30T22", "--to", "1998-05-01T01"]
    env = environment(stack.home, PIPELINES)
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    yield stack
    stacks.end()


@pytest.fixture(scope="module")
def undone(tab: "Page", keep: Keep, published: Stack) -> str:
    """The run of the undo, launched from the link in the report of the repair."""
    from playwright.sync_api import expect

    tab.goto(f"{published.url}/assets/{ASSET}?view=events")
    tab.get_by_text("[Show Markdown]").first.click()
    keep("50 the report with the link that undoes it")
    with tab.expect_navigation():
        tab.get_by_role("dialog").get_by_role("link", name="here").click()
    editor = tab.locator(".CodeMirror-code")
    expect(editor).to_contain_text("clickstream_undo_op")
    expect(editor).to_contain_text(re.compile(r"repair:\s*r\d{8}t\d{6}_[0-9a-f]{6}"))
    keep("51 the launchpad is filled")
    tab.get_by_role("button", name="Launch run").click()
    tab.get_by_text(re.compile("^(Success|Failure|Canceled)$")).wait_for(timeout=WAIT)
    keep("52 the undo has ended")
    return tab.url.rpartition("/")[2]


def test_the_undo_link_opens_a_filled_launchpad_and_the_undo_succeeds(page: "Page", published: Stack, undone: str) -> None:
    assert published.run_status(undone) == "SUCCESS"
    assert published.query("SELECT count() FROM transformed.sessions FINAL") == [["0"]]


def test_undone_hours_are_failed_with_their_checks(page: "Page", keep: Keep, published: Stack, undone: str) -> None:
    from playwright.sync_api import expect

    page.goto(f"{published.url}/assets/{ASSET}?view=partitions")
    expect(page.get_by_text("Failed (3)", exact=True)).to_be_visible()
    expect(page.get_by_text("Materialized (0)", exact=True)).to_be_visible()
    keep("53 the undone hours")
    assert published.partitions(ASSET) == dict.fromkeys(KEYS, "FAILED")
    page.goto(f"{published.url}/assets/{ASSET}?view=checks&checkDetail=no_pending_approval")
    page.get_by_role("tab", name="Partitions").nth(1).click()
    expect(page.get_by_text("Failed (3)", exact=True).first).to_be_visible()
    keep("54 their check")


def test_the_link_of_the_check_opens_the_dialog_with_the_hours_and_they_turn_green(
    page: "Page", keep: Keep, published: Stack, undone: str
) -> None:
    from playwright.sync_api import expect

    look(published)
    page.goto(f"{published.url}/assets/{ASSET}?view=checks&checkDetail=no_gap")
    keep("55 the gaps")
    page.get_by_role("row").filter(has_text="calendar").get_by_text("[Show Markdown]").click()
    picture = page.get_by_role("dialog").get_by_role("img", name="hours")
    picture.wait_for()
    assert picture.evaluate("image => image.naturalWidth") > 24 * 20, "the picture is shown"
    keep("55 the calendar")
    page.keyboard.press("Escape")
    page.get_by_role("row").filter(has_text="repair").get_by_text("[Show Markdown]").click()
    with page.expect_navigation():
        page.get_by_role("dialog").get_by_role("link", name="choose them, then Materialize").click()
    page.get_by_role("button", name="Materialize").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_placeholder("ex: ")).to_have_value(RANGE)
    expect(dialog.get_by_text("3 partitions", exact=True)).to_be_visible()
    dialog.get_by_role("button", name="Failed", exact=True).click()
    expect(dialog.get_by_placeholder("ex: ")).to_have_value(RANGE)
    keep("56 the dialog offers the damaged hours")
    dialog.get_by_role("button", name="Launch backfill").click()
    page.get_by_text("Created backfill").wait_for()
    wait_until(lambda: published.partitions(ASSET) == dict.fromkeys(KEYS, "MATERIALIZED"), WAIT / 1000)
    look(published)
    page.goto(f"{published.url}/assets/{ASSET}?view=checks&checkDetail=no_pending_approval")
    page.get_by_role("tab", name="Partitions").nth(1).click()
    expect(page.get_by_text("Passed (3)", exact=True).first).to_be_visible()
    keep("57 published again")


def look(stack: Stack) -> None:
    """Evaluate `no_gap` over the hours, as the sensor and people do."""
    selector = {"repositoryLocationName": "backfill_platform", "repositoryName": "__repository__"}
    tags = {"dagster/asset_partition_range_start": KEYS[0], "dagster/asset_partition_range_end": KEYS[-1]}
    answer = stack.graphql(
        "mutation($p: ExecutionParams!) { launchRun(executionParams: $p) { __typename ... on LaunchRunSuccess { run { id } }"
        " ... on PythonError { message } } }",
        p={
            "selector": {**selector, "jobName": "clickstream_gap_evaluation"},
            "executionMetadata": {"tags": [{"key": name, "value": value} for name, value in tags.items()]},
        },
    )["launchRun"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    wait_until(lambda: stack.run_status(answer["run"]["id"]) in ("SUCCESS", "FAILURE"), WAIT / 1000)
    assert stack.run_status(answer["run"]["id"]) == "SUCCESS"
