"""A year of hours, backfilled by clicks in the Dagster UI: `python -m benchmarks.year_in_ui [--hours N]`.

`backfill up`, the hours of `benchmarks.year`, and one backfill for five assets and all hours, chosen and launched in Chromium.
While it runs and when it is done, the pages a person looks at are opened, and each must show what it is for. Nothing is
skipped: at the end every asset has every hour green, and the warehouse has the sessions.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from backfill_platform.domain.hours import HOUR, partition_key
from benchmarks.stack import ROOT, Stack, stack
from benchmarks.year import START, VISITS, write_requests

if TYPE_CHECKING:
    from playwright.sync_api import Page

RESULTS = Path(__file__).parent / "results-year-in-ui.md"
PICTURES = ROOT / "artefacts" / "year"
ASSETS = ("raw/clickstream", "transformed/sessions", "aggregated/site_hourly", "warehouse/sessions", "warehouse/site_hourly")
PATIENCE = 3 * 3600
PIPELINE = """from dataclasses import replace
from datetime import datetime
from pathlib import Path

from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.uris import local_uri
from backfill_platform.examples import clickstream
from backfill_platform.adapters.files.hourly import ArchiveFile

span = HourRange(datetime.fromisoformat("{start}"), datetime.fromisoformat("{end}"))
source = ArchiveFile(local_uri(Path("{file}")), span, encoding="ISO-8859-1")
pipeline = replace(clickstream.pipeline, start=span.start, end=span.end, source=source)
"""


def launch(page: "Page", url: str, first: str, last: str, hours: int) -> str:
    """Choose the assets and the range, and launch; the id of the backfill."""
    page.goto(f"{url}/locations/backfill_platform/asset-groups/clickstream/list")
    for asset in ASSETS:
        page.locator(f'label:has([data-testid="checkbox-{asset}"])').click()
    page.get_by_role("button", name=f"Materialize selected ({len(ASSETS)})").click()
    dialog = page.get_by_role("dialog")
    field = dialog.get_by_placeholder("ex: ")
    field.fill(f"[{first}...{last}]")
    field.press("Enter")
    dialog.get_by_text(f"{hours:,} partition").first.wait_for()
    keep(page, "the launch")
    dialog.get_by_role("button", name="Launch backfill").click()
    told = page.get_by_text("Created backfill")
    told.wait_for()
    return told.inner_text().split()[-1]


def keep(page: "Page", name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name.replace(' ', '-')}.png")


def look(page: "Page", name: str, url: str, awaited: str) -> float:
    """Seconds until a page shows what it is for."""
    began = time.perf_counter()
    page.goto(url)
    try:
        page.get_by_text(awaited).first.wait_for()
        took = time.perf_counter() - began
    finally:
        keep(page, name)
    say(f"{name}: {took:.1f} s")
    return took


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def green(running: Stack, asset: str) -> int:
    """How many hours of an asset are materialized."""
    answer = running.graphql(
        "query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {"
        " partitionStats { numMaterialized numFailed } } } }",
        key={"path": asset.split("/")},
    )["assetNodeOrError"]["partitionStats"]
    if answer["numFailed"]:
        raise SystemExit(f"{asset}: {answer}")
    return int(answer["numMaterialized"])


def watch_memory(home: Path, found: dict[str, int], over: threading.Event) -> None:
    """Every two seconds, the memory (MiB) of the largest process of the stack, for each program."""
    marker = f"BACKFILL_HOME={home}".encode()
    while not over.wait(2):
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if marker in (folder / "environ").read_bytes().split(b"\0"):
                    program = (folder / "comm").read_text().strip().rstrip("0123456789.")
                    pages = int((folder / "statm").read_text().split()[1])
                    found[program] = max(found.get(program, 0), pages * os.sysconf("SC_PAGE_SIZE") >> 20)
            except OSError:
                continue


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=8760, help="how many; the results file is written for a year only")
    hours = parser.parse_args().hours
    folder = Path(tempfile.mkdtemp())
    first, last = partition_key(START), partition_key(START + (hours - 1) * HOUR)
    write_requests(folder / "requests.csv", hours)
    text = PIPELINE.format(start=START, end=START + hours * HOUR, file=folder / "requests.csv")
    (folder / "year_pipeline.py").write_text(text)
    rows: list[tuple[str, float]] = []

    def shown(name: str, url: str, awaited: str) -> None:
        rows.append((name, look(page, name, url, awaited)))

    def pages(when: str) -> None:
        shown(f"page of the backfill {when}", f"{running.url}/runs/b/{backfill}", "warehouse / sessions")
        asset = f"{running.url}/assets/warehouse/sessions"
        shown(f"partitions of an asset {when}", f"{asset}?view=partitions", "Materialized (")
        shown(f"asset graph {when}", f"{running.url}/locations/backfill_platform/asset-groups/clickstream", "filled")

    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    memory: dict[str, int] = {}
    over = threading.Event()
    recipient = threading.Thread(target=watch_memory, args=(folder / "home", memory, over))
    try:
        with stack(folder / "home", "year_pipeline", folder) as running, sync_playwright() as playwright:
            recipient.start()
            browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_context(viewport={"width": 1500, "height": 1000}, timezone_id="UTC").new_page()
            page.set_default_timeout(60_000)
            load, clicked = os.getloadavg()[0], time.perf_counter()
            backfill = launch(page, running.url, first, last, hours)
            asked = time.time()
            rows.append(("from opening the list of assets to launched", time.perf_counter() - clicked))
            wait_for(lambda: green(running, "raw/clickstream") > 0)
            pages("while it runs")
            took = running.wait(backfill, asked, load, PATIENCE)
            pages("when it is done")
            counted = {asset: green(running, asset) for asset in ASSETS}
            if set(counted.values()) != {hours}:
                raise SystemExit(f"not every hour is green: {counted}")
            browser.close()
    finally:
        over.set()
        recipient.join()
        if (folder / "home" / "up.log").exists():
            say((folder / "home" / "up.log").read_text()[-2000:])
        shutil.rmtree(folder)
    text = (
        "# A year of hours, by clicks\n\n"
        f"`python -m benchmarks.year_in_ui` on 2 cores ({platform.machine()}), Dagster {version('dagster')}, PySpark "
        f"{version('pyspark')}: {hours:,} hours with {2 * VISITS} events each, five assets, ONE backfill launched in Chromium, "
        f"run by `backfill up`. It was one run, started after {took.started:.0f} s and over after **{took.ended:.0f} s** "
        f"({1000 * took.ended / hours / len(ASSETS):.0f} ms for each of {hours * len(ASSETS):,} asset-hours); the UI said so "
        f"after {took.told:.0f} s. All asset-hours were green. The largest processes, in MiB: "
        f"{', '.join(f'{name} {size:,}' for name, size in sorted(memory.items(), key=lambda item: -item[1])[:3])}.\n\n"
        "| what a person waits for | s |\n|---|---|\n" + "".join(f"| {name} | {seconds:.1f} |\n" for name, seconds in rows)
    )
    sys.stdout.write(text)
    if hours == parser.get_default("hours"):
        RESULTS.write_text(text)


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(2)


if __name__ == "__main__":
    main()
