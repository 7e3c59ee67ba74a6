"""The commands that look and change nothing: `verify`, `gaps` and `ledger`."""

import sys
from datetime import datetime
from typing import Any

import click

from backfill_platform.cli import terminal
from backfill_platform.cli.options import on_range, pipeline_and_hours, warehouse_of
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import format_hour, merge_hours
from backfill_platform.settings import load_settings


@click.command()
@on_range(required=False)
def verify(pipeline: str, start: str | None, end: str | None, output: str) -> None:
    """Compare the fingerprints of every published hour: lake, net state and FINAL. Exit 1 unless all are equal.

    The column ledger says whether the hour still is what the last repair of it claims to have left.
    """
    found, claims = _survey(pipeline, start, end, claims=True)
    rows = [
        (
            *(str(state.table), hour, str(state.lake[hour]), str(state.net[hour]), str(state.final[hour])),
            claims[state.table.path].get(hour, "none"),
            _equal(state, hour),
        )
        for state in found.tables
        if state.published
        for hour in found.hours
    ]
    columns = ("table", "hour", "lake", "net state", "FINAL", "ledger", "equal")
    if output == "json":
        terminal.show_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        terminal.show_table(f"{found.pipeline} {found.hours}: rows and fingerprints", columns, rows)
    sys.exit(0 if all(row[-1] for row in rows) else 1)


def _equal(state: Any, hour: datetime) -> bool:
    """Whether the hour was built and is the same everywhere; equal because nothing is there does not count."""
    return hour in state.built and bool(state.lake[hour] == state.net[hour] == state.final[hour])


@click.command()
@on_range(required=False)
def gaps(pipeline: str, start: str | None, end: str | None, output: str) -> None:
    """Find damaged hours from data; without a range, in all hours of the pipeline. Exit 1 if there are any."""
    found, _ = _survey(pipeline, start, end)
    if output == "json":
        terminal.show_json(found.gaps)
    elif found.gaps:
        rows = [(gap.table, gap.hour, str(gap.kind), gap.evidence) for gap in found.gaps]
        terminal.show_table(f"{found.pipeline} {found.hours}", ("table", "hour (UTC)", "kind", "evidence"), rows)
        terminal.out.print("repair with:")
        for damaged in merge_hours(gap.hour for gap in found.gaps):
            bounds = f"--from {format_hour(damaged.start)} --to {format_hour(damaged.end)}"
            terminal.out.print(f"    backfill run {found.pipeline} {bounds}", soft_wrap=True)
    else:
        terminal.out.print(f"{found.pipeline} {found.hours}: no gaps in {len(found.hours)} hours")
    sys.exit(1 if found.gaps else 0)


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
    if output == "json":
        terminal.show_json(entries)
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


def _survey(pipeline: str, start: str | None, end: str | None, *, claims: bool = False) -> tuple[Any, dict[Any, Any]]:
    """The state of the range, and if asked for what has become of the ledger's claims, by table."""
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.detection.survey import survey
    from backfill_platform.repair.audit_log import check_claims

    settings = load_settings()
    declared, hours = pipeline_and_hours(settings, pipeline, start, end)
    connections = Connections(settings)
    with warehouse_of(settings) as warehouse:
        found = survey(declared, hours, connections.lake(), warehouse, connections.loading)
        published = [state for state in found.tables if state.published] if claims else []
        return found, {state.table.path: check_claims(warehouse, state.table, state.net) for state in published}
