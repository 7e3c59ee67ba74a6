"""`backfill up` as a process of its own, what tests ask it, and what they see of it from outside.

A start takes half a minute, so tests share one: `stack` is the running one, started anew only after a test has ended it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from backfill_platform.adapters.clickhouse.embedded_endpoint import running_url
from backfill_platform_tests.fixtures_warehouse import raw, wait_until

ROOT = Path(__file__).parents[1]
COMMAND = str(Path(sys.executable).with_name("backfill"))
PIPELINES = (
    "backfill_platform.examples.clickstream",
    "backfill_platform.examples.payments",
    "backfill_platform.examples.playbacks",
    "backfill_platform_tests.browser.failing_pipeline",
    "backfill_platform_tests.devstack.endless_pipeline",
)
START_SECONDS = 180
STOP_SECONDS = 60

# As a script that ends in `backfill up &` hands it over, and worse: both signals are ignored when it starts.
DEAF = ("sh", "-c", 'trap "" INT TERM; exec "$@"', "sh")


@dataclass(frozen=True)
class Stack:
    """A running `backfill up`: the process that was started, and what it says of itself in its home."""

    home: Path
    process: "subprocess.Popen[bytes]"
    url: str
    spark_remote: str
    warehouse_url: str

    def graphql(self, query: str, **variables: object) -> Any:
        """The `data` of an answer of the web page's server."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def launch_backfill(self, assets: Sequence[str], first: str, last: str) -> str:
        """Ask for the partitions from `first` to `last` of the assets, as the web page does; the id of the backfill."""
        selection = [
            {"assetKey": {"path": asset.split("/")}, "partitions": {"range": {"start": first, "end": last}}} for asset in assets
        ]
        answer = self.graphql(
            "mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {"
            " __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }",
            p={"partitionsByAssets": selection},
        )["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        return str(answer["backfillId"])

    def runs(self, backfill: str) -> dict[str, str]:
        """The runs of a backfill and their status."""
        query = (
            "query($id: String!) { partitionBackfillOrError(backfillId: $id) {"
            " ... on PartitionBackfill { runs(limit: 100) { id status } } } }"
        )
        runs = self.graphql(query, id=backfill)["partitionBackfillOrError"]["runs"]
        return {run["id"]: run["status"] for run in runs}

    def backfill_status(self, backfill: str) -> str:
        """The status of a backfill."""
        query = "query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } } }"
        return str(self.graphql(query, id=backfill)["partitionBackfillOrError"]["status"])

    def messages(self, run: str) -> list[tuple[float, str]]:
        """What a run has logged, and when in seconds since 1970."""
        query = (
            "query($id: ID!) { runOrError(runId: $id) { ... on Run { eventConnection { events {"
            " ... on MessageEvent { message timestamp } } } } } }"
        )
        events = self.graphql(query, id=run)["runOrError"]["eventConnection"]["events"]
        return [(float(event["timestamp"]) / 1000, event["message"]) for event in events]

    def run_status(self, run: str) -> str:
        """The status of a run."""
        query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
        return str(self.graphql(query, id=run)["runOrError"]["status"])

    def partitions(self, asset: str) -> dict[str, str]:
        """The status of each partition that has one, such as MATERIALIZED or FAILED; the others are missing."""
        answer = self.graphql(
            "query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {"
            " partitionKeys assetPartitionStatuses { ... on TimePartitionStatuses {"
            " ranges { status startKey endKey } } } } } }",
            key={"path": asset.split("/")},
        )["assetNodeOrError"]
        keys = answer["partitionKeys"]
        return {
            key: span["status"]
            for span in answer["assetPartitionStatuses"]["ranges"]
            for key in keys[keys.index(span["startKey"]) : keys.index(span["endKey"]) + 1]
        }

    def query(self, sql: str) -> list[list[str]]:
        """The rows of a query, straight from the warehouse."""
        answer = raw(self.warehouse_url, f"{sql} FORMAT TabSeparated".encode())
        assert answer.status == 200, answer.body
        return [line.split("\t") for line in answer.body.decode().splitlines()]

    def ports(self) -> dict[str, tuple[str, int]]:
        """The addresses on which it listens."""
        urls = {"web": self.url, "spark": self.spark_remote, "warehouse": self.warehouse_url}
        return {name: (str(urlsplit(url).hostname), urlsplit(url).port or 0) for name, url in urls.items()}

    @property
    def output(self) -> str:
        """What it has printed."""
        return output_of(self.home)


class Stacks:
    """Starts `backfill up` on one home when a test first needs it, and again when a test has ended it."""

    def __init__(self, home: Path, pipelines: Sequence[str] = PIPELINES) -> None:
        self.home = home
        self.pipelines = pipelines
        self._process: subprocess.Popen[bytes] | None = None
        self._stack: Stack | None = None

    def running(self, command: Sequence[str] = (*DEAF, COMMAND, "up")) -> Stack:
        """The running one, or one started by the command."""
        if self._stack is None or self._stack.process.poll() is not None:
            self._stack = self._start(command)
        return self._stack

    def _start(self, command: Sequence[str]) -> Stack:
        self.home.mkdir(parents=True, exist_ok=True)
        with open(self.home / "up.log", "wb") as out:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment(self.home, self.pipelines), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        self._process = process

        def services_of_start() -> Mapping[str, Any]:
            assert process.poll() is None, f"`backfill up` ended with {process.returncode}:\n{output_of(self.home)}"
            with suppress(OSError, ValueError):
                services: dict[str, Any] = json.loads((self.home / "services.json").read_text())
                # A killed one leaves the file behind; this start's is of a process that was not there before.
                if services["pid"] in processes_of(self.home):
                    return services
            return {}

        wait_until(lambda: bool(services_of_start()), START_SECONDS)
        services = services_of_start()
        warehouse = running_url(self.home / "warehouse")
        assert warehouse is not None
        return Stack(self.home, process, services["web_url"], services["spark_remote"], warehouse)

    def end(self) -> None:
        """Stop it, and kill what does not stop: tests of stopping look for themselves."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        for pid in processes_of(self.home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()


def environment(home: Path, pipelines: Sequence[str] = PIPELINES) -> dict[str, str]:
    """The environment of a command on this home with these pipelines; nothing of the tester's own settings gets in."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "MAKE", "MFLAGS"))}
    return {
        **ours,
        "BACKFILL_HOME": str(home),
        "BACKFILL_PROJECT": str(ROOT),
        # The tests' own pipeline is not installed, and a console script does not look into the working directory.
        "PYTHONPATH": str(ROOT),
        "BACKFILL_PIPELINES": json.dumps(list(pipelines)),
        "BACKFILL_WEB_PORT": "0",
        "BACKFILL_SPARK_MASTER": "local[2]",
        "BACKFILL_SPARK_DRIVER_MEMORY": "1g",
    }


def processes_of(home: Path) -> dict[int, str]:
    """The processes that live on this home, by id, with their command lines.

    They are known by the environment that they inherit, so none gets away by a session, a group or a parent of its own.
    """
    marker = f"BACKFILL_HOME={home}".encode()
    commands = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return commands


def answers(address: tuple[str, int]) -> bool:
    """Whether anything listens there."""
    try:
        socket.create_connection(address, timeout=2).close()
    except OSError:
        return False
    return True


def output_of(home: Path) -> str:
    """What `backfill up` of this home has printed."""
    return (home / "up.log").read_text(errors="replace")


@pytest.fixture(scope="session")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    """One home for the whole test session."""
    shared = Stacks(tmp_path_factory.mktemp("stack") / "home")
    yield shared
    shared.end()


@pytest.fixture
def stack(stacks: Stacks) -> Stack:
    """A running `backfill up`, shared with other tests."""
    return stacks.running()
