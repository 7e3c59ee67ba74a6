"""The publish protocol: read the facts first, publish last, and verify afterwards.

    with Staging(warehouse, table, attempt, hours) as staging:    lease, fence earlier attempts, create staging tables
        staging.load_files(paths, expected)                       the lake's rows, counted
        prepared = prepare(staging, hours)                        validate, gate, diff, prove: a dry run ends here
        results = publish(prepared)                               keep the patch, rewrite, compare again, publish, verify

A dry run takes the same steps as a repair, so the two cannot differ.

Only the diff makes a repair idempotent. After any crash, start again with a new attempt: it fences the old one, finds what is
already as desired, and publishes the rest. Never repeat an ATTACH: it would publish the delta twice.

How a delta is published depends on the target (`preconditions.Mode`). ATTACH shows all of it or nothing; a crash of the server
during it may leave some partitions published, but never a part of one, because the delta has one part for each partition.
INSERT publishes one partition after the other, each in one block, or, on servers that sort equal keys unstably, first its
cancels and then its states. REPLACE writes whole partitions anew (`replacing`).
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import TRIES, Row, resend
from backfill_platform.adapters.clickhouse.consistency import rewrite_partitions
from backfill_platform.adapters.clickhouse.preconditions import check_target
from backfill_platform.adapters.clickhouse.publishing.diff import DELTA_SETTINGS
from backfill_platform.adapters.clickhouse.publishing.leftovers import keep_foreign_rows
from backfill_platform.adapters.clickhouse.publishing.patches import (
    confirm_partition,
    confirm_patch,
    forget_patch,
    keep_patch,
)
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
from backfill_platform.adapters.clickhouse.publishing.replacing import replace_partitions, write_newer_rows
from backfill_platform.adapters.clickhouse.publishing.staging import OnStep, Staging, no_step
from backfill_platform.adapters.clickhouse.schema import STAGING_DATABASE
from backfill_platform.adapters.clickhouse.sql import (
    hour_from,
    hour_number,
    literal,
    names,
    row_identity,
    sign_of,
    sorting_key,
    target_name,
    within,
)
from backfill_platform.adapters.clickhouse.target import Mode
from backfill_platform.domain.hours import format_hour
from backfill_platform.errors import (
    BackfillError,
    ConcurrentWriter,
    InconsistentHour,
    PreconditionError,
    ProofFailed,
)

MOST_SECONDS = 5.0  # between the last look at an hour and the request that publishes it
_TAKEN_OVER = "(when the staging table is gone, a newer attempt has taken over)"

Refuse = Callable[[Prepared], Mapping[datetime, BackfillError]]
Announce = Callable[[Collection[HourPublish]], None]


def no_objection(prepared: Prepared) -> Mapping[datetime, BackfillError]:
    """The default of `refuse`: accept every difference."""
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
    """Publish the proven hours except those that `refuse` rejects (change limits), and verify them; a result for each hour.

    `before_inserts` is called with the hours just before the first INSERT, where a target is published by several of them.
    Hours that somebody else has written since `prepare` are compared again, up to ROUNDS times. They are refused with
    ConcurrentWriter when the repair would undo what was written. Raises WarehouseUnavailable when the answer to the publish is
    lost: it may have happened, and a new attempt finds out; LeaseLost when this attempt slept too long; PreconditionError when
    the target was altered meanwhile.
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
        if staging.table.target.deleted:
            write_newer_rows(staging)
        late = _last_look(staging, results, on_step)
        if not late:
            return tuple(_publish_and_verify(staging, results, before_inserts, on_step).values())
        prepared = _look_again(replace(prepared, hours=results), late, on_step)
    forget_patch(staging)
    results = {h: refused(r, raced(staging.table, h)) if r.status is Status.PROVEN else r for h, r in prepared.hours.items()}
    return tuple(results.values())


def _rewrite_partitions(staging: Staging, hours: Collection[datetime], on_step: OnStep) -> dict[datetime, BackfillError]:
    """Rewrite the partitions of the hours; returns the hours that cannot be rewritten, with the reason."""
    try:
        rewrite_partitions(staging, hours)
    except (InconsistentHour, ConcurrentWriter, ProofFailed) as error:
        return dict.fromkeys(hours, error)
    on_step("rewritten")
    return {}


def _last_look(staging: Staging, results: Mapping[datetime, HourPublish], on_step: OnStep) -> set[datetime]:
    """The hours that somebody else has written since they were compared: the last step before the publish.

    Reading them takes time in which they may be written again. So what the server knows of new parts is compared before and
    after, which takes milliseconds, and the lease and the age of that look are checked last. What is written between this and
    the publish itself is found by the verification, and kept (`leftovers`).
    """
    if check_target(staging.warehouse, staging.table) != staging.target:
        raise PreconditionError(f"{staging.table} was altered during the repair; nothing was published, run it again")
    hours = to_publish(results)
    for attempt in range(ROUNDS):
        parts = _parts(staging)
        net = fingerprints.net(staging.warehouse, staging.table, hours)
        on_step("rechecked")
        if late := {hour for hour in hours if net[hour] != results[hour].before}:
            return late
        looked = time.monotonic()
        # Somebody who keeps writing other hours of the same partitions must not keep us waiting for ever.
        unwritten = _parts(staging) == parts or attempt == ROUNDS - 1
        staging.lease.check()
        if unwritten and time.monotonic() - looked < MOST_SECONDS:
            return set()
    raise ConcurrentWriter(
        f"{staging.table}: this process was stopped before it could publish; nothing was published, repeat it"
    )


def _parts(staging: Staging) -> tuple[Row, ...]:
    """What changes when somebody writes to a partition of the delta in the target; merges change none of it."""
    database, name = staging.table.stored_in
    parameters = {"database": database, "table": name, "staging": STAGING_DATABASE, "delta": staging.delta_name}
    parts = staging.warehouse.rows(
        "SELECT partition_id, max(max_block_number) FROM system.parts WHERE database = {database:String} "
        "AND table = {table:String} AND active AND partition_id IN (SELECT partition_id FROM system.parts "
        "WHERE database = {staging:String} AND table = {delta:String} AND active) GROUP BY partition_id ORDER BY partition_id",
        parameters=parameters,
        doing=f"looking for new parts of {staging.table}",
    )
    mutations = staging.warehouse.rows(
        "SELECT '', count() FROM system.mutations WHERE database = {database:String} AND table = {table:String}",
        parameters=parameters,
        doing=f"looking for mutations of {staging.table}",
    )
    return (*parts, *mutations)


def _look_again(prepared: Prepared, late: Collection[datetime], on_step: OnStep) -> Prepared:
    """Compare hours again that a live writer has written. An hour is refused where the delta would undo what it wrote."""
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
                f"repair would undo {undoing[hour]} of its rows; nothing was published. Repair the hour when nobody writes "
                "it any more and the lake has the writer's events"
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
    """How many rows of each hour's delta were not in the earlier one, because of rows that were written since."""
    table, where = staging.table, within(staging.table, hours)
    row = f"({row_identity(table)}, {sign_of(table)})"
    rows = staging.warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, count() FROM {staging.delta} WHERE {where.sql} "
        f"AND {row} NOT IN (SELECT {row} FROM {staging.earlier} WHERE {where.sql}) GROUP BY __hour",
        parameters=where.parameters,
        settings=DELTA_SETTINGS,
        doing=f"reading what a live writer did to {table}",
    )
    return {hour_from(number): count for number, count in rows}


def _publish_and_verify(
    staging: Staging, results: Mapping[datetime, HourPublish], before_inserts: Announce, on_step: OnStep
) -> dict[datetime, HourPublish]:
    hours = to_publish(results)
    lost: Mapping[datetime, BackfillError] = {}
    if staging.target.mode is Mode.ATTACH:
        staging.warehouse.command(
            f"ALTER TABLE {target_name(staging.table)} ATTACH PARTITION ALL FROM {_published_rows(staging)}",
            query_id=staging.query_id("attach"),
            doing=f"publishing to {staging.table} {_TAKEN_OVER}",
        )
        confirm_patch(staging)
        on_step("attached")
    elif staging.target.mode is Mode.REPLACE:
        results, lost = replace_partitions(staging, results, on_step)
    else:
        before_inserts([results[hour] for hour in hours])
        results = _insert_partitions(staging, results, on_step)
    verified = _verify(staging, {hour: results[hour] for hour in to_publish(results)})
    on_step("verified")
    for hour, error in lost.items():
        verified[hour] = replace(verified[hour], status=Status.UNVERIFIED, error=error)
    return {**results, **verified}


def _published_rows(staging: Staging) -> str:
    """The quoted table of what is added to the target: the delta, or what it comes to where the target has no signs."""
    return staging.delta if staging.table.collapses else staging.rewritten


def _insert_partitions(
    staging: Staging, results: Mapping[datetime, HourPublish], on_step: OnStep
) -> dict[datetime, HourPublish]:
    """Insert one partition of the delta after the other. Those that somebody has written meanwhile are left out."""
    results, looked = dict(results), time.monotonic()
    for partition, statements in _inserts(staging).items():
        if time.monotonic() - looked > MOST_SECONDS:
            written = _written(staging, partition, results)
            staging.lease.check()
            looked = time.monotonic()
            if written:
                results |= {hour: refused(results[hour], raced(staging.table, hour)) for hour in written}
                continue
        for statement, token in statements:
            _insert(staging, statement, token)
            on_step("inserted")
        confirm_partition(staging, partition)
    forget_patch(staging)
    return results


def _written(staging: Staging, partition: str, results: Mapping[datetime, HourPublish]) -> list[datetime]:
    """The hours of a partition of the delta, if somebody has written one of them since they were compared."""
    rows = staging.warehouse.rows(
        f"SELECT DISTINCT {hour_number(staging.table)} FROM {staging.delta} WHERE _partition_id = {{id:String}}",
        parameters={"id": partition},
        doing=f"reading the delta for {staging.table}",
    )
    hours = [hour_from(number) for (number,) in rows]
    net = fingerprints.net(staging.warehouse, staging.table, hours)
    return hours if any(net[hour] != results[hour].before for hour in hours) else []


def _inserts(staging: Staging) -> dict[str, list[tuple[str, str]]]:
    """The statements that insert each partition of the delta, in order, and the token of each."""
    table, version = staging.table, staging.target.version
    last = table.sign if table.collapses else table.target.deleted
    sign = sign_of(table)
    parts = staging.warehouse.rows(
        "SELECT DISTINCT partition_id FROM system.parts WHERE database = {database:String} AND table = {table:String} "
        "AND active ORDER BY partition_id",
        parameters={"database": STAGING_DATABASE, "table": staging.delta_name},
        doing=f"looking for the partitions of the delta for {table}",
    )
    columns = names([*staging.target.copied, last])
    order = names([*sorting_key(table), *([version] if version else []), last])
    together = {"delta": "1"} if staging.target.one_block else {"cancels": f"{sign} = -1", "states": f"{sign} = 1"}
    return {
        partition: [
            (
                f"INSERT INTO {target_name(table)} ({columns}) SELECT {columns} FROM {_published_rows(staging)} "
                f"WHERE _partition_id = {literal(partition)} AND {rows} ORDER BY {order}",
                f"{staging.lease.holder}:{partition}:{what}",
            )
            for what, rows in together.items()
        ]
        for (partition,) in parts
    }


def _insert(staging: Staging, statement: str, token: str) -> None:
    """Send an insert; when the answer is lost, again with its token, if all tables that it reaches remember tokens."""
    settings = {
        **DELTA_SETTINGS,
        **staging.target.settings,
        "insert_deduplicate": 1,
        "insert_deduplication_token": token,
        "deduplicate_blocks_in_dependent_materialized_views": 1,
    }

    def send(turn: int) -> None:
        if turn > 1:
            with suppress(BackfillError):  # the insert before may still be running
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
    final = fingerprints.final(warehouse, table, results.keys(), staging.target) if table.collapses else after
    verified = {}
    for hour, result in results.items():
        if after[hour] == final[hour] == result.desired:
            verified[hour] = replace(result, status=Status.PUBLISHED, after=after[hour])
            continue
        staging.keep()
        error = ProofFailed(
            f"{table} {format_hour(hour)}: after publishing, the net state is {after[hour]} and FINAL is {final[hour]} instead "
            f"of {result.desired}; {staging.desired} and {staging.delta} are kept for inspection. Was there a live writer? "
            "Repair the hour again when nobody writes it any more"
        )
        verified[hour] = replace(result, status=Status.UNVERIFIED, after=after[hour], error=error)
    if wrong := [hour for hour, result in verified.items() if result.status is Status.UNVERIFIED]:
        keep_foreign_rows(staging, wrong, desired=staging.desired, patch_name=staging.patch_name)
    return verified
