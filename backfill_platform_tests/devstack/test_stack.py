"""`backfill up` from outside: one per home, stops completely, and recovers after being killed."""

import ctypes
import fcntl
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backfill_platform.devstack.processes import Child
from backfill_platform.domain.hours import HOUR, partition_key
from backfill_platform.examples import clickstream_reference
from backfill_platform.examples.clickstream import REQUESTS_FILE
from backfill_platform_tests.fixtures_stack import (
    COMMAND,
    ROOT,
    STOP_SECONDS,
    Stack,
    Stacks,
    answers,
    environment,
    processes_of,
)
from backfill_platform_tests.fixtures_warehouse import wait_until

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by Linux's /proc"),
]

PARTS = (
    "embedded_clickhouse.server",
    "SparkConnectServer",
    "dagster_overrides.web_server",
    "dagster_overrides.daemon",
    "dagster api grpc",
)
PR_SET_CHILD_SUBREAPER = 36
ORPHAN_SECONDS = 15  # the guard asks, waits ten seconds, and kills

FIRST = datetime(1998, 4, 30, 22, tzinfo=UTC)
ASSETS = ("raw/clickstream", "transformed/sessions", "aggregated/site_hourly", "warehouse/sessions", "warehouse/site_hourly")


def test_a_second_start_on_the_same_home_is_refused(stack: Stack) -> None:
    second = subprocess.run([COMMAND, "up"], cwd=ROOT, env=environment(stack.home), capture_output=True, text=True, timeout=60)
    assert second.returncode == 2
    assert second.stdout == ""
    (line,) = second.stderr.splitlines()
    assert line.startswith("error: ")
    assert str(stack.home) in line
    assert stack.url in line
    assert silent(stack) == [], "the first one must not be harmed"


def test_the_page_plots_the_last_hours_of_a_finished_pipeline(stack: Stack) -> None:
    query = (
        "query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {"
        " partitionKeyConnection(limit: 2, ascending: false) { results } } } }"
    )
    node = stack.graphql(query, key={"path": ["warehouse", "sessions"]})["assetNodeOrError"]
    assert node["partitionKeyConnection"]["results"] == [partition_key(FIRST + n * HOUR) for n in (23, 22)]


def test_spark_that_dies_is_started_again_and_nothing_else(stack: Stack) -> None:
    def pids(part: str) -> set[int]:
        return {pid for pid, command in processes_of(stack.home).items() if part in command}

    others = ("embedded_clickhouse.server", "dagster_overrides.web_server", "dagster_overrides.daemon")
    before, spark = {part: pids(part) for part in others}, pids("SparkConnectServer")
    for pid in spark:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: bool(pids("SparkConnectServer") - spark) and silent(stack) == [], 120)
    assert "Spark has ended with code" in stack.output
    assert {part: pids(part) for part in others} == before
    publish_first_hour(stack.home)


def test_sigterm_ends_everything_even_where_signals_were_ignored(stack: Stack) -> None:
    commands = processes_of(stack.home).values()
    assert [part for part in PARTS if not any(part in command for command in commands)] == [], "these are not recognized"
    assert silent(stack) == []
    stack.process.terminate()
    assert stack.process.wait(STOP_SECONDS) == 0
    assert processes_of(stack.home) == {}
    assert silent(stack) == ["spark", "warehouse", "web"]
    assert not (stack.home / "services.json").exists()
    assert stack.output.splitlines()[-1] == "stopped"


@pytest.fixture
def foster_parent() -> Iterator[None]:
    """This process inherits orphans, as process 1 of a container does."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
    yield
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 0) == 0


@pytest.mark.usefixtures("foster_parent")
def test_stopping_a_part_does_not_wait_for_its_dead_children(tmp_path: Path) -> None:
    command = ["sh", "-c", "sleep 300 & echo started; exec sleep 300"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == b"started\n"
        started = time.monotonic()
        Child("sleep", process, tmp_path / "log").stop()
    assert time.monotonic() - started < 10, "it waited to the end of its patience"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    """A home for the tests that kill."""
    stacks = Stacks(tmp_path_factory.mktemp("killed") / "home")
    yield stacks
    stacks.end()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["backfill up", "the daemon"])
def test_a_killed_stack_leaves_no_orphan_and_the_next_one_continues_its_backfill(own: Stacks, victim: str) -> None:
    killed = own.running()
    publish_first_hour(killed.home)
    backfill, run = start_long_run(killed)
    orphans = processes_of(killed.home).keys() - {killed.process.pid}
    if victim == "the daemon":
        (daemon,) = [pid for pid, command in processes_of(killed.home).items() if "dagster_overrides.daemon run" in command]
        os.kill(daemon, signal.SIGKILL)
        assert killed.process.wait(STOP_SECONDS) == 1, "it ends with the reason, and whoever watches over it starts it again"
    else:
        killed.process.kill()
        killed.process.wait()
    wait_until(lambda: is_free(killed.home), ORPHAN_SECONDS)
    # What follows is short of time: once the home is free, the next one starts.
    wait_until(lambda: not orphans & processes_of(killed.home).keys(), 2)
    assert silent(killed) == ["spark", "warehouse", "web"]

    again = own.running()
    assert_it_goes_on(again, backfill, run)


@pytest.mark.slow
def test_make_up_recovers_from_a_power_failure_and_ends_with_make(own: Stacks) -> None:
    if not (ROOT / ".venv" / "bin" / "backfill").exists():
        pytest.skip("`make up` runs what is in .venv, and there is none")
    lost = own.running()
    publish_first_hour(lost.home)
    backfill, run = start_long_run(lost)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # held first, so that nobody sees another one die
        for pid in processes_of(lost.home):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    lost.process.wait()
    wait_until(lambda: not processes_of(lost.home), 5)

    # What make would install is not the subject: -o says that the environment is there.
    again = own.running(("make", "--no-print-directory", "-o", ".venv/.ready", "up"))
    assert f"run {run[:8]} was cut off" in again.output
    assert_it_goes_on(again, backfill, run)
    publish_first_hour(again.home)  # or the lost run would hold its hours for ever

    again.process.terminate()
    again.process.wait(STOP_SECONDS)
    assert processes_of(again.home) == {}
    assert silent(again) == ["spark", "warehouse", "web"]
    assert not (again.home / "services.json").exists()


def silent(stack: Stack) -> list[str]:
    """The services that do not answer."""
    return sorted(name for name, address in stack.ports().items() if not answers(address))


def is_free(home: Path) -> bool:
    """Whether another `backfill up` would start on this home at once."""
    with open(home / "up.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def publish_first_hour(home: Path) -> None:
    """Publish it from the command line, through the services that are up."""
    command = [COMMAND, "run", "clickstream", "--from", "1998-04-30T22", "--to", "1998-04-30T23"]
    done = subprocess.run(command, cwd=ROOT, env=environment(home), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr


def assert_it_goes_on(stack: Stack, backfill: str, run: str) -> None:
    """The backfill of the rest of the day succeeds by itself, with a second run; no session is lost or doubled."""
    wait_until(lambda: stack.backfill_status(backfill) not in ("REQUESTED", "COMPLETING"), 300)
    assert stack.backfill_status(backfill) == "COMPLETED_SUCCESS"
    runs = stack.runs(backfill)
    assert (runs.pop(run), list(runs.values())) == ("FAILURE", ["SUCCESS"])
    assert stack.partitions("warehouse/sessions") == {partition_key(FIRST + n * HOUR): "MATERIALIZED" for n in range(24)}
    requests, _ = clickstream_reference.read_requests(REQUESTS_FILE)
    expected = len(list(clickstream_reference.sessions(requests, FIRST + 24 * HOUR)))
    assert stack.query("SELECT sum(sign), count() FROM transformed.sessions FINAL") == [[str(expected)] * 2]
    assert stack.query("SELECT sum(sign) FROM transformed.sessions") == [[str(expected)]]


def start_long_run(stack: Stack) -> tuple[str, str]:
    """Have the daemon run the rest of the day; the ids of the backfill and its run, which works in its own process."""
    backfill = stack.launch_backfill(ASSETS, "1998-04-30-23:00", "1998-05-01-21:00")
    wait_until(lambda: bool(stack.runs(backfill)), 90)
    (run,) = stack.runs(backfill)
    wait_until(lambda: any(message.startswith("step 2 ") for _, message in stack.messages(run)), 120)
    workers = [command for command in processes_of(stack.home).values() if re.search("multiprocessing.spawn", command)]
    assert workers, "a run has a process of its own"
    return backfill, run
