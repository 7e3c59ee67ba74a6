"""The `backfill` command. Exit codes: 0 done, 1 differences found or hours failed, 2 wrong use."""

import sys
from datetime import datetime
from typing import Any

import click

from backfill_platform import terminal
from backfill_platform.cli_check import check
from backfill_platform.cli_kafka import drain, handover, replay, replay_limits
from backfill_platform.cli_live import live
from backfill_platform.cli_options import on_range, pipeline_and_hours, warehouse_of
from backfill_platform.cli_repair import dry_run, plan, run
from backfill_platform.cli_watchers import watchers
from backfill_platform.core.hours import HOUR, HourRange, format_hour, merge_hours, parse_hour
from backfill_platform.core.identity import Fingerprint
from backfill_platform.errors import BackfillError, UsageError
from backfill_platform.settings import load_settings

# Dagster, Spark and pandera take seconds to import; `backfill --help` and wrong use must not wait for them.


class _Group(click.Group):
    """Turns our errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BackfillError as error:
            terminal.show_error(error)
            ctx.exit(2 if isinstance(error, UsageError) else 1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="backfill-platform")
def main() -> None:
    """Find, rebuild, prove and publish damaged hours of event pipelines.

    Ranges are half-open hours in UTC: --from 1998-04-30T22 --to 1998-05-01T00 is two hours.
    """


@main.command()
def up() -> None:
    """Start warehouse, Spark, Dagster UI and daemon; Ctrl-C or TERM stops all of it."""
    from backfill_platform.stack import Services
    from backfill_platform.stack import up as start

    settings = load_settings()

    def ready(services: Services) -> None:
        terminal.out.print(
            f"Dagster UI   {services.web_url}/assets\n"
            f"             choose an asset, Materialize, a range of hours, Launch backfill\n"
            f"Spark        {services.spark_remote}\n"
            f"state        {settings.home}\n"
            f"stop         Ctrl-C, or kill {services.pid}",
            soft_wrap=True,
        )

    sys.exit(start(settings, lambda text: terminal.err.print(text, soft_wrap=True), ready))


@main.command()
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="how to report")
def demo(output: str) -> None:
    """Land, publish, damage, find, repair and verify 24 hours of real web requests; embedded services only."""
    from backfill_platform.demo import run_demo

    sys.exit(run_demo(load_settings(), as_json=output == "json"))


@main.command()
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
    from backfill_platform.local import open_platform
    from backfill_platform.pipelines.registry import find_pipeline, load_pipelines

    settings = load_settings()
    declared = find_pipeline(load_pipelines(settings.pipelines), pipeline)
    with terminal.StepProgress() as progress:
        progress.say(f"undoing {repair}")
        with open_platform(settings) as platform:
            done = platform.undo(declared, repair, hours, tenant)
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


@main.command()
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


@main.command()
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


@main.command()
@on_range(required=False)
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="the newest entries to show")
def ledger(pipeline: str, start: str | None, end: str | None, output: str, limit: int) -> None:
    """What repairs did to each hour, and why; newest first."""
    from backfill_platform.warehouse.ledger import Ledger

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
    from backfill_platform.repair.bookkeeping import check_claims
    from backfill_platform.repair.connect import Connections
    from backfill_platform.repair.detect import survey

    settings = load_settings()
    declared, hours = pipeline_and_hours(settings, pipeline, start, end)
    connections = Connections(settings)
    with warehouse_of(settings) as warehouse:
        found = survey(declared, hours, connections.lake(), warehouse, connections.loading)
        published = [state for state in found.tables if state.published] if claims else []
        return found, {state.table.path: check_claims(warehouse, state.table, state.net) for state in published}


main.add_command(check)
main.add_command(drain)
main.add_command(handover)
main.add_command(live)
main.add_command(plan)
main.add_command(dry_run)
main.add_command(run)
main.add_command(replay)
main.add_command(replay_limits)
main.add_command(watchers)

if __name__ == "__main__":
    main()
