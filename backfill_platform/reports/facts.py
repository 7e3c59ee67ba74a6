"""The results of hours and steps as labelled values and small tables, for pages, terminals and JSON."""

from collections.abc import Sequence
from datetime import timedelta

from backfill_platform.adapters.clickhouse.publishing.diff import HourDiff, Sample
from backfill_platform.adapters.clickhouse.publishing.prepare import Status
from backfill_platform.adapters.clickhouse.state.ledger import LedgerEntry
from backfill_platform.domain.offsets import encode
from backfill_platform.domain.tables import Table
from backfill_platform.repair.outcomes import Fact, HourOutcome, LakeHour, Reading, Rows, StepFinished, TargetHour

SAMPLES = "samples"
CLOSED_BY_MARGIN = "sessions closed by margin"


def facts_of(outcome: HourOutcome) -> dict[str, Fact]:
    """The values of an hour by their names; whatever is not known is absent."""
    if outcome.lake is not None:
        return _lake_facts(outcome.lake)
    return _target_facts(outcome.target) if outcome.target is not None else {}


def tables_of(outcome: HourOutcome, table: Table) -> tuple[Rows, ...]:
    """What differs in an hour of a warehouse table, and its history; empty for hours of the lake."""
    target = outcome.target
    if target is None:
        return ()
    difference = _difference(table, target.difference) if target.difference and target.difference.differs else ()
    return (*difference, *(_history(target.history) if target.history else ()))


def step_facts(finished: StepFinished) -> dict[str, Fact]:
    """The values about the whole range of a step."""
    facts: dict[str, Fact] = {}
    if finished.already_landed is not None:
        facts["hours_already_landed"] = finished.already_landed
    if finished.reading is not None:
        facts |= _reading_facts(finished.reading)
    if finished.published_by:
        targets = [outcome.target for outcome in finished.outcomes if outcome.target is not None]
        facts |= {"published_by": finished.published_by, **_totals(targets)}
    return facts


def step_tables(finished: StepFinished) -> tuple[Rows, ...]:
    """How many of the sessions each margin would have recovered, where reading went on until they were closed."""
    reading = finished.reading
    if reading is None or not reading.closed_by_margin:
        return ()
    return (Rows(CLOSED_BY_MARGIN, ("margin", "not closed", "closed", ""), reading.closed_by_margin),)


def merged_step_facts(steps: Sequence[StepFinished]) -> dict[str, Fact]:
    """The values of a step that was done in parts: counts are added up, other values are those of the last part."""
    merged: dict[str, Fact] = {}
    for finished in steps:
        for name, value in step_facts(finished).items():
            before = merged.get(name)
            if name == "read_from" and before is not None:
                continue
            merged[name] = value + before if type(value) is int and type(before) is int else value
    return merged


def _lake_facts(lake: LakeHour) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"rows": lake.rows}
    counts = {"rows_read": lake.rows_read, "deduplicated": lake.deduplicated}
    facts |= {name: count for name, count in counts.items() if count is not None}
    facts |= {"quarantined": lake.quarantined, **lake.measures}
    return facts | ({"offsets": encode(lake.offsets)} if lake.offsets else {})


def _target_facts(target: TargetHour) -> dict[str, Fact]:
    result, difference = target.result, target.difference
    facts: dict[str, Fact] = {
        "status": str(result.status),
        "rows": result.desired.rows,
        "cancels": result.cancels,
        "states": result.states,
        "untouched": result.untouched,
        "fingerprint_before": str(result.before),
        "fingerprint_desired": str(result.desired),
    }
    if target.other_tenants is not None:
        before, after = target.other_tenants
        facts |= {"other_tenants_before": str(before), "other_tenants_after": str(after)}
    if result.after is not None:
        facts["fingerprint_after"] = str(result.after)
    if result.inconsistency:
        facts["rewritten"] = result.inconsistency
    if target.views_to_rebuild:
        facts["views_to_rebuild"] = target.views_to_rebuild
    if difference is not None:
        facts |= {
            "rows_matched": difference.matched,
            "rows_changed": difference.changed,
            "rows_only_in_warehouse": difference.only_there,
            "rows_only_in_lake": difference.only_here,
        }
    return facts


def _reading_facts(reading: Reading) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        "read_from": reading.start.isoformat(),
        "read_to": reading.end.isoformat(),
        "files_read": reading.files,
        "files_pruned": reading.files_pruned,
    }
    if reading.closure is not None:
        facts |= {
            "sessions_cut_at_first_read_end": reading.closure.cut_at_first_read_end,
            "margin_hours": reading.closure.margin / timedelta(hours=1),
            "open_at_end": reading.closure.open_at_end,
            "stopped_at": reading.closure.stopped_at,
        }
    return facts


def _totals(targets: Sequence[TargetHour]) -> dict[str, Fact]:
    results = [target.result for target in targets]
    return {
        "hours_changed": sum(target.changes_rows for target in targets),
        "hours_unchanged": sum(result.status is Status.UNCHANGED for result in results),
        "hours_refused": sum(result.status is Status.REFUSED for result in results),
        "cancels": sum(result.cancels for result in results),
        "states": sum(result.states for result in results),
        "rows_untouched": sum(result.untouched for result in results),
    }


def _difference(table: Table, diff: HourDiff) -> tuple[Rows, ...]:
    """What differs, for people: columns, totals, and samples with the old and the new value of what changed."""
    columns = Rows("changed columns", ("column", "rows"), tuple((change.column, change.rows) for change in diff.columns))
    effects = Rows(
        "totals of the hour",
        ("column", "before", "after"),
        tuple((effect.column, effect.before, effect.after) for effect in diff.effects if effect.before != effect.after),
    )
    lines = tuple(line for sample in diff.samples for line in _sample(table, sample))
    samples = Rows(SAMPLES, (", ".join(table.key) or "key", "column", "in the warehouse", "in the lake"), lines)
    return tuple(rows for rows in (columns, effects, samples) if rows.rows)


def _sample(table: Table, sample: Sample) -> list[tuple[Fact, ...]]:
    shown = sample.new or sample.old or {}
    key = ", ".join(str(shown.get(name)) for name in table.key) or "the hour"
    if sample.old is None or sample.new is None:
        return [(key, "only in the lake" if sample.old is None else "only in the warehouse", "", "")]
    changed = [name for name in table.stored_names if sample.old[name] != sample.new[name]]
    return [(key, name, str(sample.old[name]), str(sample.new[name])) for name in changed]


def _history(entries: Sequence[LedgerEntry]) -> tuple[Rows, ...]:
    lines = tuple(
        (
            f"{entry.finished_at:%Y-%m-%d %H:%M}",
            entry.repair_id,
            f"{entry.mode}: {entry.status}",
            entry.cancels,
            entry.states,
            entry.reason,
        )
        for entry in entries
    )
    return (Rows("ledger", ("finished (UTC)", "repair", "did", "cancels", "states", "reason"), lines),)
