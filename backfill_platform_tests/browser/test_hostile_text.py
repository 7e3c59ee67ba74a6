"""An event whose text is an attack, on the pages that show it, in a real browser: nothing is asked for, nothing is launched."""

import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

import dagster as dg
import pytest

from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.settings import load_settings
from backfill_platform_tests.browser import hostile_pipeline
from backfill_platform_tests.browser.hostile_pipeline import ATTACK, LAUNCH
from backfill_platform_tests.fixtures_stack import COMMAND, ROOT, Stack, Stacks, environment

if TYPE_CHECKING:
    from playwright.sync_api import Page, Response

pytestmark = [pytest.mark.whole, pytest.mark.browser]

MODULE = "backfill_platform_tests.browser.hostile_pipeline"
HOUR = "1998-04-30-22:00"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A `backfill up` that has landed the hour with the attack, for a reason that is one, too."""
    hostile_pipeline.write_requests()
    found = Stacks(tmp_path_factory.mktemp("hostile") / "home", [MODULE])
    stack = found.running()
    hours = ("--from", "1998-04-30T22", "--to", "1998-04-30T23")
    done = subprocess.run(
        [COMMAND, "run", "hostile", *hours, "--select", "raw/hostile", "--reason", ATTACK],
        cwd=ROOT,
        env=environment(stack.home, [MODULE]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    yield stack
    found.end()


@pytest.fixture
def asked(page: "Page") -> Iterator[list["Response"]]:
    """What the page asks any server for, but for the web page's own questions."""
    seen: list[Response] = []

    def note(response: "Response") -> None:
        if response.request.resource_type == "image" or (response.request.method == "GET" and "mutation" in response.url):
            seen.append(response)

    page.on("response", note)
    yield seen
    page.remove_listener("response", note)


def backfills(stack: Stack) -> list[str]:
    query = "{ partitionBackfillsOrError { ... on PartitionBackfills { results { id } } } }"
    return [one["id"] for one in stack.graphql(query)["partitionBackfillsOrError"]["results"]]


def test_the_samples_of_a_check_show_an_attack_as_text(page: "Page", attacked: Stack, asked: list["Response"]) -> None:
    page.goto(f"{attacked.url}/assets/raw/hostile?view=checks&checkDetail=rows_valid")
    page.get_by_role("tab", name="Partitions").nth(1).click()
    page.locator(f'[data-tooltip="{HOUR}"]').click()
    page.get_by_text("[Show Markdown]").click()
    shown = page.get_by_role("dialog").get_by_text("status: missing").locator("..")
    shown.wait_for()
    page.wait_for_timeout(2000)
    assert_harmless(page, attacked, asked)
    assert ATTACK.split(" ")[0] in shown.inner_text().replace("\N{WORD JOINER}", "")


def test_the_report_of_a_repair_shows_an_attack_as_text(page: "Page", attacked: Stack, asked: list["Response"]) -> None:
    page.goto(f"{attacked.url}/assets/raw/hostile?view=events&partition={HOUR}")
    page.goto(f"{attacked.url}/assets/raw/hostile?view=events")
    page.get_by_text("[Show Markdown]").first.wait_for()
    for link in page.get_by_text("[Show Markdown]").all():
        link.click()
        page.get_by_role("dialog").locator("table").first.wait_for()
        page.wait_for_timeout(1000)
        assert_harmless(page, attacked, asked)
        page.keyboard.press("Escape")
    assert_harmless(page, attacked, asked)


def test_the_gate_refuses_an_image_that_gets_through(page: "Page", attacked: Stack, asked: list["Response"]) -> None:
    """As the pages showed it before: this proves that the two tests above would see an image that is asked for."""
    shown = {"evil": dg.MetadataValue.md(f"![x]({LAUNCH})")}
    with dagster_instance(load_settings(home=attacked.home)) as instance:
        instance.report_runless_asset_event(
            dg.AssetMaterialization(["raw", "hostile"], partition="1998-05-01-00:00", metadata=shown)
        )
    page.goto(f"{attacked.url}/assets/raw/hostile?view=partitions&partition=1998-05-01-00:00")
    page.get_by_text("evil").first.wait_for()
    page.wait_for_timeout(2000)
    attempts = [response for response in asked if "mutation" in unquote(response.url)]
    assert [response.status for response in attempts][:1] == [403]
    assert backfills(attacked) == []


def assert_harmless(page: "Page", stack: Stack, asked: list["Response"]) -> None:
    """No picture, no link and no request that an attack asked for."""
    assert page.locator('img[alt="x"], img[src*="graphql"], a[href*="evil"], a[href*="graphql?"]').count() == 0
    assert [response.url for response in asked if "mutation" in unquote(response.url) or "evil" in response.url] == []
    assert backfills(stack) == []
