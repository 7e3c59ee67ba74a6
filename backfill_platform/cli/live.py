"""The command that follows a pipeline hour by hour: `live`."""

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from backfill_platform.cli import terminal
from backfill_platform.domain.hours import HOUR, HourRange, format_hour, parse_hour
from backfill_platform.domain.plan import Landing, make_plan
from backfill_platform.domain.request import RepairRequest
from backfill_platform.settings import load_settings

if TYPE_CHECKING:
    from backfill_platform.cli.platform import Platform, RunResult
    from backfill_platform.pipelines.spec import Pipeline
    from backfill_platform.repair.outcomes import HourOutcome

_AGAIN_SECONDS = 60
_REQUESTER = "command line"


@click.command()
@click.argument("pipeline")
@click.option("--from", "start", metavar="HOUR", help="first hour (UTC); without, the one after the newest that has landed")
@click.option("--to", "end", metavar="HOUR", help="end, not included (UTC); without, it goes on for as long as hours come")
@click.option("--once", is_flag=True, help="end when all hours that are over have landed, instead of waiting for the next")
@click.option(
    "--delay", default=5, show_default=True, metavar="MINUTES", help="how long after its end the files of an hour are there"
)
def live(pipeline: str, start: str | None, end: str | None, once: bool, delay: int) -> None:
    """Land each hour as it ends, and rebuild and publish what its events change, by the transforms that repairs use.

    It is taken to be the only writer of its tables, so it publishes to open hours. Exit 1 if hours failed.
    """
    settings = load_settings()
    first = None if start is None else parse_hour(start)
    until = None if end is None else parse_hour(end)
    from backfill_platform.cli.platform import open_platform
    from backfill_platform.pipelines.registry import find_pipeline, load_pipelines
    from backfill_platform.planning.live import next_hour

    declared = find_pipeline(load_pipelines(settings.pipelines), pipeline)
    failed = False
    with open_platform(settings) as platform:
        landed = platform.lake.built_hours(declared.raw.table)
        if landed:  # just before whoever followed the pipeline died, perhaps
            failed |= not _follow(platform, declared, max(landed))
        while True:
            now = datetime.now(UTC) - timedelta(minutes=delay)
            hour = next_hour(declared, platform.lake, first, now)
            if hour is not None and (until is None or hour < until):
                if _land(platform, declared, hour):
                    failed |= not _follow(platform, declared, hour)
                    continue
                if once or until is not None:
                    sys.exit(1)
                terminal.show_error(f"trying again in {_AGAIN_SECONDS} seconds")
            elif once or any(last is not None and last <= now for last in (until, declared.end)):
                if failed:
                    terminal.show_error(f"some hours failed; `backfill gaps {pipeline}` tells what is left to repair")
                sys.exit(1 if failed else 0)
            time.sleep(_AGAIN_SECONDS)


def _land(platform: "Platform", declared: "Pipeline", hour: datetime) -> bool:
    plan = make_plan(
        declared.name, declared.nodes, HourRange(hour, hour + HOUR), [declared.raw.table.path], landing=Landing.MISSING
    )
    result = platform.run(declared, plan, RepairRequest(reason="live", requester=_REQUESTER, routine=True))
    return _told(result, f"{format_hour(hour)}: ")


def _follow(platform: "Platform", declared: "Pipeline", hour: datetime) -> bool:
    from backfill_platform.planning.live import plans_after
    from backfill_platform.planning.scope import with_margins

    began, now = time.monotonic(), datetime.now(UTC)
    well = True
    outcomes: list[HourOutcome] = []
    request = RepairRequest(
        reason=f"live: after {format_hour(hour)}", requester=_REQUESTER, allow_open_hours=True, routine=True
    )
    for plan in with_margins(plans_after(declared, platform.lake, hour, now), declared, platform.lake, now):
        result = platform.run(declared, plan, request)
        well &= _told(result, f"{plan.hours}: ")
        outcomes += result.outcomes
    built = sum(outcome.lake is not None and not outcome.error for outcome in outcomes)
    targets = [outcome.target.result for outcome in outcomes if outcome.target is not None]
    states, cancels = sum(target.states for target in targets), sum(target.cancels for target in targets)
    took = time.monotonic() - began
    terminal.out.print(
        f"{format_hour(hour)}: landed; built {built} hours of tables; published {states:,} states and {cancels:,} cancels "
        f"in {took:.0f} s",
        soft_wrap=True,
    )
    return well


def _told(result: "RunResult", where: str) -> bool:
    if result.interrupted:
        raise KeyboardInterrupt
    if not result.success:
        for outcome in result.failed:
            terminal.show_error(f"{where}{'/'.join(outcome.asset)} {format_hour(outcome.hour)}: {outcome.error}")
        if not result.failed:
            terminal.show_error(where + result.error)
    return result.success
