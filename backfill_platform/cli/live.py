"""The command that follows a pipeline hour by hour: `live`."""

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from backfill_platform.cli import terminal
from backfill_platform.domain.hours import HOUR, HourRange, format_hour, parse_hour
from backfill_platform.settings import load_settings

_AGAIN_SECONDS = 60


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

    It is taken to be the only writer of its tables, so it does not wait until hours are sealed. Exit 1 if hours failed.
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


def _land(platform: Any, declared: Any, hour: datetime) -> bool:
    from backfill_platform.orchestration.run_request import Request
    from backfill_platform.repair.runner import Landing

    asked = Request(reason="live", landing=Landing.MISSING, routine=True)
    report = platform.run(declared, HourRange(hour, hour + HOUR), (declared.raw.table.path,), asked)
    return _told(report, f"{format_hour(hour)}: ")


def _follow(platform: Any, declared: Any, hour: datetime) -> bool:
    from backfill_platform.orchestration.run_request import Request
    from backfill_platform.planning.live import plans_after

    began = time.monotonic()
    well, done = True, []
    for plan in plans_after(declared, platform.lake, hour, datetime.now(UTC)):
        asked = Request(reason=f"live: after {format_hour(hour)}", allow_open_hours=True, routine=True)
        report = platform.run(declared, plan.hours, plan.assets, asked)
        well &= _told(report, f"{plan.hours}: ")
        done += report.outcomes
    built = sum(one.asset[0] != "warehouse" and not one.error for one in done)
    rows = {name: sum(int(str(one.facts.get(name) or 0)) for one in done) for name in ("cancels", "states")}
    took = time.monotonic() - began
    terminal.out.print(
        f"{format_hour(hour)}: landed; built {built} hours of tables; published {rows['states']:,} states and "
        f"{rows['cancels']:,} cancels in {took:.0f} s",
        soft_wrap=True,
    )
    return well


def _told(report: Any, where: str) -> bool:
    if report.interrupted:
        raise KeyboardInterrupt
    if not report.success:
        for one in report.failed:
            terminal.show_error(f"{where}{'/'.join(one.asset)} {format_hour(one.hour)}: {one.error}")
        if not report.failed:
            terminal.show_error(where + report.error)
    return bool(report.success)
