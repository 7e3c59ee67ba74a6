"""The commands that look and change nothing: `verify`, `gaps` and `ledger`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TextIO

import click

from backfill_platform.cli import terminal
from backfill_platform.cli.options import on_range, pipeline_and_hours, warehouse_of
from backfill_platform.domain.fingerprint import EMPTY, Fingerprint
from backfill_platform.domain.hours import HourRange, merge_hours
from backfill_platform.reports.words import more
from backfill_platform.settings import load_settings

_EQUAL = "equal"
_MOST_RANGES = 10  # of one table and kind
_MOST_COMMANDS = 20


@click.command()
@on_range(required=False)
@click.option("--hours", "by_hour", is_flag=True, help="a line for each hour, with its fingerprints")
def verify(pipeline: str, start: str | None, end: str | None, output: str, by_hour: bool) -> None:
    """Compare the fingerprints of every published hour: lake, net state and FINAL. Exit 1 unless all are equal.

    Each table is one line, and so are hours that are wrong in the same way. With --hours, the column ledger says whether the
    hour still is what the last repair of it claims to have left.
    """
    _, found, claims = _survey(pipeline, start, end, claims=True)
    rows = [
        (
            *(str(state.table), hour, str(state.lake[hour]), str(state.net[hour]), str(state.final[hour])),
            claims[state.table.path].get(hour, "none"),
            _verdict(state, hour) == _EQUAL,
        )
        for state in found.tables
        if state.published
        for hour in found.hours
    ]
    columns = ("table", "hour", "lake", "net state", "FINAL", "ledger", "equal")
    if output != "text":
        terminal.show_records((dict(zip(columns, row, strict=True)) for row in rows), output)
    elif by_hour:
        terminal.show_table(f"{found.pipeline} {found.hours}: rows and fingerprints", columns, rows)
    else:
        _show_verified(found)
    sys.exit(0 if all(row[-1] for row in rows) else 1)


def _show_verified(found: Any) -> None:
    """A line for each table with its totals, and the hours that are not equal, in ranges by what is wrong."""
    summary, wrong = [], []
    for state in found.tables:
        if not state.published:
            continue
        alike: dict[str, list[datetime]] = {}
        for hour in found.hours:
            alike.setdefault(_verdict(state, hour), []).append(hour)
        equal = f"{len(alike.pop(_EQUAL, ())):,} of {len(found.hours):,}"
        sums = (sum((prints[hour] for hour in found.hours), EMPTY) for prints in (state.lake, state.net, state.final))
        summary.append((str(state.table), equal, *map(str, sums)))
        wrong += [(str(state.table), why, _ranges(merge_hours(hours)), len(hours)) for why, hours in alike.items()]
    terminal.show_table(f"{found.pipeline} {found.hours}", ("table", "hours equal", "lake", "net state", "FINAL"), summary)
    if wrong:
        terminal.show_table("not equal; --hours shows each", ("table", "why", "hours (UTC)", "hours"), wrong)


def _verdict(state: Any, hour: datetime) -> str:
    if hour not in state.built:
        return "never built, or lost"
    if state.net[hour] != state.final[hour]:
        return "net state and FINAL disagree"
    return _EQUAL if state.lake[hour] == state.net[hour] else "ClickHouse differs from the lake"


@click.command()
@on_range(required=False)
@click.option("--hours", "by_hour", is_flag=True, help="a line for each hour, and every command")
@click.option(
    "--html", type=click.File("w", encoding="utf-8", lazy=True), help="also write a page: a calendar of hours by table"
)
def gaps(pipeline: str, start: str | None, end: str | None, output: str, by_hour: bool, html: TextIO | None) -> None:
    """Find damaged hours from data; without a range, in all hours of the pipeline. Exit 1 if there are any.

    Hours of a table that are damaged alike are one line. Rows expected are what was written to the lake, or what the
    lake has for a table in ClickHouse; they are not known for an hour that was never built.
    """
    declared, found, _ = _survey(pipeline, start, end)
    commands = _commands(declared, found.gaps) if found.gaps else []
    if html is not None:
        from backfill_platform.reports.gap_calendar import gap_calendar

        html.write(gap_calendar(found, commands))
    if output != "text":
        terminal.show_records((_gap_facts(gap, found.rows[gap.table, gap.hour]) for gap in found.gaps), output)
    elif found.gaps:
        _show_gaps(found, by_hour)
        _show_commands(commands, by_hour)
    else:
        terminal.out.print(f"{found.pipeline} {found.hours}: no gaps in {len(found.hours)} hours")
    sys.exit(1 if found.gaps else 0)


def _gap_facts(gap: Any, rows: Any) -> dict[str, Any]:
    return {**asdict(gap), "rows_expected": rows.expected, "rows_found": rows.found, "share": rows.share}


def _show_gaps(found: Any, by_hour: bool) -> None:
    from backfill_platform.reports.damage import alike

    damaged = len({gap.hour for gap in found.gaps})
    title = f"{found.pipeline} {found.hours}: {damaged} of {len(found.hours)} hours are damaged"
    if by_hour:
        columns = ("table", "hour (UTC)", "kind", "expected", "found", "evidence")
        terminal.show_table(title, columns, [_hour_line(gap, found.rows[gap.table, gap.hour]) for gap in found.gaps])
        return
    terminal.show_table(
        title,
        ("table", "kind", "hours (UTC)", "hours", "expected", "found", "evidence of the first"),
        [
            (one.table, one.kind, _ranges(one.ranges), one.hours, _known(one.rows_expected), one.rows_found, one.evidence)
            for one in alike(found.gaps, found.rows)
        ],
    )


def _hour_line(gap: Any, rows: Any) -> tuple[Any, ...]:
    return gap.table, gap.hour, str(gap.kind), _known(rows.expected), rows.found, gap.evidence


def _known(rows: int | None) -> str:
    """A text also where it is known: a column with both has no numbers."""
    return "unknown" if rows is None else f"{rows:,}"


def _ranges(ranges: Sequence[HourRange]) -> str:
    shown = [str(hours) for hours in ranges[:_MOST_RANGES]]
    return "\n".join([*shown, *more(len(ranges) - _MOST_RANGES, "ranges")])


def _commands(declared: Any, gaps: Any) -> list[str]:
    """The commands that repair the gaps, in the order to run them."""
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.detection.remediation import remedies

    lake = Connections(load_settings()).lake()
    return [one.command for one in remedies(declared, lake, gaps, datetime.now(UTC))]


def _show_commands(commands: Sequence[str], every: bool) -> None:
    shown = commands if every else commands[:_MOST_COMMANDS]
    terminal.out.print("repair with:")
    for command in shown:
        terminal.out.print(f"    {command}", soft_wrap=True)
    if left := more(len(commands) - len(shown), "commands; --hours shows all"):
        terminal.out.print(f"    {left[0]}")


@click.command()
@on_range(required=False)
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="the newest entries to show")
def ledger(pipeline: str, start: str | None, end: str | None, output: str, limit: int) -> None:
    """What repairs did to each hour, and why; newest first."""
    from backfill_platform.adapters.clickhouse.state.ledger import Ledger

    settings = load_settings()
    declared, hours = pipeline_and_hours(settings, pipeline, start, end)
    with warehouse_of(settings) as warehouse:
        entries = Ledger(warehouse).read(pipeline=declared.name, hours=list(hours), limit=limit)
    if output != "text":
        terminal.show_records(entries, output)
        return
    columns = ("finished", "repair", "table", "hour (UTC)", "did", "rows", "cancels", "states", "reason")
    rows = [
        (
            *(f"{e.finished_at:%Y-%m-%d %H:%M:%S}", e.repair_id, e.target, e.hour, f"{e.mode}: {e.status}"),
            *(_rows(e.before, e.after) or f"{e.rows_kept or 0:,}", e.cancels, e.states, e.reason),
        )
        for e in entries
    ]
    terminal.show_table(f"{declared.name} {hours}", columns, rows)


def _rows(before: Fingerprint | None, after: Fingerprint | None) -> str:
    """Row counts; what was published shows both sides."""
    counts = [f"{found.rows:,}" for found in (before, after) if found is not None]
    return " → ".join(counts if before != after else counts[:1])


def _survey(pipeline: str, start: str | None, end: str | None, *, claims: bool = False) -> tuple[Any, Any, dict[Any, Any]]:
    """The pipeline, the state of the range, and if asked for what has become of the ledger's claims, by table."""
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.detection.survey import survey
    from backfill_platform.repair.audit_log import check_claims

    settings = load_settings()
    declared, hours = pipeline_and_hours(settings, pipeline, start, end)
    connections = Connections(settings)
    with warehouse_of(settings) as warehouse:
        found = survey(declared, hours, connections.lake(), warehouse, connections.loading)
        published = [state for state in found.tables if state.published] if claims else []
        return declared, found, {state.table.path: check_claims(warehouse, state.table, state.net) for state in published}
