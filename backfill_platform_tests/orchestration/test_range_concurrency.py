"""Runs in processes of their own, with the shipped dagster.yaml: in turns on shared hours, side by side on others."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from backfill_platform.errors import HourLeased
from backfill_platform.examples import clickstream, payments
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.orchestration.range_concurrency import refuse_runs_at_work, wait_for_hours
from backfill_platform.settings import Settings
from backfill_platform_tests.fixtures_stack import ROOT
from backfill_platform_tests.fixtures_warehouse import wait_until

pytestmark = pytest.mark.whole

WORK = 3.0

Start = Callable[..., "Worker"]


class Worker:
    """A run, and when it worked."""

    def __init__(self, home: Path, name: str, bounds: tuple[str, ...], seconds: float) -> None:
        self.out = home / name
        command = [sys.executable, "-m", "backfill_platform_tests.orchestration.range_worker"]
        with open(self.out, "wb") as out, open(home / f"{name}.err", "wb") as err:
            self.process = subprocess.Popen(
                [*command, str(home), name, str(seconds), *bounds],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=err,
            )

    def times(self) -> list[float]:
        """When the work began, and when it ended, as far as it has."""
        return [float(line.split()[2]) for line in self.out.read_text().splitlines()]

    def begun(self) -> bool:
        return bool(self.times())

    def worked(self) -> tuple[float, float]:
        assert self.process.wait(120) == 0, self.out.with_name(self.out.name + ".err").read_text()
        begin, end = self.times()
        return begin, end


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run of hours of 1998-05-01 under a name, or an undo where no hours are given."""
    with dagster_instance(Settings(home=tmp_path, project=ROOT)):
        pass  # the files of the storage are there
    workers = []

    def started(name: str, *hours: int, seconds: float = WORK) -> Worker:
        workers.append(Worker(tmp_path, name, tuple(f"1998-05-01T{hour:02}" for hour in hours), seconds))
        return workers[-1]

    yield started
    for worker in workers:
        worker.process.kill()
        worker.process.wait()


def overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def test_shared_hours_queue_and_other_hours_run_side_by_side(start: Start) -> None:
    # All start together, and so some at the same moment.
    workers = {"first": start("first", 2, 6), "shares": start("shares", 5, 9), "beside": start("beside", 9, 11)}
    found = {name: worker.worked() for name, worker in workers.items()}
    assert not overlap(found["first"], found["shares"])
    assert any(overlap(found["beside"], found[other]) for other in ("first", "shares")), "it had nothing to wait for"


@pytest.mark.parametrize("hours", [(2, 3), ()], ids=["a repair", "an undo, which shares all hours"])
def test_a_later_run_waits_and_nobody_waits_for_the_dead(start: Start, tmp_path: Path, hours: tuple[int, ...]) -> None:
    first = start("first", 2, 6, seconds=600)
    wait_until(first.begun, 60)
    later = start("later", *hours, seconds=0)
    with dagster_instance(Settings(home=tmp_path, project=ROOT)) as instance:
        wait_until(lambda: len(instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))) == 2, 60)
        time.sleep(2)
        assert not later.begun()
        first.process.kill()
        first.process.wait()
        later.worked()


def test_a_migration_is_refused_while_a_run_is_at_work(tmp_path: Path) -> None:
    @dg.op
    def nothing() -> None: ...

    @dg.job(name="clickstream_undo")
    def undo() -> None:
        nothing()

    with dagster_instance(Settings(home=tmp_path, project=ROOT)) as instance:
        run = instance.create_run_for_job(undo, status=dg.DagsterRunStatus.STARTED)
        refuse_runs_at_work(instance, payments.pipeline)
        with pytest.raises(HourLeased, match=f"run {run.run_id[:8]} is at work on all hours of clickstream"):
            refuse_runs_at_work(instance, clickstream.pipeline)
        instance.report_run_failed(run)
        refuse_runs_at_work(instance, clickstream.pipeline)


def test_nobody_says_that_it_waits_for_a_run_that_may_have_to_wait_itself(tmp_path: Path) -> None:
    @dg.op
    def waits(context: dg.OpExecutionContext) -> None:
        wait_for_hours(context, clickstream.pipeline)

    @dg.job(name="clickstream_undo")
    def undo() -> None:
        waits()

    with dagster_instance(Settings(home=tmp_path, project=ROOT)) as instance:
        other = instance.create_run_for_job(undo, status=dg.DagsterRunStatus.STARTING)
        ended = threading.Timer(3, lambda: instance.report_run_failed(other))
        began = time.monotonic()
        ended.start()
        done = undo.execute_in_process(instance=instance)
        ended.join()
        assert time.monotonic() - began > 3, "it has waited"
        assert not [entry for entry in instance.all_logs(done.run_id) if "waiting for run" in entry.user_message]
