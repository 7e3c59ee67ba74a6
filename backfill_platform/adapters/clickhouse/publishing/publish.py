"""The publish protocol: facts first, the publish last, and proof after it.

    with Staging(warehouse, table, attempt, hours) as staging:    lease, fence earlier attempts, create staging tables
        staging.load_files(paths, expected)                       the lake's rows, counted
        prepared = prepare(staging, hours)                        validate, gate, diff, prove: a dry run ends here
        results = publish(prepared)                               keep the patch, rewrite, compare again, publish, verify

Both walk the same steps, so a dry run cannot drift from a run.

Idempotency comes from the diff alone. After any crash, start again with a new attempt: it fences the old one, finds what is
already as desired, and publishes the rest. Never repeat an ATTACH: it would publish the delta twice.

How a delta is published depends on the target (`preconditions.Mode`). ATTACH shows all of it or nothing; a crash of the server
inside it may leave some partitions published, never a part of one, because the delta holds one part per partition. INSERT does
one partition after the other, each in one block, or, on servers that sort equal keys unstably, cancels and then states.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import TRIES, resend
from backfill_platform.adapters.clickhouse.consistency import rewrite_partitions
from backfill_platform.adapters.clickhouse.preconditions import Mode, check_target
from backfill_platform.adapters.clickhouse.publishing.diff import DELTA_SETTINGS
from backfill_platform.adapters.clickhouse.publishing.patches import confirm_patch, forget_patch, keep_patch
from backfill_platform.adapters.clickhouse.publishing.prepare import (
    ROUNDS,
    HourPublish,
    Prepared,
    Status,
    described,
    look,
    raced,
    refused,
    stage_delta,
    to_publish,
)
from backfill_platform.adapters.clickhouse.publishing.staging import STAGING_DATABASE, OnStep, Staging, no_step
from backfill_platform.adapters.clickhouse.sql import (
    SIGN,
    hour_from,
    hour_number,
    literal,
    names,
    row_identity,
    sorting_key,
    target_name,
    within,
)
from backfill_platform.domain.hours import format_hour
from backfill_platform.errors import (
    BackfillError,
    ConcurrentWriter,
    InconsistentHour,
    PreconditionError,
    ProofFailed,
)

_TAKEN_OVER = "(when the staging table is gone, a newer attempt has taken over)"

Refuse = Callable[[Prepared], Mapping[datetime, BackfillError]]
Announce = Callable[[Collection[HourPublish]], None]


def no_objection(prepared: Prepared) -> Mapping[datetime, BackfillError]:
    """The default of `refuse`: whatever the difference is."""
    return {}


def no_announcement(results: Collection[HourPublish]) -> None:
    """The default of `before_inserts`: nobody has to know."""


def publish(
    prepared: Prepared,
    *,
    refuse: Refuse = no_objection,
    before_inserts: Announce = no_announcement,
    on_step: OnStep = no_step,
) -> tuple[HourPublish, ...]:
    """Publish the proven hours but those that `refuse` objects to (change limits), and verify them; a result for each hour.

    `before_inserts` is called with the hours just before the first INSERT, where the target is published by several.
    Hours that somebody else has written since `prepare` are compared anew, a few times. They are refused with ConcurrentWriter
    when the repair would now undo what was written. Raises WarehouseUnavailable when the answer to the publish is lost: it
    may have happened, and a new attempt finds out; LeaseLost when this attempt slept too long.
    """
    staging = prepared.staging
    rewritten: set[datetime] = set()
    for _ in range(ROUNDS):
        objections = refuse(prepared)
        results = {
            hour: refused(result, objections[hour]) if result.status is Status.PROVEN and hour in objections else result
            for hour, result in prepared.hours.items()
        }
        if to_publish(results) != to_publish(prepared.hours):
            results = stage_delta(staging, results, on_step)
        if not to_publish(results):
            forget_patch(staging)
            return tuple(results.values())
        keep_patch(staging)
        on_step("kept")
        inconsistent = [hour for hour in to_publish(results) if results[hour].inconsistency and hour not in rewritten]
        if inconsistent:
            failed = _rewrite_partitions(staging, inconsistent, on_step)
            rewritten |= set(inconsistent) - failed.keys()
            results |= {hour: refused(results[hour], error) for hour, error in failed.items()}
            if failed:
                prepared = replace(prepared, hours=stage_delta(staging, results, on_step))
                continue
        late = _last_look(staging, results, on_step)
        if not late:
            return tuple(_publish_and_verify(staging, results, before_inserts, on_step).values())
        prepared = _look_again(replace(prepared, hours=results), late, on_step)
    forget_patch(staging)
    results = {h: refused(r, raced(staging.table, h)) if r.status is Status.PROVEN else r for h, r in prepared.hours.items()}
    return tuple(results.values())


def _rewrite_partitions(staging: Staging, hours: Collection[datetime], on_step: OnStep) -> dict[datetime, BackfillError]:
    """Rewrite the partitions of the hours; those that cannot be rewritten, with the reason."""
    try:
        rewrite_partitions(staging, hours)
    except (InconsistentHour, ConcurrentWriter, ProofFailed) as error:
        return dict.fromkeys(hours, error)
    on_step("rewritten")
    return {}


def _last_look(staging: Staging, results: Mapping[datetime, HourPublish], on_step: OnStep) -> set[datetime]:
    """The hours that somebody else has written since they were compared. Nothing but the publish comes after it."""
    if check_target(staging.warehouse, staging.table) != staging.target:
        raise PreconditionError(f"{staging.table} was altered during the repair; nothing was published, run it again")
    staging.lease.check()
    now = fingerprints.net(staging.warehouse, staging.table, to_publish(results))
    on_step("rechecked")
    return {hour for hour in to_publish(results) if now[hour] != results[hour].before}


def _look_again(prepared: Prepared, late: Collection[datetime], on_step: OnStep) -> Prepared:
    """Compare hours that a live writer has written. What it wrote stays: where the delta would undo it, the hour is refused."""
    staging = prepared.staging
    _remember_delta(staging)
    fresh = look(
        staging, {hour: prepared.hours[hour].desired for hour in late}, rewrite_inconsistent=prepared.rewrite_inconsistent
    )
    results = stage_delta(staging, {**prepared.hours, **fresh}, on_step)
    undoing = _new_rows(staging, late)
    for hour in undoing.keys() & set(to_publish(results)):
        results[hour] = refused(
            results[hour],
            ConcurrentWriter(
                f"{staging.table} {format_hour(hour)}: a live writer changed the hour after this repair looked at it, and the "
                f"repair would undo {undoing[hour]} of its rows; nothing was published. Repair the hour when it is written no "
                "more, from a lake that has the writer's events"
            ),
        )
    if undoing:
        results = stage_delta(staging, results, on_step)
    return described(staging, results, samples=prepared.samples, rewrite_inconsistent=prepared.rewrite_inconsistent)


def _remember_delta(staging: Staging) -> None:
    doing = f"remembering the delta for {staging.table} {_TAKEN_OVER}"
    staging.warehouse.empty(staging.earlier, doing=doing)
    staging.warehouse.command(f"ALTER TABLE {staging.earlier} ATTACH PARTITION ALL FROM {staging.delta}", doing=doing)


def _new_rows(staging: Staging, hours: Collection[datetime]) -> dict[datetime, int]:
    """How many rows of each hour's delta were not in the earlier one: what they answer to was written since."""
    table, where = staging.table, within(staging.table, hours)
    row = f"({row_identity(table)}, {SIGN})"
    rows = staging.warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, count() FROM {staging.delta} WHERE {where.sql} "
        f"AND {row} NOT IN (SELECT {row} FROM {staging.earlier} WHERE {where.sql}) GROUP BY __hour",
        parameters=where.parameters,
        settings=DELTA_SETTINGS,
        doing=f"looking what a live writer did to {table}",
    )
    return {hour_from(number): count for number, count in rows}


def _publish_and_verify(
    staging: Staging, results: Mapping[datetime, HourPublish], before_inserts: Announce, on_step: OnStep
) -> dict[datetime, HourPublish]:
    hours = to_publish(results)
    if staging.target.mode is Mode.ATTACH:
        staging.warehouse.command(
            f"ALTER TABLE {target_name(staging.table)} ATTACH PARTITION ALL FROM {staging.delta}",
            query_id=staging.query_id("attach"),
            doing=f"publishing to {staging.table} {_TAKEN_OVER}",
        )
        confirm_patch(staging)
        on_step("attached")
    else:
        before_inserts([results[hour] for hour in hours])
        for statement, token in _inserts(staging):
            _insert(staging, statement, token)
            confirm_patch(staging)
            on_step("inserted")
    verified = _verify(staging, {hour: results[hour] for hour in hours})
    on_step("verified")
    return {**results, **verified}


def _inserts(staging: Staging) -> Iterator[tuple[str, str]]:
    """The statements that insert the delta, in order, and the token of each."""
    table, version = staging.table, staging.target.version
    parts = staging.warehouse.rows(
        "SELECT DISTINCT partition_id FROM system.parts WHERE database = {database:String} AND table = {table:String} "
        "AND active ORDER BY partition_id",
        parameters={"database": STAGING_DATABASE, "table": staging.delta_name},
        doing=f"looking for the partitions of the delta for {table}",
    )
    columns = names([*table.column_names, *([version] if version else []), SIGN])
    order = names([*sorting_key(table), *([version] if version else []), SIGN])
    together = {"delta": "1"} if staging.target.one_block else {"cancels": f"{SIGN} = -1", "states": f"{SIGN} = 1"}
    for (partition,) in parts:
        for what, rows in together.items():
            yield (
                f"INSERT INTO {target_name(table)} ({columns}) SELECT {columns} FROM {staging.delta} "
                f"WHERE _partition_id = {literal(partition)} AND {rows} ORDER BY {order}",
                f"{staging.lease.holder}:{partition}:{what}",
            )


def _insert(staging: Staging, statement: str, token: str) -> None:
    """Send an insert; again under its token when the answer is lost, where all tables that it reaches remember tokens."""
    settings = {
        **DELTA_SETTINGS,
        "insert_deduplicate": 1,
        "insert_deduplication_token": token,
        "deduplicate_blocks_in_dependent_materialized_views": 1,
    }

    def send(turn: int) -> None:
        if turn > 1:
            with suppress(BackfillError):  # the one before may still be at work
                staging.warehouse.command(
                    f"KILL QUERY WHERE query_id = {literal(f'{token}:{turn - 1}')} SYNC",
                    doing="ending an insert without an answer",
                )
        staging.warehouse.command(
            statement, settings=settings, query_id=f"{token}:{turn}", doing=f"publishing to {staging.table} {_TAKEN_OVER}"
        )

    resend(send, tries=TRIES if staging.target.repeatable else 1)


def _verify(staging: Staging, results: Mapping[datetime, HourPublish]) -> dict[datetime, HourPublish]:
    """Compare what is stored now with what should be; keep the staging tables when it differs."""
    table, warehouse = staging.table, staging.warehouse
    after = fingerprints.net(warehouse, table, results.keys())
    final = fingerprints.final(warehouse, table, results.keys(), staging.target)
    verified = {}
    for hour, result in results.items():
        if after[hour] == final[hour] == result.desired:
            verified[hour] = replace(result, status=Status.PUBLISHED, after=after[hour])
            continue
        staging.keep()
        error = ProofFailed(
            f"{table} {format_hour(hour)}: after publishing, the net state is {after[hour]} and FINAL is {final[hour]} instead "
            f"of {result.desired}; {staging.desired} and {staging.delta} are kept for inspection. Was there a live writer? "
            "Repair the hour again once it is quiet"
        )
        verified[hour] = replace(result, status=Status.UNVERIFIED, after=after[hour], error=error)
    return verified
