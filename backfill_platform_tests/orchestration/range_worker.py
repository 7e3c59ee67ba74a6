"""A process that runs hours of the clickstream pipeline, or its undo job, with a sleep for the work.

    python -m backfill_platform_tests.orchestration.range_worker HOME NAME SECONDS [FIRST_HOUR END_HOUR]

Prints a line `NAME begin SECONDS` and one `NAME end SECONDS`, by the clock of the machine.
"""

import sys
import time
import warnings
from pathlib import Path

import dagster as dg

from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import make_plan
from backfill_platform.examples import clickstream
from backfill_platform.orchestration.assets import asset_specs
from backfill_platform.orchestration.dagster_overrides.private_names import Job
from backfill_platform.orchestration.in_process import dagster_instance, run_in_process, run_undo
from backfill_platform.orchestration.partitions import partitions_of
from backfill_platform.orchestration.range_concurrency import repair_job, undo_job_name, wait_for_hours
from backfill_platform.orchestration.run_request import RepairConfig, RunRequest
from backfill_platform.repair.undo import UndoScope
from backfill_platform.settings import Settings
from backfill_platform_tests.fixtures_stack import ROOT

PIPELINE = clickstream.pipeline


def main(home: str, name: str, seconds: str, *bounds: str) -> None:
    for category in (dg.BetaWarning, dg.PreviewWarning):
        warnings.filterwarnings("ignore", category=category)

    def work(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> None:
        wait_for_hours(context, PIPELINE)
        say(name, "begin")
        time.sleep(float(seconds))
        say(name, "end")

    @dg.multi_asset(
        name=PIPELINE.name,
        specs=asset_specs(PIPELINE, partitions_of(PIPELINE)),
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def op(context: dg.AssetExecutionContext, config: RepairConfig):  # type: ignore[no-untyped-def]
        work(context)
        yield from ()

    @dg.op(name=f"{PIPELINE.name}_undo_op", config_schema={"repair": str})
    def undo(context: dg.OpExecutionContext) -> None:
        work(context)

    @dg.job(name=undo_job_name(PIPELINE.name))
    def undo_job() -> None:
        undo()

    jobs: list[Job] = [dg.define_asset_job(repair_job(PIPELINE.name), [op]), undo_job]
    definitions = dg.Definitions(assets=[op], jobs=jobs, executor=dg.in_process_executor)
    with dagster_instance(Settings(home=Path(home), project=ROOT)) as instance:
        if bounds:
            plan = make_plan(PIPELINE.name, PIPELINE.nodes, HourRange.parse(*bounds), [("transformed", "sessions")])
            run_in_process(definitions, instance, pipeline=PIPELINE, plan=plan, request=RunRequest())
        else:
            run_undo(definitions, instance, pipeline=PIPELINE, scope=UndoScope("r"), requester="test")


def say(name: str, what: str) -> None:
    sys.stdout.write(f"{name} {what} {time.time()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
