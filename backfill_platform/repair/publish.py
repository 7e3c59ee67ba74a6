"""From lake files to the warehouse: dry runs and publishing walk the same steps, and a dry run stops before the last."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.publishing.diff import HourDiff, foreign_tenants
from backfill_platform.adapters.clickhouse.publishing.patches import drop_patches
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, Prepared, Status, prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.schema import create_target
from backfill_platform.adapters.iceberg.inventory import LakeFile
from backfill_platform.adapters.iceberg.lake import MAIN, quarantine_of
from backfill_platform.domain.change_limits import ChangeLimits, HourChange
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import HOUR, format_hour
from backfill_platform.domain.plan import Action, Step
from backfill_platform.domain.tables import Table
from backfill_platform.errors import BackfillError, ChangeLimitsExceeded, InconsistentHour, OpenHour
from backfill_platform.repair.audit_log import AuditLog
from backfill_platform.repair.outcomes import CheckResult, Fact, HourOutcome, Rows

if TYPE_CHECKING:
    from backfill_platform.repair.runner import Context

DELTA_PROVEN = "delta_proven"
MATCHES_LAKE = "matches_lake"
WITHIN_CHANGE_LIMITS = "within_change_limits"
CHANGED_COLUMNS = "changed columns"
DRY_RUN_CHECKS = (DELTA_PROVEN, WITHIN_CHANGE_LIMITS)
PUBLISH_CHECKS = (MATCHES_LAKE, WITHIN_CHANGE_LIMITS)
DIFFERENCES = ("rows_changed", "rows_only_in_warehouse", "rows_only_in_lake")  # facts of an hour; others say nothing differs

# What a person may allow: by other change limits, by waiting or `--allow-open-hours`, by `--rewrite-inconsistent`.
REFUSALS = (ChangeLimitsExceeded, OpenHour, InconsistentHour)

StepResult = tuple[list[HourOutcome], Mapping[str, Fact]]


def publish_step(
    step: Step,
    hours: Collection[datetime],
    files: list[LakeFile],
    since: Mapping[datetime, Fingerprint],
    context: Context,
) -> StepResult:
    """Stage the files' rows, compare, prove, and for a publish step write: the outcome of every hour, and their sums.

    The files are those of the hours, `since` the net states when the repair began; what was done is in the ledger.
    """
    table, publishes = step.node.table, step.action is Action.PUBLISH
    warehouse = context.warehouse()
    started = context.clock()
    create_target(warehouse, table)
    expected = dict.fromkeys(hours, 0)
    for file in files:
        expected[file.hour] += file.rows
    objections: dict[datetime, BackfillError] = {}
    whose = context.tenants if table.tenant else ()

    def refuse(prepared: Prepared) -> Mapping[datetime, BackfillError]:
        objections.clear()
        objections.update(_objections(context.change_limits, table, prepared))
        return {**_open_hours(prepared, context), **objections}

    with Staging(
        warehouse, table, context.repair_id, hours, exclusive=publishes, rewrites_partitions=context.rewrite_inconsistent
    ) as staging:
        staging.load_files([file.uri for file in files], expected, context.loading)
        if whose:
            staging.keep_others(whose)
        prepared = prepare(staging, hours, since=since, rewrite_inconsistent=context.rewrite_inconsistent)
        others = others_now = fingerprints.net(warehouse, table, hours, but=whose) if whose else {}
        audit_log = AuditLog(context, staging, step, started)
        suspect: Mapping[datetime, str] = {}
        if publishes:
            suspect = audit_log.suspect_views(hours)
            results = publish(prepared, refuse=refuse, on_step=audit_log.before_inserts(prepared))
            suspect = {**suspect, **audit_log.views_to_rebuild(results)}
            others_now = fingerprints.net(warehouse, table, hours, but=whose) if whose else {}
        else:
            refuse(prepared)
            results = tuple(prepared.hours.values())
        if any(result.status is Status.UNVERIFIED for result in results):
            staging.keep()
    if publishes:
        drop_patches(warehouse, table, older_than_days=context.patch_days)
    audit_log.close(results, files, _quarantined(step, context, hours), suspect)
    history = audit_log.history(hours) if publishes else {}
    untouched = {
        hour: {"other_tenants_before": str(others[hour]), "other_tenants_after": str(others_now[hour])} for hour in others
    }
    outcomes = [
        _outcome(
            step,
            result,
            prepared,
            objections.get(result.hour),
            suspect.get(result.hour, ""),
            history.get(result.hour, ()),
            untouched.get(result.hour, {}),
        )
        for result in results
    ]
    return outcomes, {"published_by": staging.target.why, **_totals(results)}


def _open_hours(prepared: Prepared, context: Context) -> dict[datetime, BackfillError]:
    """The hours that live writers may still write, and those that share a partition to be rewritten with such hours."""
    if context.allow_open_hours:
        return {}
    table, after = prepared.staging.table, context.pipeline.seal_after
    found: dict[datetime, BackfillError] = {}
    for hour, result in prepared.hours.items():
        end = HOUR + (table.partition_hours([hour])[-1] if result.inconsistency else hour)
        if end + after > context.clock():
            found[hour] = OpenHour(
                f"{table} {format_hour(hour)}: others may write it until {end + after:%Y-%m-%d %H:%M} UTC, and a repair must "
                "not race with them; repair it then, or ask for unsealed hours (--allow-open-hours) if nobody writes them"
            )
    return found


def _objections(change_limits: ChangeLimits, table: Table, prepared: Prepared) -> dict[datetime, BackfillError]:
    """The hours whose difference exceeds the change limits, with what broke it."""
    found: dict[datetime, BackfillError] = {}
    foreign: dict[datetime, tuple[int, str]] | None = None
    if change_limits.tenants is not None and table.tenant:
        foreign = foreign_tenants(prepared.staging, change_limits.tenants)
    for hour, diff in prepared.diffs.items():
        if diff.differs:
            change = HourChange(
                str(table),
                hour,
                stored=prepared.hours[hour].before.rows,
                cancelled=diff.changed + diff.only_there,
                columns=frozenset(changed.column for changed in diff.columns),
                totals={effect.column: (effect.before, effect.after) for effect in diff.effects},
                foreign=None if foreign is None else foreign.get(hour, (0, "")),
            )
            if objections := change_limits.objections(change):
                found[hour] = ChangeLimitsExceeded(f"beyond the change limits: {'; '.join(objections)}")
    return found


def _quarantined(step: Step, context: Context, hours: Collection[datetime]) -> dict[datetime, int]:
    rejects = quarantine_of(step.node.table)
    found = context.lake.rows_by_hour(rejects, branch=context.repair_id if step.from_branch else MAIN)
    return {hour: found.get(hour, 0) for hour in hours}


def _outcome(
    step: Step,
    result: HourPublish,
    prepared: Prepared,
    objection: BackfillError | None,
    suspect: str,
    history: tuple[Rows, ...],
    others: Mapping[str, Fact],
) -> HourOutcome:
    diff = prepared.diffs.get(result.hour)
    facts: dict[str, Fact] = {
        "status": str(result.status),
        "dagster/row_count": result.desired.rows,
        "rows": result.desired.rows,
        "cancels": result.cancels,
        "states": result.states,
        "untouched": result.untouched,
        "fingerprint_before": str(result.before),
        "fingerprint_desired": str(result.desired),
        **others,
    }
    if result.after is not None and step.action is Action.PUBLISH:
        facts["fingerprint_after"] = str(result.after)
    if result.inconsistency:
        facts["rewritten"] = result.inconsistency
    if suspect:
        facts["views_to_rebuild"] = suspect
    if diff is not None:
        differing = dict(zip(DIFFERENCES, (diff.changed, diff.only_there, diff.only_here), strict=True))
        facts |= {"rows_matched": diff.matched, **differing}
    good = result.status not in (Status.REFUSED, Status.UNVERIFIED)
    if step.action is Action.PUBLISH:
        text = "net state, FINAL and the lake have one fingerprint"
        check = CheckResult(MATCHES_LAKE, good and result.after == result.desired, True, text, _prints(result))
    else:
        text = "the fingerprints of the warehouse and of the delta add up to the lake's"
        check = CheckResult(DELTA_PROVEN, good, True, text, _prints(result))
    change_limits = CheckResult(
        WITHIN_CHANGE_LIMITS,
        objection is None,
        blocking=True,
        description=str(objection or "the difference stays within the change limits of the repair"),
    )
    tables = _difference(prepared.staging.table, diff) if diff is not None and diff.differs else ()
    asks = isinstance(result.error, REFUSALS)
    return HourOutcome(step.asset, result.hour, result.reason, facts, (check, change_limits), (*tables, *history), asks=asks)


def _prints(result: HourPublish) -> dict[str, Fact]:
    named: dict[str, Fingerprint | None] = {"before": result.before, "desired": result.desired, "after": result.after}
    return {name: str(value) for name, value in named.items() if value is not None}


def _difference(table: Table, diff: HourDiff) -> tuple[Rows, ...]:
    """What differs, for people: columns, totals, and samples with the old and the new value of what changed."""
    columns = Rows(CHANGED_COLUMNS, ("column", "rows"), tuple((change.column, change.rows) for change in diff.columns))
    effects = Rows(
        "totals of the hour",
        ("column", "before", "after"),
        tuple((effect.column, effect.before, effect.after) for effect in diff.effects if effect.before != effect.after),
    )
    samples: list[tuple[Fact, ...]] = []
    for sample in diff.samples:
        shown = sample.new or sample.old or {}
        key = ", ".join(str(shown.get(name)) for name in table.key) or "the hour"
        if sample.old is None or sample.new is None:
            samples.append((key, "only in the lake" if sample.old is None else "only in the warehouse", "", ""))
            continue
        for name in table.column_names:
            if sample.old[name] != sample.new[name]:
                samples.append((key, name, str(sample.old[name]), str(sample.new[name])))
    rows = Rows("samples", (", ".join(table.key) or "key", "column", "in the warehouse", "in the lake"), tuple(samples))
    return tuple(found for found in (columns, effects, rows) if found.rows)


def _totals(results: Collection[HourPublish]) -> dict[str, Fact]:
    return {
        "hours_changed": sum(result.cancels + result.states > 0 for result in results),
        "hours_unchanged": sum(result.status is Status.UNCHANGED for result in results),
        "hours_refused": sum(result.status is Status.REFUSED for result in results),
        "cancels": sum(result.cancels for result in results),
        "states": sum(result.states for result in results),
        "rows_untouched": sum(result.untouched for result in results),
    }
