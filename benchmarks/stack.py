"""A `backfill up` of its own, asked by GraphQL as the Dagster UI asks."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
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
        """Ask for a range of hours, both included, and wait until it is done in one run."""
        wanted = [
            {"assetKey": {"path": asset.split("/")}, "partitions": {"range": {"start": first, "end": last}}} for asset in assets
        ]
        load, asked = os.getloadavg()[0], time.time()
        made = self.graphql(
            "mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {"
            " __typename ... on LaunchBackfillSuccess { backfillId } } }",
            p={"partitionsByAssets": wanted},
        )["launchPartitionBackfill"]
        return self.wait(made["backfillId"], asked, load)

    def wait(self, backfill: str, asked: float, load: float, patience: float = PATIENCE) -> Took:
        """Until a backfill is done. Exits where it has failed, or needs more than `patience` seconds or another number of
        runs than one."""
        query = (
            "query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill {"
            " status runs(limit: 5) { status startTime endTime } } } }"
        )
        while time.time() < asked + patience:
            found = self.graphql(query, id=backfill)["partitionBackfillOrError"]
            if found["status"] not in ("REQUESTED", "COMPLETING"):
                (run,) = found["runs"]
                if (found["status"], run["status"]) != ("COMPLETED_SUCCESS", "SUCCESS"):
                    raise SystemExit(f"{backfill}: {found}")
                return Took(run["startTime"] - asked, run["endTime"] - asked, time.time() - asked, load)
            time.sleep(POLL)
        raise SystemExit(f"{backfill}: not done after {patience} s")

    def wait_until_warm(self) -> float:
        """Seconds until the process that warms Spark is over."""
        began = time.time()
        while any(b"devstack.warm" in command for command in self._commands()):
            time.sleep(POLL)
        return time.time() - began

    def _commands(self) -> Iterator[bytes]:
        marker = f"BACKFILL_HOME={self.home}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if marker in (folder / "environ").read_bytes().split(b"\0"):
                    yield (folder / "cmdline").read_bytes()


@contextmanager
def stack(home: Path, pipelines: str, more_modules: Path = ROOT) -> Iterator[Stack]:
    """`backfill up` in a home, with the pipelines of one module, found in `more_modules` or the project."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("BACKFILL_")},
        "BACKFILL_HOME": str(home),
        "BACKFILL_PROJECT": str(ROOT),
        "BACKFILL_PIPELINES": json.dumps([pipelines]),
        "BACKFILL_WEB_PORT": "0",
        "PYTHONPATH": f"{more_modules}{os.pathsep}{ROOT}",
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
