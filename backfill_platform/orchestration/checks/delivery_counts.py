"""The check `delivery_counts` of a raw table, hour by hour: did a replay's messages arrive, all of them and none twice.

The jobs of topics evaluate it for what they have sent or drained; it can be evaluated at any time over any range, too.
"""

from collections.abc import Collection
from contextlib import closing
from datetime import datetime

import dagster as dg

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.connections import Connections
from backfill_platform.domain.hours import partition_key
from backfill_platform.errors import BackfillError
from backfill_platform.orchestration.checks.pending_approval import newest_materializations
from backfill_platform.orchestration.dagster_overrides.hourly_event_log import batched
from backfill_platform.orchestration.partitions import chosen_hours
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.reports.markdown import paragraph
from backfill_platform.topics.delivery_counts import DELIVERY_COUNTS, newest_delivery_counts

_TEXT = (
    "Of the newest replay of the hour, rows selected = messages acknowledged = messages persisted by a drain. A drain job "
    "fails where they differ, and `backfill check` does."
)


def delivery_count_checks(pipeline: Pipeline, partitions: dg.HourlyPartitionsDefinition) -> dg.AssetChecksDefinition:
    """`delivery_counts` of the pipeline's raw table."""
    asset = dg.AssetKey(list(pipeline.raw.table.path))

    @dg.multi_asset_check(
        name=f"{pipeline.name}_{DELIVERY_COUNTS}",
        specs=[dg.AssetCheckSpec(DELIVERY_COUNTS, asset=asset, description=_TEXT, partitions_def=partitions, blocking=True)],
    )
    def count(context: dg.AssetCheckExecutionContext, connections: dg.ResourceParam[Connections]):  # type: ignore[no-untyped-def]
        try:
            hours = chosen_hours(context.run.tags)
            with closing(connections.warehouse()) as warehouse:
                wrong, seen = show_counts(context.op_execution_context, pipeline, Ledger(warehouse), list(hours))
        except BackfillError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        yield dg.AssetCheckResult(
            asset_key=asset,
            check_name=DELIVERY_COUNTS,
            passed=not wrong,
            description=f"{wrong} of {seen} replayed hours of {hours} have counts that differ",
        )

    return count


def show_counts(
    context: dg.OpExecutionContext, pipeline: Pipeline, ledger: Ledger, hours: Collection[datetime]
) -> tuple[int, int]:
    """Evaluate the check for those of the hours that were replayed; how many fail it, and how many there are."""
    asset = dg.AssetKey(list(pipeline.raw.table.path))
    found = newest_delivery_counts(ledger, pipeline.name, hours)
    known = newest_materializations(context.instance, asset, [partition_key(hour) for hour in found])
    with batched(context.instance):
        for hour, one in sorted(found.items()):
            key = partition_key(hour)
            verdict = dg.AssetCheckEvaluation(
                asset_key=asset,
                check_name=DELIVERY_COUNTS,
                passed=one.agree,
                partition=key,
                severity=dg.AssetCheckSeverity.ERROR,
                description=paragraph(str(one)),
                metadata={
                    "replay": one.replay,
                    "rows selected": one.selected or 0,
                    "messages acknowledged": one.acknowledged or 0,
                    "messages persisted": "not drained yet" if one.persisted is None else one.persisted,
                },
                target_materialization_data=known.get(key),
                blocking=True,
            )
            context.log_event(verdict)  # type: ignore[arg-type]  # asset contexts take it, too
    return sum(not one.agree for one in found.values()), len(found)
