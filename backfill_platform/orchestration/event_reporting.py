"""What a finished step tells Dagster: every hour by itself, in few transactions."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import dagster as dg

from backfill_platform.domain.hours import partition_key
from backfill_platform.orchestration.checks.pending_approval import Materializations, newest_materializations, pending_approvals
from backfill_platform.orchestration.dagster_overrides.hourly_event_log import batched
from backfill_platform.orchestration.dagster_overrides.private_names import JudgedMaterialization
from backfill_platform.orchestration.presentation.metadata import check_metadata, hour_metadata
from backfill_platform.repair.outcomes import HourOutcome, StepFinished
from backfill_platform.reports.markdown import paragraph


def report_step(context: dg.AssetExecutionContext, finished: StepFinished, repair: str) -> None:
    """Log the hours of a finished step: materializations of the good ones, then the checks of all."""
    asset = dg.AssetKey(list(finished.step.asset))
    with batched(context.instance):
        for outcome in finished.outcomes:
            if not outcome.error:
                context.log_event(
                    dg.AssetMaterialization(
                        asset,
                        partition=partition_key(outcome.hour),
                        metadata=hour_metadata(outcome, finished.step.node.table, repair),
                    )
                )
    # Evaluations name the stored materializations that they judge, so those are written first.
    known = _materializations(context, asset, finished.outcomes)
    evaluations = [
        *_evaluations(context, asset, finished.outcomes, known),
        *pending_approvals(context.instance, finished.step, finished.outcomes, repair, known),
    ]
    with batched(context.instance):
        for evaluation in evaluations:
            context.log_event(evaluation)


def _materializations(
    context: dg.AssetExecutionContext, asset: dg.AssetKey, outcomes: Sequence[HourOutcome]
) -> Materializations:
    """What the checks of each hour judge: its materialization by this run, or the last one where the hour has failed."""
    good = {partition_key(outcome.hour) for outcome in outcomes if not outcome.error}
    ids = context.instance.event_log_storage.get_latest_storage_id_by_partition(
        asset, dg.DagsterEventType.ASSET_MATERIALIZATION, partitions=good
    )
    now = datetime.now(UTC).timestamp()
    own = {
        key: JudgedMaterialization(storage_id=number, run_id=context.run.run_id, timestamp=now) for key, number in ids.items()
    }
    failed = {partition_key(outcome.hour) for outcome in outcomes if outcome.error}
    return {**newest_materializations(context.instance, asset, failed), **own}


def _evaluations(
    context: dg.AssetExecutionContext, asset: dg.AssetKey, outcomes: Sequence[HourOutcome], known: Materializations
) -> Iterator[dg.AssetCheckEvaluation]:
    declared = {key.name for key in context.selected_asset_check_keys if key.asset_key == asset}
    for outcome in outcomes:
        for check in outcome.checks:
            if check.name in declared:
                yield dg.AssetCheckEvaluation(
                    asset_key=asset,
                    check_name=check.name,
                    passed=check.passed,
                    partition=partition_key(outcome.hour),
                    severity=dg.AssetCheckSeverity.ERROR if check.blocking else dg.AssetCheckSeverity.WARN,
                    description=paragraph(check.description),
                    metadata=check_metadata(check),
                    target_materialization_data=known.get(partition_key(outcome.hour)),
                )
