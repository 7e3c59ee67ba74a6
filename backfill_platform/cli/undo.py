"""The command that takes back what a repair published: `undo`."""

import sys

import click

from backfill_platform.cli import terminal
from backfill_platform.domain.hours import HOUR, HourRange, parse_hour
from backfill_platform.errors import UsageError
from backfill_platform.settings import load_settings


@click.command()
@click.argument("pipeline")
@click.argument("repair")
@click.option("--from", "start", metavar="HOUR", help="first hour to undo (UTC); all hours of the repair without a range")
@click.option("--to", "end", metavar="HOUR", help="end of the hours to undo, not included (UTC)")
@click.option("--hour", metavar="HOUR", help="the only hour to undo (UTC)")
@click.option("--tenant", help="undo the rows of this tenant only; tables without a tenant column stay as they are")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="how to report")
def undo(
    pipeline: str, repair: str, start: str | None, end: str | None, hour: str | None, tenant: str | None, output: str
) -> None:
    """Take back what a repair published, where the rows still are what it wrote. Exit 1 if some are not (conflicts)."""
    if (start is None) != (end is None):
        raise UsageError("give both --from and --to, or none of them")
    if hour is not None and start is not None:
        raise UsageError("give --hour or a range, not both")
    hours = HourRange.parse(start, end) if start and end else None
    if hour is not None:
        hours = HourRange(parse_hour(hour), parse_hour(hour) + HOUR)
    from backfill_platform.cli.platform import open_platform
    from backfill_platform.pipelines.registry import find_pipeline, load_pipelines
    from backfill_platform.repair.undo import UndoScope

    settings = load_settings()
    declared = find_pipeline(load_pipelines(settings.pipelines), pipeline)
    with terminal.StepProgress() as progress:
        progress.say(f"undoing {repair}")
        with open_platform(settings) as platform:
            done = platform.undo(declared, UndoScope(repair, hours, tenant))
    if output == "json":
        terminal.show_json(done)
    else:
        rows = [(one["table"], len(one["hours"]), one["rows"], one["conflicts"]) for one in done["tables"]]
        terminal.show_table(f"undo of {repair}: {done['repair']}", ("table", "hours", "rows taken back", "conflicts"), rows)
        shown = [(one["table"], c["hour"], c["key"]) for one in done["tables"] for c in one["shown"]]
        if shown:
            terminal.show_table("left alone, because they have changed since", ("table", "hour (UTC)", "key"), shown)
        if any(one["rows"] for one in done["tables"]):
            terminal.out.print(f"take this back with: backfill undo {pipeline} {done['repair']}", soft_wrap=True)
    sys.exit(1 if any(one["conflicts"] for one in done["tables"]) else 0)
