"""The command that makes tables follow a changed declaration: `migrate`."""

import sys
from typing import Any

import click

from backfill_platform.cli import terminal
from backfill_platform.domain.column_changes import Kind
from backfill_platform.domain.hours import format_hour, merge_hours
from backfill_platform.settings import load_settings


@click.command()
@click.argument("pipeline")
@click.option("--plan", "only_plan", is_flag=True, help="only say what would be done, and change nothing")
@click.option("--drop", "drops", multiple=True, metavar="COLUMN", help="a column that may be dropped; repeatable")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="how to report")
def migrate(pipeline: str, only_plan: bool, drops: tuple[str, ...], output: str) -> None:
    """Make lake and ClickHouse follow the declared columns: added, widened, renamed or dropped ones.

    No row is rewritten. Hours that were built before are stale afterwards, and the ordinary run rebuilds them. Exit 1 when
    something is refused; nothing is changed then. It may be killed, and run again.
    """
    from backfill_platform.cli.platform import open_platform
    from backfill_platform.pipelines.registry import find_pipeline

    with terminal.StepProgress() as progress, open_platform(load_settings()) as platform:
        declared = find_pipeline(platform.pipelines, pipeline)
        progress.say(f"comparing {pipeline} with its declaration")
        planned = platform.plan_migration(declared, drops)
        if not only_plan and not planned.refused:
            planned = platform.migrate(declared, drops)
    if output == "json":
        terminal.show_json(_facts(planned, done=not only_plan and not planned.refused))
    else:
        _show(planned, done=not only_plan)
    sys.exit(1 if planned.refused else 0)


def _rows(planned: Any) -> list[tuple[str, str, str, str]]:
    """Each change with where it is made."""
    rows = []
    for one in planned.tables:
        for change in one.changes:
            places = ["lake"] if change in one.lake else []
            copies = sum(change in stored.changes for stored in one.warehouse)
            if one.warehouse and change in one.warehouse[0].changes:
                places, copies = [*places, "ClickHouse"], copies - 1
            if copies:
                places.append(f"{copies} {'copies' if copies > 1 else 'copy'} (patches, leftovers)")
            what = f"refused: {change}" if change.kind is Kind.REFUSE else str(change)
            rows.append((str(one.table), str(change.kind), what, ", ".join(places)))
    return rows


def _facts(planned: Any, *, done: bool) -> dict[str, Any]:
    changes = [dict(zip(("table", "kind", "what", "where"), row, strict=True)) for row in _rows(planned)]
    stale = {str(one.table): [format_hour(hour) for hour in one.stale] for one in planned.tables if one.stale}
    land = [format_hour(hour) for one in planned.tables for hour in one.to_land]
    return {"pipeline": planned.pipeline, "done": done, "changes": changes, "stale": stale, "to_land": land}


def _show(planned: Any, *, done: bool) -> None:
    if not planned.is_needed:
        terminal.out.print(f"{planned.pipeline}: lake and ClickHouse have the columns that are declared")
    else:
        title = f"{planned.pipeline}: {'nothing was done, because something is refused' if planned.refused else 'done'}"
        title = title if done else f"{planned.pipeline}: what would be done"
        rows = [(table, what, where) for table, _, what, where in _rows(planned)]
        terminal.show_table(title, ("table", "change", "where"), rows)
    if planned.refused:
        return
    stale = [(str(one.table), str(hours), len(hours)) for one in planned.tables for hours in merge_hours(one.stale)]
    if stale:
        terminal.show_table("hours that other code has built", ("table", "hours (UTC)", "hours"), stale)
    for command in _commands(planned):
        terminal.out.print(command, soft_wrap=True)


def _commands(planned: Any) -> list[str]:
    """What lands and rebuilds the hours, in the order to run it."""
    found = []
    for one in planned.tables:
        for hours in merge_hours(one.to_land):
            span = f"--from {format_hour(hours.start)} --to {format_hour(hours.end)}"
            found.append(
                f"fill new raw columns, where the source has them: backfill run {planned.pipeline} {span} --select {one.table}"
            )
    for hours in merge_hours({hour for one in planned.tables for hour in one.stale}):
        span = f"--from {format_hour(hours.start)} --to {format_hour(hours.end)}"
        found.append(f"rebuild with: backfill run {planned.pipeline} {span}")
    return found
