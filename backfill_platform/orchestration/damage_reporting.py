"""What Dagster is told of hours that no longer hold what was materialized: they are failed, and their checks say why.

Hours that were never materialized are missing, and stay so. An hour that is right again, without having been materialized, is
materialized here as it is: Dagster knows no other way to take a failure back.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from urllib.parse import quote

import dagster as dg

from backfill_platform.detection.survey import Survey
from backfill_platform.domain.gaps import Gap, RowCounts
from backfill_platform.domain.hours import HOUR, HourRange, merge_hours, partition_key
from backfill_platform.domain.plan import WAREHOUSE
from backfill_platform.orchestration.checks.pending_approval import evaluation, newest_materializations
from backfill_platform.orchestration.dagster_overrides.damaged_hours import show_as_failed, shown_as_failed
from backfill_platform.orchestration.dagster_overrides.hourly_event_log import batched
from backfill_platform.orchestration.recovery import NEVER_RETRIED
from backfill_platform.repair.outcomes import NO_GAP, NO_PENDING_APPROVAL
from backfill_platform.repair.publish import MATCHES_LAKE
from backfill_platform.reports.words import plural

_MOST_RANGES = 50  # in an address


def damaged_hours_job_name(pipeline: str) -> str:
    """The name of the runs that say which hours are damaged. There is no such job: nothing can be launched by it."""
    return f"{pipeline}_damaged_hours"


def report_damage(
    context: dg.OpExecutionContext, pipeline: str, hours: HourRange, damaged: Mapping[dg.AssetKey, Collection[datetime]]
) -> None:
    """Show the damaged hours of each asset as failed, and those of the range that were and are right now as materialized."""
    instance, failed = context.instance, {}
    for asset, wrong in damaged.items():
        known = newest_materializations(instance, asset, [partition_key(hour) for hour in hours])
        shown = shown_as_failed(instance, asset)
        failed[asset] = [hour for hour in wrong if (key := partition_key(hour)) in known and key not in shown]
        right = [hour for hour in hours if hour not in wrong and partition_key(hour) in shown]
        with batched(instance):
            for hour in right:
                found = {"status": "found to be right again; this run has written nothing"}
                context.log_event(dg.AssetMaterialization(asset, partition=partition_key(hour), metadata=found))
    count = len({hour for wrong in failed.values() for hour in wrong})
    names = ", ".join(sorted(asset.to_user_string() for asset, wrong in failed.items() if wrong))
    why = f"{plural(count, 'hour')} of {names} no longer hold what was materialized: see the check no_gap of each hour"
    show_as_failed(instance, damaged_hours_job_name(pipeline), failed, why, NEVER_RETRIED)


def report_undone(
    context: dg.OpExecutionContext, found: Survey, undone: str, undo: str, done: Mapping[str, Collection[datetime]]
) -> None:
    """Show what the repair `undo` has left of the repair `undone` in the hours `done` of each table, by what was `found` there.

    Hours that differ from the lake are failed, and their checks fail until they are published. Hours that are as the lake has
    them again, as after the undo of an undo, are materialized.
    """
    gaps = {(gap.table, gap.hour): gap for gap in found.gaps}
    failed: dict[dg.AssetKey, list[datetime]] = {}
    for state in found.tables:
        asset = dg.AssetKey([WAREHOUSE, state.table.name])
        name = asset.to_user_string()
        right = f"as the lake has it again, by {undo}"
        decide = f"{undo} has taken back what {undone} published: materialize {name} to publish the hour again"
        texts = {}
        for hour in done.get(state.table.name, ()):
            gap = gaps.get((name, hour))
            if gap is not None:
                texts[hour] = f"{decide}; {gap.kind}: {gap.evidence}"
            else:
                texts[hour] = right if hour in state.built else decide
        failed[asset] = [hour for hour, text in texts.items() if text != right]
        facts = {hour: {**_repair(undo), **gap_metadata(gaps.get((name, hour)), found.rows[name, hour])} for hour in texts}
        with batched(context.instance):
            for hour in texts.keys() - set(failed[asset]):
                context.log_event(dg.AssetMaterialization(asset, partition=partition_key(hour), metadata=facts[hour]))
        known = newest_materializations(context.instance, asset, [partition_key(hour) for hour in texts])
        with batched(context.instance):
            for hour, text in texts.items():
                for check in (NO_GAP, NO_PENDING_APPROVAL, MATCHES_LAKE):
                    verdict = evaluation(asset, check, hour, text == right, text, facts[hour], known)
                    context.log_event(verdict)  # type: ignore[arg-type]  # op contexts take it, too
    count = plural(len({hour for wrong in failed.values() for hour in wrong}), "hour")
    why = f"{undo} has taken back what {undone} published: {count} to be decided about; see the checks of each"
    show_as_failed(context.instance, damaged_hours_job_name(found.pipeline), failed, why, NEVER_RETRIED)


def _repair(name: str) -> dict[str, dg.MetadataValue]:
    return {"repair": dg.MetadataValue.text(name)}


def repair_link(asset: dg.AssetKey, hours: Collection[datetime]) -> str:
    """The hours as Dagster's dialog takes them, and the page of the asset whose dialog opens with them. Markdown."""
    ranges = [f"[{partition_key(one.start)}...{partition_key(one.end - HOUR)}]" for one in merge_hours(hours)]
    text = ", ".join(ranges)
    shown = ",".join(ranges[:_MOST_RANGES])
    address = f"/assets/{quote(asset.to_user_string())}?view=partitions&default_range={quote(shown)}"
    return f"[choose them, then Materialize]({address}): `{text}`"


def row_metadata(rows: RowCounts) -> dict[str, dg.MetadataValue]:
    """The counts as numbers, which Dagster plots over hours."""
    known = {} if rows.expected is None else {"rows_expected": dg.MetadataValue.int(rows.expected)}
    share = {} if rows.share is None else {"share": dg.MetadataValue.float(rows.share)}
    return {**known, "rows_found": dg.MetadataValue.int(rows.found), **share}


def gap_metadata(gap: Gap | None, rows: RowCounts) -> dict[str, dg.MetadataValue]:
    """What is wrong with an hour, with its counts."""
    if gap is None:
        return row_metadata(rows)
    found = {"kind": str(gap.kind), "evidence": gap.evidence, "place": str(gap.place)}
    found |= {"tenants": ", ".join(gap.tenants)} if gap.tenants else {}
    return {**{name: dg.MetadataValue.text(text) for name, text in found.items()}, **row_metadata(rows)}
