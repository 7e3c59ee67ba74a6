"""Runs of a running `backfill up`: quick ones, stopped ones, killed ones, and several at once."""

import os
import re
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from backfill_platform_tests.devstack.endless_pipeline import flag
from backfill_platform_tests.fixtures_stack import Stack, processes_of
from backfill_platform_tests.fixtures_warehouse import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by Linux's /proc"),
]

ENDLESS = ("raw/endless", "transformed/endless_sessions", "warehouse/endless_sessions")
CLICKSTREAM = ("raw/clickstream", "transformed/sessions", "warehouse/sessions")
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def endless(stack: Stack) -> Iterator[Path]:
    """The file that keeps the sessions of its pipeline from being done; Spark has been warmed, so only they keep it busy."""
    wait_until(lambda: not warming(stack), 120)
    file = flag(stack.home)
    file.touch()
    yield file
    file.unlink(missing_ok=True)


def test_stopping_a_run_stops_its_spark_job_and_leaves_nothing_behind(stack: Stack, endless: Path) -> None:
    first, last = "1998-04-30-22:00", "1998-04-30-23:00"
    backfill = stack.launch_backfill(ENDLESS, first, last)
    run = counting(stack, backfill)
    terminate(stack, run)
    wait_until(lambda: stack.run_status(run) == "CANCELED", 30)
    wait_until(lambda: not spark_is_busy(stack), 20)
    assert stack.partitions("transformed/endless_sessions").get(first) != "MATERIALIZED"
    assert not stack.query("SELECT name FROM system.tables WHERE database = 'transformed' AND name = 'endless_sessions'") or (
        stack.query("SELECT count() FROM transformed.endless_sessions") == [["0"]]
    )

    endless.unlink()
    again = stack.launch_backfill(ENDLESS, first, last)
    wait_until(lambda: stack.backfill_status(again) == "COMPLETED_SUCCESS", 180)
    assert stack.partitions("warehouse/endless_sessions") == {first: "MATERIALIZED", last: "MATERIALIZED"}
    assert list(stack.runs(backfill)) == [run], "what was stopped is not launched again"


def test_a_killed_run_is_launched_again_by_itself(stack: Stack, endless: Path) -> None:
    backfill = stack.launch_backfill(ENDLESS, "1998-04-30-22:00", "1998-04-30-23:00")
    run = counting(stack, backfill)
    endless.unlink()
    (worker,) = [
        int(match[1]) for _, message in stack.messages(run) if (match := re.search(r"for run \(pid: (\d+)\)", message))
    ]
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: stack.backfill_status(backfill) not in ("REQUESTED", "COMPLETING"), 240)
    assert stack.backfill_status(backfill) == "COMPLETED_SUCCESS"
    assert sorted(stack.runs(backfill).values()) == ["FAILURE", "SUCCESS"]


def test_shared_hours_queue_and_other_hours_run_side_by_side(stack: Stack) -> None:
    ranges = {
        "first": ("1998-04-30-22:00", "1998-05-01-02:00"),
        "shares": ("1998-05-01-01:00", "1998-05-01-03:00"),
        "beside": ("1998-05-01-04:00", "1998-05-01-05:00"),
    }
    # Landed before, or an hour whose neighbour is about to be landed would fail.
    landed = stack.launch_backfill(CLICKSTREAM[:1], "1998-04-30-22:00", "1998-05-01-21:00")
    wait_until(lambda: stack.backfill_status(landed) == "COMPLETED_SUCCESS", 180)
    backfills = {name: stack.launch_backfill(CLICKSTREAM[1:], *ends) for name, ends in ranges.items()}
    for backfill in backfills.values():
        wait_until(lambda backfill=backfill: stack.backfill_status(backfill) == "COMPLETED_SUCCESS", 240)  # type: ignore[misc]
    worked = {name: work(stack, *stack.runs(backfill)) for name, backfill in backfills.items()}
    assert not overlap(worked["first"], worked["shares"]), worked
    assert overlap(worked["beside"], worked["first"]) or overlap(worked["beside"], worked["shares"]), worked


def test_backfills_are_looked_at_every_two_seconds(stack: Stack) -> None:
    """Dagster's own daemon takes up to 30 seconds to begin, and 30 to notice the end."""
    requested = time.monotonic()
    backfill = stack.launch_backfill(("raw/clickstream",), "1998-04-30-22:00", "1998-04-30-22:00")
    wait_until(lambda: stack.backfill_status(backfill) == "COMPLETED_SUCCESS", 120)
    took = time.monotonic() - requested
    (run,) = stack.runs(backfill)
    times = [at for at, _ in stack.messages(run)]
    assert took - (max(times) - min(times)) < 15, "it is planned at one tick, and done at another"


def counting(stack: Stack, backfill: str) -> str:
    """The run of the backfill, when it keeps Spark busy with its endless step.

    Not before: the server interrupts a job once, and what then still plans it may miss that (docs/decisions/0013).
    """
    wait_until(lambda: len(stack.runs(backfill)) == 1, 60)
    (run,) = stack.runs(backfill)
    wait_until(lambda: any(message.startswith("step 2 ") for _, message in stack.messages(run)), 120)
    wait_until(lambda: all(spark_is_busy(stack) for _ in range(5)), 60)
    return run


def warming(stack: Stack) -> list[int]:
    """The processes that warm the new Spark server."""
    return [pid for pid, command in processes_of(stack.home).items() if "devstack.warm" in command]


def spark_is_busy(stack: Stack) -> bool:
    """Whether the server of Spark spends more than half a core, for a second: counting takes all, and waiting none."""
    (server,) = [
        pid for pid, command in processes_of(stack.home).items() if "SparkConnectServer" in command and "java" in command
    ]

    def spent() -> float:
        fields = Path(f"/proc/{server}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    seconds = []
    for _ in range(3):
        seconds.append(spent())
        time.sleep(0.5)
    return all(later - earlier > 0.25 for earlier, later in pairwise(seconds))


def terminate(stack: Stack, run: str) -> None:
    """Ask for the end of a run, as the web page does."""
    answer = stack.graphql("mutation($id: String!) { terminateRun(runId: $id) { __typename } }", id=run)
    assert answer["terminateRun"]["__typename"] == "TerminateRunSuccess"


def work(stack: Stack, run: str) -> tuple[float, float]:
    """When a run worked, by its own words: from the beginning of its repair to its end."""
    messages = stack.messages(run)
    (begun,) = [at for at, message in messages if re.match(r"repair r\w+ of", message)]
    return begun, max(at for at, _ in messages)


def overlap(first: tuple[float, float], second: tuple[float, float]) -> bool:
    return first[0] < second[1] and second[0] < first[1]
