"""The check `no_gap` of every table of a pipeline, hour by hour: what the detector finds, as Dagster shows it.

A check by itself and not one of the assets' own: it can be evaluated at any time, without materializing anything. The job
`<pipeline>_gap_evaluation` does so for a range; the gap sensor asks for it where something has changed.
"""

from contextlib import closing
from datetime import UTC, datetime

import dagster as dg

from backfill_platform.adapters.connections import Connections
from backfill_platform.detection.survey import survey
from backfill_platform.domain.hours import partition_key
from backfill_platform.domain.plan import WAREHOUSE
from backfill_platform.errors import BackfillError
from backfill_platform.orchestration.checks.pending_approval import TEXTS, evaluation, newest_materializations
from backfill_platform.orchestration.dagster_overrides.hourly_event_log import batched
from backfill_platform.orchestration.damage_reporting import gap_metadata, repair_link, report_damage
from backfill_platform.orchestration.partitions import chosen_hours
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.outcomes import NO_GAP
from backfill_platform.reports.gap_calendar import calendar_picture


def gap_checks(pipeline: Pipeline, partitions: dg.HourlyPartitionsDefinition) -> dg.AssetChecksDefinition:
    """`no_gap` of every lake table and every warehouse table of the pipeline."""
    assets = [table.path for table in pipeline.tables] + [(WAREHOUSE, table.name) for table in pipeline.published]

    @dg.multi_asset_check(
        name=f"{pipeline.name}_no_gap",
        specs=[
            dg.AssetCheckSpec(NO_GAP, asset=list(asset), description=TEXTS[NO_GAP], partitions_def=partitions)
            for asset in assets
        ],
        can_subset=True,
    )
    def look(context: dg.AssetCheckExecutionContext, connections: dg.ResourceParam[Connections]):  # type: ignore[no-untyped-def]
        try:
            hours = chosen_hours(context.run.tags)
            with closing(connections.warehouse()) as warehouse:
                found = survey(
                    pipeline,
                    hours,
                    connections.lake(),
                    warehouse,
                    connections.loading,
                    now=datetime.now(UTC),
                    connect=connections.named,
                )
        except BackfillError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        gaps = {(gap.table, gap.hour): gap for gap in found.gaps}
        instance = context.op_execution_context.instance
        damaged = {
            key.asset_key: [hour for hour in hours if (key.asset_key.to_user_string(), hour) in gaps]
            for key in context.selected_asset_check_keys
        }
        # First: an hour that is right again is materialized by it, and its check has to judge that.
        report_damage(context.op_execution_context, pipeline.name, hours, damaged)
        for asset in damaged:
            name = asset.to_user_string()
            known = newest_materializations(instance, asset, [partition_key(hour) for hour in hours])
            with batched(instance):
                for hour in hours:
                    gap = gaps.get((name, hour))
                    text = f"{gap.kind}: {gap.evidence}" if gap else "nothing is wrong"
                    metadata = gap_metadata(gap, found.rows[name, hour])
                    verdict = evaluation(asset, NO_GAP, hour, gap is None, text, metadata, known)
                    context.op_execution_context.log_event(verdict)  # type: ignore[arg-type]  # asset contexts take it, too
        for asset, wrong in damaged.items():
            yield dg.AssetCheckResult(
                asset_key=asset,
                check_name=NO_GAP,
                passed=not wrong,
                severity=dg.AssetCheckSeverity.WARN,
                description=f"{len(wrong)} of {len(hours)} hours of {hours} have a gap",
                metadata={
                    "calendar": dg.MetadataValue.md(calendar_picture(found, asset.to_user_string())),
                    **({"repair": dg.MetadataValue.md(repair_link(asset, wrong))} if wrong else {}),
                },
            )

    return look
