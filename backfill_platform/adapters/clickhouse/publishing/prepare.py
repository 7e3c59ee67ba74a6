"""All steps of a repair before the publish: read the facts, then stage and prove a delta. A dry run ends here.

Each hour has its own result: a refused hour stays out of the delta, because a publish takes all of it, and does not stop the
others. Nothing is written outside the staging tables.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.consistency import disagreement, inconsistencies
from backfill_platform.adapters.clickhouse.publishing.desired_rows import validate
from backfill_platform.adapters.clickhouse.publishing.diff import (
    HourDiff,
    describe,
    find_differences,
    merge_parts,
    write_cancels,
    write_states,
)
from backfill_platform.adapters.clickhouse.publishing.leftovers import foreign_rows
from backfill_platform.adapters.clickhouse.publishing.staging import OnStep, Staging, no_step
from backfill_platform.adapters.clickhouse.publishing.versions import exhausted, outdated
from backfill_platform.adapters.clickhouse.sql import hour_from, hour_number, sign_of, target_name
from backfill_platform.adapters.clickhouse.target import Mode
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import format_hour
from backfill_platform.domain.tables import Table
from backfill_platform.errors import BackfillError, ConcurrentWriter, ProofFailed

ROUNDS = 5  # how often hours are removed from a delta and it is built again
ROWS_PER_INSERT = 3_000_000  # rows compared by one statement: bounds the memory of its set and of its block


class Status(StrEnum):
    """What became of an hour."""

    UNCHANGED = "unchanged"  # already as desired; nothing was written
    PROVEN = "proven"  # a delta is staged and proven; what a dry run ends with
    PUBLISHED = "published"  # published and verified
    REFUSED = "refused"  # nothing was written, `error` says why
    UNVERIFIED = "unverified"  # published, but the hour differs from what it should be; staging is kept


@dataclass(frozen=True)
class HourPublish:
    """The result of an hour: its fingerprint before, desired, and after (None where it was not read).

    `inconsistency` is the problem that the rewrite of the partition removes, empty for a consistent hour. `before` is what
    FINAL shows, `net` the net state; they differ only for an inconsistent hour.
    """

    hour: datetime
    status: Status
    before: Fingerprint
    desired: Fingerprint
    after: Fingerprint | None = None
    cancels: int = 0
    states: int = 0
    error: BackfillError | None = None
    inconsistency: str = ""
    net: Fingerprint | None = None

    @property
    def untouched(self) -> int:
        """How many stored rows the repair leaves as they are."""
        return self.before.rows - self.cancels

    @property
    def reason(self) -> str:
        """Why the hour was refused or is not verified; empty otherwise."""
        return str(self.error) if self.error else ""


@dataclass(frozen=True)
class Prepared:
    """A staged, proven delta: what a dry run reports and `publish` takes. `diffs` leaves out refused hours."""

    staging: Staging
    hours: Mapping[datetime, HourPublish]
    diffs: Mapping[datetime, HourDiff]
    samples: int
    rewrite_inconsistent: bool


def prepare(
    staging: Staging,
    hours: Collection[datetime],
    *,
    since: Mapping[datetime, Fingerprint] | None = None,
    samples: int = 5,
    rewrite_inconsistent: bool = False,
    remove_foreign: bool = False,
    on_step: OnStep = no_step,
) -> Prepared:
    """Validate the loaded rows, check each hour for consistency, write the delta, prove and describe it.

    `since` is the net state when the lake was read for these rows: an hour that somebody has written since then is refused
    with ConcurrentWriter, because the rows do not include that. With `rewrite_inconsistent`, an inconsistent hour is compared
    as FINAL shows it, because `publish` first rewrites it so. Hours in which a live writer's rows would be lost that it wrote
    during an earlier publish are refused with OpenHour, unless `remove_foreign`. Writes nothing outside the staging tables.
    Raises CheckFailed when desired rows lie outside the hours.
    """
    repeated = validate(staging, hours)
    desired = fingerprints.states(staging.warehouse, staging.table, hours, source=staging.desired)
    on_step("validated")
    results = look(staging, desired, rewrite_inconsistent=rewrite_inconsistent)
    on_step("fingerprinted")
    for hour, result in results.items():
        if since is not None and hour in since and since[hour] != result.net and result.status is Status.PROVEN:
            results[hour] = refused(result, _written_since(staging.table, hour))
    refusals: dict[datetime, BackfillError] = dict(repeated)
    if not remove_foreign and (differing := to_publish(results)):
        refusals |= foreign_rows(staging, differing)
    for hour, error in refusals.items():
        results[hour] = refused(results[hour], error)
    return described(
        staging, stage_delta(staging, results, on_step), samples=samples, rewrite_inconsistent=rewrite_inconsistent
    )


def look(
    staging: Staging, desired: Mapping[datetime, Fingerprint], *, rewrite_inconsistent: bool
) -> dict[datetime, HourPublish]:
    """What each hour holds now, and what follows: nothing to do, a delta, or a refusal."""
    warehouse, table, target = staging.warehouse, staging.table, staging.target
    if target.replicated:
        warehouse.command(f"SYSTEM SYNC REPLICA {target_name(table)}", doing=f"waiting for the replica of {table} to catch up")
    for _ in range(ROUNDS):
        net = fingerprints.net(warehouse, table, desired.keys())
        final = fingerprints.final(warehouse, table, desired.keys(), target) if table.collapses else net
        differing = {hour: (net[hour], final[hour]) for hour in desired if net[hour] != final[hour]}
        # The difference may come from a write between the two readings.
        if fingerprints.net(warehouse, table, differing) == {hour: net[hour] for hour in differing}:
            break
    inconsistent = inconsistencies(warehouse, target, differing)
    full = exhausted(staging, desired.keys()) if target.version else {}
    results = {}
    for hour in sorted(desired):
        result = HourPublish(hour, Status.PROVEN, final[hour], desired[hour], net=net[hour])
        if hour in differing:
            error = inconsistent.get(hour) or disagreement(table, hour)
            result = replace(result, inconsistency=str(error)) if rewrite_inconsistent else refused(result, error)
        elif hour in full:
            result = refused(result, full[hour])
        elif final[hour] == desired[hour]:
            result = replace(result, status=Status.UNCHANGED, after=final[hour])
        results[hour] = result
    return results


def described(
    staging: Staging, results: Mapping[datetime, HourPublish], *, samples: int, rewrite_inconsistent: bool
) -> Prepared:
    """The staged delta with its description for each hour that is not refused."""
    sound = {hour: result.before for hour, result in results.items() if result.status is not Status.REFUSED}
    delta = {hour: (results[hour].cancels, results[hour].states) for hour in to_publish(results)}
    diffs = describe(staging, sound, delta, samples=samples)
    return Prepared(staging, results, diffs, samples, rewrite_inconsistent)


def to_publish(results: Mapping[datetime, HourPublish]) -> tuple[datetime, ...]:
    """The hours with a delta that is to be published."""
    return tuple(hour for hour, result in results.items() if result.status is Status.PROVEN)


def refused(result: HourPublish, error: BackfillError) -> HourPublish:
    """The result of an hour that is not published, with the reason."""
    return replace(result, status=Status.REFUSED, cancels=0, states=0, error=error)


def stage_delta(staging: Staging, results: Mapping[datetime, HourPublish], on_step: OnStep) -> dict[datetime, HourPublish]:
    """Write and prove the delta of the hours that are to be published, and of no others.

    Hours that fail the proof, or that somebody wrote meanwhile, are refused and the delta is built again without them. Rows
    are only compared within their hour, so leaving one hour out does not change the rows of others, not even within a daily
    partition.
    """
    results = dict(results)
    for _ in range(ROUNDS):
        hours = to_publish(results)
        _write_delta(staging, [results[hour] for hour in hours], on_step)
        failed: dict[datetime, BackfillError] = {**_prove(staging, results, hours)}
        if hours and staging.target.declared_version and staging.target.mode is not Mode.REPLACE:
            failed |= outdated(staging, hours)
        on_step("proven")
        if not failed:
            return results
        now = fingerprints.net(staging.warehouse, staging.table, failed)
        for hour, error in failed.items():
            late = now[hour] != results[hour].net
            results[hour] = refused(results[hour], raced(staging.table, hour) if late else error)
    for hour in to_publish(results):
        results[hour] = refused(results[hour], raced(staging.table, hour))
    _write_delta(staging, [], on_step)
    return results


def _write_delta(staging: Staging, results: list[HourPublish], on_step: OnStep) -> None:
    # Emptied, not created again: a fenced attempt must fail here.
    for name in (staging.differing, staging.delta):
        staging.warehouse.empty(name, doing=f"emptying the delta for {staging.table}")
    for hours in _portions(results):
        find_differences(staging, hours)
        write_cancels(staging, hours)
    on_step("cancels")
    for hours in _portions(results):
        write_states(staging, hours)
    on_step("states")
    if results:
        merge_parts(staging, staging.delta_name)
    on_step("merged")


def _portions(results: list[HourPublish]) -> Iterator[list[datetime]]:
    """The hours in portions of at most ROWS_PER_INSERT rows, at least one hour each."""
    hours: list[datetime] = []
    rows = 0
    for result in results:
        size = result.before.rows + result.desired.rows
        if hours and rows + size > ROWS_PER_INSERT:
            yield hours
            hours, rows = [], 0
        hours.append(result.hour)
        rows += size
    if hours:
        yield hours


def _prove(staging: Staging, results: dict[datetime, HourPublish], hours: Collection[datetime]) -> dict[datetime, ProofFailed]:
    """Fill in the counts of each hour; return the hours where `before + delta` is not `desired`."""
    warehouse, table = staging.warehouse, staging.table
    delta = fingerprints.net(warehouse, table, hours, source=staging.delta)
    counted = warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, countIf({sign_of(table)} = -1), countIf({sign_of(table)} = 1) "
        f"FROM {staging.delta} GROUP BY __hour",
        doing=f"counting the delta for {table}",
    )
    counts = {hour_from(number): (cancels, states) for number, cancels, states in counted}
    for hour in hours:
        cancels, states = counts.get(hour, (0, 0))
        results[hour] = replace(results[hour], cancels=cancels, states=states)
    return {
        hour: ProofFailed(
            f"{table} {format_hour(hour)}: the delta does not add up: {results[hour].before} + {delta[hour]} is not "
            f"{results[hour].desired}; nothing was published. Does the table have a TTL that drops rows of this hour?"
        )
        for hour in hours
        if results[hour].before + delta[hour] != results[hour].desired
    }


def _written_since(table: Table, hour: datetime) -> ConcurrentWriter:
    return ConcurrentWriter(
        f"{table} {format_hour(hour)}: somebody has written the hour since the lake was read for it, and the repair would undo "
        "that; nothing was published. Repair the hour again when the lake has these events"
    )


def raced(table: Table, hour: datetime) -> ConcurrentWriter:
    """The refusal of an hour that somebody else keeps writing."""
    return ConcurrentWriter(
        f"{table} {format_hour(hour)}: a live writer keeps changing the hour between the diff and the publish; nothing was "
        "published. Repair it again when nobody writes it any more; a pipeline's `seal_after` keeps repairs from such hours"
    )
