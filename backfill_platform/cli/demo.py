"""The main job on a day of real web requests: land, publish, damage, find, dry-run, repair, prove.

Everything is verified by a recomputation that shares no code with the repair. Running it again, after success or after having
been killed anywhere, ends the same.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import reduce

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.sql import target_name, within
from backfill_platform.cli import terminal
from backfill_platform.cli.platform import Platform, RunResult, open_platform
from backfill_platform.detection.survey import Survey, survey
from backfill_platform.domain.fingerprint import EMPTY, Fingerprint
from backfill_platform.domain.gaps import Gap
from backfill_platform.domain.hours import HOUR, HourRange, format_hour
from backfill_platform.domain.plan import DRY_RUN, WAREHOUSE, AssetPath, make_plan
from backfill_platform.domain.request import RepairRequest
from backfill_platform.domain.tables import Table
from backfill_platform.errors import PermanentError, SettingsError
from backfill_platform.examples import clickstream, clickstream_reference
from backfill_platform.planning.scope import dry_run_assets
from backfill_platform.settings import Settings

PIPELINE = clickstream.pipeline
HOURS = clickstream.HOURS
DROPPED = tuple(HOURS.start + n * HOUR for n in (5, 6, 9))
ALTERED = tuple(HOURS.start + n * HOUR for n in (11, 12))
HALVED = HOURS.start + 14 * HOUR
LOST_IN_LAKE = HOURS.start + 16 * HOUR


@dataclass(frozen=True)
class Summary:
    """What the demo did to one table, and the fingerprints of all its hours together."""

    table: str
    hours_repaired: int
    rows_cancelled: int
    rows_inserted: int
    rows_untouched: int
    damaged: Fingerprint
    repaired: Fingerprint
    recomputed: Fingerprint
    verified_hours: int

    @property
    def proven(self) -> bool:
        """Whether the repaired table is what the recomputation says, hour by hour."""
        return self.repaired == self.recomputed and self.verified_hours == len(HOURS)


def run_demo(settings: Settings, *, as_json: bool) -> int:
    """Run the whole job and show it; returns the exit code, 0 only when everything was verified.

    Raises SettingsError when a real server is configured: the demo damages its tables.
    """
    if settings.clickhouse_url is not None:
        raise SettingsError(
            "the demo damages its own tables and runs on the embedded warehouse only: unset BACKFILL_CLICKHOUSE_URL"
        )
    settings = settings.model_copy(update={"pipelines": (clickstream.__name__,)})
    with terminal.StepProgress() as progress:
        progress.say("starting the warehouse and Dagster")
        with open_platform(settings) as platform:
            platform.listen = progress
            summaries = _job(platform, progress, quiet=as_json)
    if as_json:
        terminal.show_json([{**asdict(one), "proven": one.proven} for one in summaries])
    else:
        _show(summaries, settings)
    return 0 if all(one.proven for one in summaries) else 1


def _job(platform: Platform, progress: terminal.StepProgress, *, quiet: bool) -> list[Summary]:
    def say(text: str) -> None:
        if not quiet:
            terminal.out.print(text, soft_wrap=True)

    everything = (PIPELINE.raw.table.path, *_repair_assets())
    first = _succeed(_run(platform, HOURS, everything, "the first day"))
    say(_landed(first))
    progress.say("recomputing both tables in plain Python")
    recomputed = recompute(platform.warehouse)
    _require_equal(look(platform), recomputed, "after the first publish")
    say("published both tables; the independent recomputation has the same fingerprints in every hour")

    progress.say("damaging ClickHouse and the lake")
    damage(platform)
    damaged = look(platform)
    say("\ndisaster: " + describe_damage())
    if not quiet:
        _show_gaps(damaged.gaps)
    _require_found(damaged.gaps)
    hours = HourRange.covering(gap.hour for gap in damaged.gaps)

    rehearsal = _succeed(_run(platform, hours, dry_run_assets(PIPELINE), "rehearsal"))
    if not quiet:
        for step in rehearsal.steps:
            if step.step.asset[0] == DRY_RUN:
                terminal.show_outcomes(step)
    _require_unchanged(damaged, look(platform))
    repair = _succeed(_run(platform, hours, _repair_assets(), "the repair"))
    progress.say("verifying every hour")
    repaired = look(platform)
    if repaired.gaps:
        raise PermanentError(f"after the repair {len(repaired.gaps)} hours are still damaged, first {repaired.gaps[0]}")
    return [_summary(table, repair, damaged, repaired, recomputed[table.path]) for table in PIPELINE.published]


def _run(platform: Platform, hours: HourRange, assets: tuple[AssetPath, ...], why: str) -> RunResult:
    plan = make_plan(PIPELINE.name, PIPELINE.nodes, hours, assets)
    return platform.run(PIPELINE, plan, RepairRequest(reason=f"demo: {why}", requester="command line"))


def look(platform: Platform) -> Survey:
    """The survey of all hours of the demo."""
    return survey(PIPELINE, HOURS, platform.lake, platform.warehouse)


def recompute(warehouse: Warehouse) -> dict[tuple[str, str], dict[datetime, Fingerprint]]:
    """Fingerprints per hour of what plain Python makes of the file, taken of rows with the target's types."""
    requests, _ = clickstream_reference.read_requests(clickstream.REQUESTS_FILE)
    computed = {
        "sessions": clickstream_reference.sessions(requests, HOURS.end),
        "site_hourly": clickstream_reference.site_hourly(requests, HOURS.end),
    }
    found = {}
    for table in PIPELINE.published:
        rows = [dict(zip(table.column_names, row, strict=True)) for row in computed[table.name]]
        counts = Counter(row[table.hour] for row in rows)
        with Staging(warehouse, table, "recomputed", list(HOURS), exclusive=False) as staging:
            staging.load_rows(rows, {hour: counts[hour] for hour in HOURS})
            found[table.path] = fingerprints.states(warehouse, table, list(HOURS), source=staging.desired)
    return found


def damage(platform: Platform) -> None:
    """What a bad deploy and a broken disk leave behind; see `describe_damage`."""
    sessions, hourly = PIPELINE.published
    for table in (sessions, hourly):
        _mutate(platform.warehouse, table, "DELETE", DROPPED)
    _mutate(platform.warehouse, sessions, "UPDATE bytes = bytes * 2 + 1", ALTERED)
    _mutate(platform.warehouse, hourly, "UPDATE bytes = bytes * 2 + sessions", ALTERED)
    _mutate(platform.warehouse, sessions, "DELETE", (HALVED,), "AND client_id % 2 = 0")
    platform.lake.remove_hours(sessions, [LOST_IN_LAKE])


def describe_damage() -> str:
    """The damage in words."""

    def listed(hours: Iterable[datetime]) -> str:
        return ", ".join(format_hour(hour) for hour in hours)

    return (
        f"{listed(DROPPED)} dropped from ClickHouse; bytes altered in {listed(ALTERED)}; half the sessions of "
        f"{format_hour(HALVED)} lost; {format_hour(LOST_IN_LAKE)} of transformed/sessions removed from the lake"
    )


def _mutate(warehouse: Warehouse, table: Table, change: str, hours: Sequence[datetime], more: str = "") -> None:
    where = within(table, hours)
    warehouse.command(
        f"ALTER TABLE {target_name(table)} {change} WHERE {where.sql} {more}",
        parameters=where.parameters,
        settings={"mutations_sync": 2},
        doing=f"damaging {table}",
    )


def _repair_assets() -> tuple[AssetPath, ...]:
    return tuple(asset for node in PIPELINE.nodes[1:] for asset in node.assets if asset[0] != DRY_RUN)


def _succeed(report: RunResult) -> RunResult:
    if not report.success:
        raise PermanentError(f"run {report.run_id} failed: {report.error}")
    return report


def _landed(report: RunResult) -> str:
    landed = [outcome.lake for outcome in report.outcomes if outcome.asset == PIPELINE.raw.table.path and outcome.lake]
    rows, quarantined = sum(hour.rows for hour in landed), sum(hour.quarantined for hour in landed)
    duplicates = sum(hour.measures["duplicates"] for hour in landed)
    return (
        f"landed {rows:,} rows of {rows + quarantined:,} lines in {len(landed)} hours; {quarantined} quarantined with the "
        f"reason, {duplicates} exact duplicates counted"
    )


def _require_equal(found: Survey, recomputed: dict[AssetPath, dict[datetime, Fingerprint]], when: str) -> None:
    for state in found.tables:
        if not state.published:
            continue
        wanted = recomputed[state.table.path]
        if wrong := [hour for hour in HOURS if not state.net[hour] == state.final[hour] == wanted[hour]]:
            raise PermanentError(
                f"{when}, {state.table} differs from the recomputation in {len(wrong)} hours, first {format_hour(wrong[0])}"
            )


def _require_found(gaps: Sequence[Gap]) -> None:
    """Exactly the damage that was done must be found, hour by hour."""
    found = {(gap.table, gap.hour) for gap in gaps}
    sessions, hourly = (f"{WAREHOUSE}/{table.name}" for table in PIPELINE.published)
    done = {(sessions, hour) for hour in (*DROPPED, *ALTERED, HALVED)} | {(hourly, hour) for hour in (*DROPPED, *ALTERED)}
    done.add((str(PIPELINE.published[0]), LOST_IN_LAKE))
    if found != done:
        raise PermanentError(f"the detector found {sorted(found - done)} too much and missed {sorted(done - found)}")


def _require_unchanged(before: Survey, after: Survey) -> None:
    if before != after:
        raise PermanentError("the dry run changed something; it must not")


def _summary(
    table: Table, repair: RunResult, damaged: Survey, repaired: Survey, recomputed: dict[datetime, Fingerprint]
) -> Summary:
    asset = (WAREHOUSE, table.name)
    results = [outcome.target.result for outcome in repair.outcomes if outcome.asset == asset and outcome.target]
    before, after = (next(state for state in found.tables if state.table == table) for found in (damaged, repaired))
    cancelled, inserted = sum(result.cancels for result in results), sum(result.states for result in results)
    return Summary(
        table=f"{WAREHOUSE}/{table.name}",
        hours_repaired=sum(bool(result.cancels or result.states) for result in results),
        rows_cancelled=cancelled,
        rows_inserted=inserted,
        rows_untouched=_total(before.net).rows - cancelled,
        damaged=_total(before.net),
        repaired=_total(after.net),
        recomputed=_total(recomputed),
        verified_hours=sum(after.net[hour] == after.final[hour] == recomputed[hour] for hour in HOURS),
    )


def _total(prints: Mapping[datetime, Fingerprint]) -> Fingerprint:
    return reduce(Fingerprint.__add__, prints.values(), EMPTY)


def _show_gaps(gaps: Sequence[Gap]) -> None:
    rows = [(gap.table, gap.hour, str(gap.kind), gap.evidence) for gap in gaps]
    terminal.show_table("found from the data", ("table", "hour (UTC)", "kind", "evidence"), rows)


def _show(summaries: Sequence[Summary], settings: Settings) -> None:
    columns = ("", *(one.table for one in summaries))
    rows = [
        ("hours repaired", *(one.hours_repaired for one in summaries)),
        ("rows cancelled", *(one.rows_cancelled for one in summaries)),
        ("rows inserted", *(one.rows_inserted for one in summaries)),
        ("rows left untouched", *(one.rows_untouched for one in summaries)),
        ("fingerprint damaged", *(str(one.damaged) for one in summaries)),
        ("fingerprint repaired", *(str(one.repaired) for one in summaries)),
        ("fingerprint recomputed", *(str(one.recomputed) for one in summaries)),
        ("hours equal to the recomputation", *(f"{one.verified_hours} of {len(HOURS)}" for one in summaries)),
        ("verdict", *("proven" if one.proven else "NOT EQUAL" for one in summaries)),
    ]
    terminal.show_table(f"\nthe repair of {HOURS}", columns, rows)
    terminal.out.print(f"state is in {settings.home}; look at it with `make up`", soft_wrap=True)
