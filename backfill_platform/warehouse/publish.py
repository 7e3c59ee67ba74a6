"""The publish protocol for targets without dependent views, not replicated: facts first, one atomic statement last.

    with Staging(warehouse, table, attempt) as staging:     fence earlier attempts, create desired and delta
        staging.load_files(paths, expected)                 pull the lake's rows, count them
        prepared = prepare(staging, hours)                  validate, gate, diff, prove: a dry run ends here
        results = publish(prepared)                         look again, keep the patch, ATTACH, verify

Both walk the same steps, so a dry run cannot drift from a run. Each hour has its own result: an hour that is refused is kept
out of the delta, because ATTACH publishes all of it, and does not hold back the others.

Idempotency comes from the diff alone. After any crash, start again with a new attempt: it fences the old one, finds what is
already as desired, and publishes the rest. Never repeat the ATTACH: it would publish the delta twice.

Readers see all of a repair or nothing of it. A crash of the server inside the ATTACH may leave some partitions published;
never a part of one, because the delta holds one part per partition (all its hours of a day in a daily one).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from backfill_platform.core.hours import format_hour
from backfill_platform.core.identity import Fingerprint
from backfill_platform.core.tables import Table
from backfill_platform.errors import BackfillError, ConcurrentWriter, ProofFailed, UnhealthyHour, WarehouseError
from backfill_platform.warehouse import fingerprints
from backfill_platform.warehouse.diff import HourDiff, describe, write_cancels, write_states
from backfill_platform.warehouse.patches import keep_patch
from backfill_platform.warehouse.sql import SIGN, hour_from, hour_number, target_name
from backfill_platform.warehouse.staging import STAGING_DATABASE, OnStep, Staging, no_step

ROUNDS = 5  # how often hours are taken out of a delta and the rest is built again
ROWS_PER_INSERT = 2_000_000  # rows compared by one statement; bounds the memory of its set and of its block


class Status(StrEnum):
    """What became of an hour."""

    UNCHANGED = "unchanged"  # already as desired; nothing was written
    PROVEN = "proven"  # a delta is staged and proven; what a dry run ends with
    PUBLISHED = "published"  # published and verified
    REFUSED = "refused"  # nothing was written, `error` says why
    UNVERIFIED = "unverified"  # published, but the hour is not what it should be; staging is kept


@dataclass(frozen=True)
class HourPublish:
    """The result of an hour: net state before, what it should be, net state after (None where it was not read)."""

    hour: datetime
    status: Status
    pre: Fingerprint
    want: Fingerprint
    post: Fingerprint | None = None
    cancels: int = 0
    states: int = 0
    error: BackfillError | None = None

    @property
    def untouched(self) -> int:
        """Stored rows that the repair leaves as they are."""
        return self.pre.rows - self.cancels

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


def prepare(staging: Staging, hours: Collection[datetime], *, samples: int = 5, on_step: OnStep = no_step) -> Prepared:
    """Validate the loaded rows, pass each hour through the health gate, write the delta, prove and describe it.

    Writes nothing outside the staging tables. Raises CheckFailed when desired rows lie outside the hours.
    """
    warehouse, table = staging.warehouse, staging.table
    repeated = staging.validate(hours)
    want = fingerprints.states(warehouse, table, hours, source=staging.desired)
    on_step("validated")
    pre = fingerprints.net(warehouse, table, hours)
    final = fingerprints.final(warehouse, table, hours)
    on_step("fingerprinted")
    results: dict[datetime, HourPublish] = {}
    for hour in pre:
        result = HourPublish(hour, Status.PROVEN, pre[hour], want[hour])
        if hour in repeated:
            result = _refused(result, repeated[hour])
        elif pre[hour] != final[hour]:
            result = _refused(result, _unhealthy(table, hour, pre[hour], final[hour]))
        elif pre[hour] == want[hour]:
            result = replace(result, status=Status.UNCHANGED, post=pre[hour])
        results[hour] = result
    results = _stage_delta(staging, results, on_step)
    sound = {hour: result.pre for hour, result in results.items() if result.status is not Status.REFUSED}
    return Prepared(staging, results, describe(staging, sound, _to_publish(results), samples=samples))


def publish(
    prepared: Prepared, *, refuse: Mapping[datetime, BackfillError] | None = None, on_step: OnStep = no_step
) -> tuple[HourPublish, ...]:
    """Publish the proven hours but those of `refuse` (a contract's objections), and verify them; a result for each hour.

    Hours that a live writer changed since `prepare` are refused with ConcurrentWriter. Raises WarehouseUnavailable when the
    answer to the ATTACH is lost: it may have happened, and a new attempt finds out.
    """
    staging = prepared.staging
    table, warehouse = staging.table, staging.warehouse
    results = {
        hour: _refused(result, refuse[hour]) if refuse and hour in refuse and result.status is Status.PROVEN else result
        for hour, result in prepared.hours.items()
    }
    staged = _to_publish(prepared.hours)
    for _ in range(ROUNDS):
        if _to_publish(results) != staged:
            results = _stage_delta(staging, results, on_step)
        staged = _to_publish(results)
        if staged:
            keep_patch(staging)  # before the last look, so that nothing but the ATTACH comes after it
            on_step("kept")
        now = fingerprints.net(warehouse, table, staged)
        on_step("rechecked")
        raced = {hour for hour in staged if now[hour] != results[hour].pre}
        results |= {hour: _refused(results[hour], _raced(table, hour)) for hour in raced}
        if not raced:
            break
    else:
        results |= {hour: _refused(results[hour], _raced(table, hour)) for hour in _to_publish(results)}
    if hours := _to_publish(results):
        warehouse.command(
            f"ALTER TABLE {target_name(table)} ATTACH PARTITION ALL FROM {staging.delta}",
            query_id=staging.query_id("attach"),
            doing=f"publishing to {table} (when the staging table is gone, a newer attempt has taken over)",
        )
        on_step("attached")
        results |= _verify(staging, {hour: results[hour] for hour in hours})
        on_step("verified")
    return tuple(results.values())


def _to_publish(results: Mapping[datetime, HourPublish]) -> tuple[datetime, ...]:
    return tuple(hour for hour, result in results.items() if result.status is Status.PROVEN)


def _refused(result: HourPublish, error: BackfillError) -> HourPublish:
    return replace(result, status=Status.REFUSED, cancels=0, states=0, error=error)


def _stage_delta(staging: Staging, results: Mapping[datetime, HourPublish], on_step: OnStep) -> dict[datetime, HourPublish]:
    """Write and prove the delta of the hours that are to be published, and of no others.

    Hours that fail the proof are refused and the delta is built again without them. Only the rows of a hour are ever
    compared with each other, so leaving one out does not change the rows of the others, also not within a daily partition.
    """
    results = dict(results)
    for _ in range(ROUNDS):
        hours = _to_publish(results)
        _write_delta(staging, [results[hour] for hour in hours], on_step)
        failed = _prove(staging, results, hours)
        on_step("proven")
        if not failed:
            return results
    for hour in _to_publish(results):
        results[hour] = _refused(results[hour], _raced(staging.table, hour))
    _write_delta(staging, [], on_step)
    return results


def _write_delta(staging: Staging, results: list[HourPublish], on_step: OnStep) -> None:
    # Emptied, not created anew: a fenced attempt must fail here instead of coming back to life.
    staging.warehouse.command(f"TRUNCATE TABLE {staging.delta} SYNC", doing=f"emptying the delta for {staging.table}")
    for hours in _portions(results):
        write_cancels(staging, hours)
    on_step("cancels")
    for hours in _portions(results):
        write_states(staging, hours)
    on_step("states")
    if results:
        _merge_delta(staging)
    on_step("merged")


def _portions(results: list[HourPublish]) -> Iterator[list[datetime]]:
    """The hours in portions of at most so many rows, at least one hour each."""
    hours: list[datetime] = []
    rows = 0
    for result in results:
        size = result.pre.rows + result.want.rows
        if hours and rows + size > ROWS_PER_INSERT:
            yield hours
            hours, rows = [], 0
        hours.append(result.hour)
        rows += size
    if hours:
        yield hours


def _merge_delta(staging: Staging) -> None:
    """Make each partition of the delta one part, which ATTACH publishes with one rename.

    Merges take parts in the order they were written, so cancels stay before the states of their keys.
    """
    warehouse = staging.warehouse
    for _ in range(ROUNDS):
        warehouse.command(
            f"OPTIMIZE TABLE {staging.delta} FINAL",
            settings={"optimize_skip_merged_partitions": 1},
            query_id=staging.query_id("merge"),
            doing=f"merging the delta for {staging.table}",
        )
        scattered = warehouse.rows(
            "SELECT partition_id FROM system.parts WHERE database = {database:String} AND table = {table:String} AND active "
            "GROUP BY partition_id HAVING count() > 1",
            parameters={"database": STAGING_DATABASE, "table": staging.delta_name},
            doing=f"counting the parts of the delta for {staging.table}",
        )
        if not scattered:
            return
    raise WarehouseError(
        f"{staging.table}: {len(scattered)} partitions of the delta stay in several parts after OPTIMIZE, so a crash could "
        "publish half of them; nothing was published. Are merges stopped (SYSTEM STOP MERGES) or is the disk full?"
    )


def _prove(staging: Staging, results: dict[datetime, HourPublish], hours: Collection[datetime]) -> set[datetime]:
    """Fill in the counts of each hour and refuse those where `pre + delta` is not `want`; return these."""
    warehouse, table = staging.warehouse, staging.table
    delta = fingerprints.net(warehouse, table, hours, source=staging.delta)
    counted = warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, countIf({SIGN} = -1), countIf({SIGN} = 1) "
        f"FROM {staging.delta} GROUP BY __hour",
        doing=f"counting the delta for {table}",
    )
    counts = {hour_from(number): (cancels, states) for number, cancels, states in counted}
    failed = {hour for hour in hours if results[hour].pre + delta[hour] != results[hour].want}
    now = fingerprints.net(warehouse, table, failed)
    for hour in hours:
        cancels, states = counts.get(hour, (0, 0))
        if hour not in failed:
            results[hour] = replace(results[hour], cancels=cancels, states=states)
        elif now[hour] != results[hour].pre:
            results[hour] = _refused(results[hour], _raced(table, hour))
        else:
            result = results[hour]
            results[hour] = _refused(
                result,
                ProofFailed(
                    f"{table} {format_hour(hour)}: the delta does not add up: {result.pre} + {delta[hour]} is not "
                    f"{result.want}; nothing was published. Does the table have a TTL that drops rows of this hour?"
                ),
            )
    return failed


def _verify(staging: Staging, results: Mapping[datetime, HourPublish]) -> dict[datetime, HourPublish]:
    """Compare what is stored now with what should be; keep the staging tables when it differs."""
    table, warehouse = staging.table, staging.warehouse
    post = fingerprints.net(warehouse, table, results.keys())
    final = fingerprints.final(warehouse, table, results.keys())
    verified = {}
    for hour, result in results.items():
        if post[hour] == final[hour] == result.want:
            verified[hour] = replace(result, status=Status.PUBLISHED, post=post[hour])
            continue
        staging.keep()
        error = ProofFailed(
            f"{table} {format_hour(hour)}: after publishing, the net state is {post[hour]} and FINAL is {final[hour]} instead "
            f"of {result.want}; {staging.desired} and {staging.delta} are kept for inspection. Was there a live writer? "
            "Repair the hour again once it is quiet"
        )
        verified[hour] = replace(result, status=Status.UNVERIFIED, post=post[hour], error=error)
    return verified


def _unhealthy(table: Table, hour: datetime, net: Fingerprint, final: Fingerprint) -> UnhealthyHour:
    return UnhealthyHour(
        f"{table} {format_hour(hour)}: the net state is {net} and FINAL is {final}; states are doubled or "
        "cancels have no state, and a repair on top would show wrong rows. Nothing was published for this hour; OPTIMIZE TABLE "
        "... PARTITION ... FINAL heals doubled states, anything else has to be written anew"
    )


def _raced(table: Table, hour: datetime) -> ConcurrentWriter:
    return ConcurrentWriter(
        f"{table} {format_hour(hour)}: a live writer changed the hour between the diff and the publish; nothing was published. "
        "Repair it again; hours should be older than the horizon of the live writers"
    )
