"""The commands about rejected rows: `quarantine` lists them, `requeue` sends raw lines through the parser again."""

import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from backfill_platform.cli import terminal
from backfill_platform.cli.options import on_range, pipeline_and_hours, reason_text
from backfill_platform.domain.hours import HourRange, format_hour
from backfill_platform.settings import load_settings

if TYPE_CHECKING:
    from backfill_platform.cli.platform import RunResult

_COLUMNS = ("hour (UTC)", "taken", "moved", "still rejected", "why")


@click.command()
@on_range(required=False)
def quarantine(pipeline: str, start: str | None, end: str | None, output: str) -> None:
    """List the rows that checks have rejected, by table and check; without a range, of all hours of the pipeline.

    A row that failed several checks counts for each of them.
    """
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.detection.quarantine import rejected

    settings = load_settings()
    declared, hours = pipeline_and_hours(settings, pipeline, start, end)
    found = rejected(declared, Connections(settings).lake(), hours)
    if output != "text":
        terminal.show_records((asdict(one) for one in found), output)
        return
    if not found:
        terminal.out.print(f"{declared.name} {hours}: nothing is in quarantine")
        return
    rows = [
        (
            one.table,
            one.check,
            one.rows,
            one.hours,
            f"{format_hour(one.first_hour)} to {format_hour(one.last_hour)}",
            one.sample,
        )
        for one in found
    ]
    columns = ("table", "rejected for", "rows", "hours", "first and last hour (UTC)", "one of them")
    terminal.show_table(f"{declared.name} {hours}: in quarantine", columns, rows)


@click.command()
@on_range()
@click.option(
    "--rejected-for",
    "reasons",
    multiple=True,
    metavar="CHECK",
    help="only lines that were rejected for this check, as `backfill quarantine` names it; repeatable. Without: all",
)
@reason_text
@click.option("--dry-run", "rehearse", is_flag=True, help="only say what would become of the lines; nothing is written")
def requeue(
    pipeline: str,
    start: str,
    end: str,
    output: str,
    reasons: tuple[str, ...],
    reason: str,
    rehearse: bool,
) -> None:
    """Parse quarantined raw lines again, as after a corrected parser; those that pass become rows of their hour.

    The source is not read, so it may be gone. Each line is moved once, however often this runs. Tables computed from the hours
    are stale then, until they are built again. Exit 1 if hours failed.
    """
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.detection.quarantine import check_reasons
    from backfill_platform.repair.requeue import check_requeue

    settings = load_settings()
    declared, hours = pipeline_and_hours(settings, pipeline, start, end)
    check_requeue(declared)
    check_reasons(declared, Connections(settings).lake(), hours, reasons)
    if rehearse:
        _rehearse(settings, declared, hours, reasons, output)
        return
    from backfill_platform.cli.platform import open_platform
    from backfill_platform.cli.run_output import show_document, show_verdict
    from backfill_platform.domain.plan import requeue_plan
    from backfill_platform.domain.request import RepairRequest

    plan = requeue_plan(declared.name, declared.nodes[0], hours, reasons)
    with terminal.StepProgress() as progress:
        progress.say("opening the lake, the warehouse and Dagster")
        with open_platform(settings) as platform:
            platform.listen = progress
            result = platform.run(declared, plan, RepairRequest(reason=reason, requester="command line"))
    if output == "json":
        show_document([result])
    elif output == "jsonl":
        show_verdict([result])
    else:
        _show(declared.name, str(declared.raw.table), hours, result)
    sys.exit(0 if result.success else 1)


def _rehearse(settings: Any, declared: Any, hours: HourRange, reasons: tuple[str, ...], output: str) -> None:
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.cli.platform import open_spark
    from backfill_platform.repair.requeue import hours_with_rejects, rehearse_requeue

    lake = Connections(settings).lake()
    chosen = hours_with_rejects(lake, declared, hours, reasons)
    with terminal.StepProgress() as progress:
        progress.say("parsing the quarantined lines")
        if chosen:
            with open_spark(settings) as spark:
                found = rehearse_requeue(spark, lake, declared, chosen, reasons)
        else:
            found = {}
    if output != "text":
        terminal.show_records(({"hour": hour, **asdict(one)} for hour, one in found.items()), output)
        return
    rows = [
        (hour, one.taken, one.moved, sum(one.stayed.values()), _why(f"{why} ({count})" for why, count in one.stayed.items()))
        for hour, one in found.items()
    ]
    terminal.show_table(f"{declared.name} {hours}: what would become of quarantined lines", _COLUMNS, rows)
    moved, taken = (sum(getattr(one, name) for one in found.values()) for name in ("moved", "taken"))
    terminal.out.print(f"{moved:,} of {taken:,} lines would move to {declared.raw.table}; nothing was written", soft_wrap=True)


def _show(pipeline: str, table: str, hours: HourRange, result: "RunResult") -> None:
    rows = []
    moved = left = 0
    for outcome in sorted(result.outcomes, key=lambda one: one.hour):
        lake = outcome.lake
        came = lake.measures.get("requeued", 0) if lake and not outcome.error else 0
        stays = lake.quarantined if lake and not outcome.error else None
        moved, left = moved + came, left + (stays or 0)
        rows.append((outcome.hour, came, "" if stays is None else stays, outcome.error))
    if rows:
        terminal.show_table(f"{pipeline} {hours}", ("hour (UTC)", "moved", "in quarantine", "error"), rows)
    if result.report.error:
        terminal.show_error(result.report.error)
    name = result.report.subject.repair_id
    terminal.out.print(f"{moved:,} lines moved to {table}, {left:,} are in quarantine ({name})", soft_wrap=True)
    if moved:
        terminal.out.print(f"what is computed from these hours is stale: backfill gaps {pipeline}", soft_wrap=True)


def _why(reasons: Iterable[str]) -> str:
    return ", ".join(reasons)
