"""One hour, from the click to verified: `python -m benchmarks.one_hour [--hours N]`.

`backfill up` on a home of its own, a day of real requests landed, then one backfill after the other for a single hour of
sessions and site metrics, built, published and verified, asked for as the Dagster UI asks (GraphQL). The stack is started three
times: to land; to ask at once when it is ready; and to ask when its Spark server has been warmed. Every hour is published for
the first time, and must be materialized in the end.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backfill_platform.core.hours import partition_key
from backfill_platform.pipelines import clickstream

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results-one-hour.md"
HOURS = [partition_key(hour) for hour in clickstream.HOURS]
RAW = ("raw/clickstream",)
DERIVED = ("transformed/sessions", "warehouse/sessions", "aggregated/site_hourly", "warehouse/site_hourly")
PATIENCE = 600
POLL = 0.1


@dataclass(frozen=True)
class Took:
    """Seconds from asking: until the run started, until it had ended, until the backfill said so. And the machine's load."""

    started: float
    ended: float
    told: float
    load: float


class Stack:
    """A running `backfill up`."""

    def __init__(self, home: Path, process: "subprocess.Popen[bytes]") -> None:
        self.home = home
        self.process = process
        self.url = ""

    def graphql(self, query: str, **variables: object) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        if "errors" in answer:
            raise SystemExit(str(answer["errors"]))
        return answer["data"]

    def backfill(self, assets: tuple[str, ...], first: str, last: str) -> Took:
        wanted = [
            {"assetKey": {"path": asset.split("/")}, "partitions": {"range": {"start": first, "end": last}}} for asset in assets
        ]
        load, asked = os.getloadavg()[0], time.time()
        made = self.graphql(
            "mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {"
            " __typename ... on LaunchBackfillSuccess { backfillId } } }",
            p={"partitionsByAssets": wanted},
        )["launchPartitionBackfill"]
        query = (
            "query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill {"
            " status runs(limit: 5) { status startTime endTime } } } }"
        )
        while time.time() < asked + PATIENCE:
            found = self.graphql(query, id=made["backfillId"])["partitionBackfillOrError"]
            if found["status"] not in ("REQUESTED", "COMPLETING"):
                (run,) = found["runs"]
                if (found["status"], run["status"]) != ("COMPLETED_SUCCESS", "SUCCESS"):
                    raise SystemExit(f"{first}: {found}")
                return Took(run["startTime"] - asked, run["endTime"] - asked, time.time() - asked, load)
            time.sleep(POLL)
        raise SystemExit(f"{first}: not done after {PATIENCE} s")

    def wait_until_warm(self) -> float:
        """Seconds until the process that warms Spark is over."""
        began = time.time()
        while any(b"repair.warm" in command for command in self._commands()):
            time.sleep(POLL)
        return time.time() - began

    def _commands(self) -> Iterator[bytes]:
        marker = f"BACKFILL_HOME={self.home}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if marker in (folder / "environ").read_bytes().split(b"\0"):
                    yield (folder / "cmdline").read_bytes()


@contextmanager
def stack(home: Path) -> Iterator[Stack]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("BACKFILL_")},
        "BACKFILL_HOME": str(home),
        "BACKFILL_PROJECT": str(ROOT),
        "BACKFILL_PIPELINES": json.dumps([clickstream.__name__]),
        "BACKFILL_WEB_PORT": "0",
        "PYTHONPATH": str(ROOT),
    }
    home.mkdir(exist_ok=True)
    with open(home / "up.log", "ab") as out:
        command = [sys.executable, "-m", "backfill_platform.cli", "up"]
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    found = Stack(home, process)
    try:
        deadline = time.time() + PATIENCE
        while not found.url:
            if process.poll() is not None or time.time() > deadline:
                raise SystemExit((home / "up.log").read_text())
            with suppress(OSError, ValueError):
                found.url = json.loads((home / "services.json").read_text())["web_url"]
            time.sleep(POLL)
        yield found
    finally:
        process.terminate()
        process.wait()


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def line(what: str, took: list[Took]) -> str:
    def cell(name: str) -> str:
        values = [getattr(one, name) for one in took]
        spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
        return f"{statistics.median(values):.1f}{spread}"

    load = f"{min(one.load for one in took):.1f} to {max(one.load for one in took):.1f}"
    return f"| {what} | {len(took)} | {cell('started')} | **{cell('ended')}** | {cell('told')} | {load} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=6, help="how many after the first of a start")
    wanted = parser.parse_args().hours
    lines, hours, folder = "", iter(HOURS[2:]), Path(tempfile.mkdtemp())
    home = folder / "home"
    try:
        with stack(home) as running:
            landed = running.backfill(RAW, HOURS[0], HOURS[-1])
            say(f"landed: {landed}\n")
        for warmed in (False, True):
            with stack(home) as running:
                waited = running.wait_until_warm() if warmed else 0.0
                say(f"warming went on for {waited:.1f} s\n")
                took = []
                for number, hour in zip(range(wanted + 1), hours, strict=False):
                    took.append(running.backfill(DERIVED, hour, hour))
                    say(f"{hour}: {took[number]}\n")
                first = (
                    f"the first, {waited:.0f} s later, when Spark is warm"
                    if warmed
                    else "the first, at once when `up` is ready"
                )
                lines += line(first, took[:1]) + line("the next ones", took[1:])
    finally:
        shutil.rmtree(folder)
    text = HEAD.format(
        cores=len(os.sched_getaffinity(0)),
        machine=platform.machine(),
        spark=version("pyspark"),
        dagster=version("dagster"),
        day=timedelta(hours=len(HOURS)) // timedelta(hours=1),
    )
    say(text + lines)
    if wanted == parser.get_default("hours"):
        RESULTS.write_text(text + lines)


HEAD = """# One hour, from the click to verified

`python -m benchmarks.one_hour` on {cores} cores ({machine}), PySpark {spark}, Dagster {dagster}: backfills of a single hour of
the shipped clickstream ({day} hours of real requests are landed), sessions and site metrics built, published and verified,
asked for by GraphQL as the Dagster UI does. Seconds from asking, medians and spread; the load is the machine's one-minute
average when it was asked, other work included.

| backfill | number | run started, s | run ended: published and verified, s | the UI says done, s | load |
|---|---|---|---|---|---|
"""


if __name__ == "__main__":
    main()
