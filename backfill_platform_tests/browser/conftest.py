"""A real Chromium, and a tab of it that keeps pictures of what it shows."""

import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from backfill_platform_tests.fixtures_stack import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

Keep = Callable[[str], None]

SCREENSHOTS = ROOT / "artefacts" / "screenshots"
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def chromium() -> str:
    """The path of an installed Chromium; none is downloaded."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        reason = "no Chromium: the web pages were NOT tested; on Debian: apt-get install chromium fonts-dejavu-core"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def tab(chromium: str) -> Iterator["Page"]:
    """One tab for the tests of a module, high enough for a day of hours."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=list(ARGUMENTS))
        page = browser.new_context(viewport={"width": 1500, "height": 1240}, timezone_id="UTC", locale="en-US").new_page()
        page.set_default_timeout(30_000)
        yield page
        browser.close()


@pytest.fixture(scope="module")
def keep(tab: "Page") -> Keep:
    """Keeps a picture of what the tab shows, under a name, once two in a row are the same: pictures and lines load late."""

    def keep(name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + 3
        picture, before = tab.screenshot(animations="disabled"), b""
        while picture != before and time.monotonic() < deadline:
            tab.wait_for_timeout(150)
            picture, before = tab.screenshot(animations="disabled"), picture
        (SCREENSHOTS / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.png").write_bytes(picture)

    return keep


@pytest.fixture
def page(tab: "Page", keep: Keep, request: pytest.FixtureRequest) -> Iterator["Page"]:
    """The tab; what it shows when the test ends, well or not, is kept under the name of the test."""
    yield tab
    keep(f"end of {request.node.name}")
