"""What a person has to see: gaps that were found, and repairs that wait for somebody, as checks of the hours they concern."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

import dagster as dg

from backfill_platform.domain.hours import format_hour, partition_key
from backfill_platform.domain.plan import WAREHOUSE, Branch, CompareHours, PublishHours, RehearseBuild, Step, source_of
from backfill_platform.orchestration.dagster_overrides.private_names import JudgedMaterialization
from backfill_platform.orchestration.presentation.metadata import hour_metadata
from backfill_platform.repair.outcomes import NO_GAP, NO_PENDING_APPROVAL, HourOutcome
from backfill_platform.reports.markdown import paragraph

TEXTS = {
    NO_GAP: "The detector finds nothing wrong with the hour, or it has been materialized since. This check blocks nothing.",
    NO_PENDING_APPROVAL: "No repair of the hour waits for approval: no dry run differs from the warehouse, and no publish was "
    "refused. Materialize the hour to approve it. This check blocks nothing.",
}
_BATCH = 200

Materializations = Mapping[str, JudgedMaterialization]


def newest_materializations(instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Collection[str]) -> Materializations:
    """The newest materialization of each partition that has one.

    The web page shows a check of an hour only when it names the materialization that it judged.
    """
    found: dict[str, JudgedMaterialization] = {}
    names = sorted(keys)
    for start in range(0, len(names), _BATCH):
        part = names[start : start + _BATCH]
        ids = instance.event_log_storage.get_latest_storage_id_by_partition(
            asset, dg.DagsterEventType.ASSET_MATERIALIZATION, partitions=set(part)
        )
        records = instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=asset, asset_partitions=part, storage_ids=list(ids.values())), limit=len(part)
        ).records
        found |= {
            str(record.partition_key): JudgedMaterialization(
                storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
            )
            for record in records
        }
    return found


def pending_approvals(
    instance: dg.DagsterInstance, step: Step, outcomes: Sequence[HourOutcome], repair: str, known: Materializations
) -> Iterator[dg.AssetCheckEvaluation]:
    """What a step says about its hours: no gap where one was materialized, and what waits for a person to publish it.

    `known` are the materializations of the step's own asset.
    """
    asset = dg.AssetKey(list(step.asset))
    if not isinstance(step, CompareHours | RehearseBuild):
        for outcome in outcomes:
            if not outcome.error:
                yield evaluation(asset, NO_GAP, outcome.hour, True, "materialized", {"repair": repair}, known)
    if not isinstance(step, CompareHours | PublishHours):
        return
    table = step.node.table
    target = dg.AssetKey([WAREHOUSE, table.name])
    if target != asset:
        known = newest_materializations(instance, target, [partition_key(outcome.hour) for outcome in outcomes])
    for outcome in outcomes:
        if not outcome.error and (isinstance(step, PublishHours) or not outcome.differs):
            yield evaluation(
                target, NO_PENDING_APPROVAL, outcome.hour, True, "nothing waits for approval", {"repair": repair}, known
            )
        elif outcome.differs:
            why = outcome.error or "a dry run differs from the warehouse"
            both = f"{table} and " if source_of(step) is Branch.REPAIR else ""
            how = f"materialize {both}{target.to_user_string()} of {format_hour(outcome.hour)} to publish it"
            metadata = hour_metadata(outcome, table, repair)
            yield evaluation(target, NO_PENDING_APPROVAL, outcome.hour, False, f"{why}; {how}", metadata, known)


def evaluation(
    asset: dg.AssetKey,
    check: str,
    hour: datetime,
    passed: bool,
    text: str,
    metadata: Mapping[str, dg.MetadataValue | str],
    known: Materializations,
) -> dg.AssetCheckEvaluation:
    """The verdict on one hour; a failed one warns, because what it is about holds nothing back by itself."""
    key = partition_key(hour)
    return dg.AssetCheckEvaluation(
        asset_key=asset,
        check_name=check,
        passed=passed,
        partition=key,
        severity=dg.AssetCheckSeverity.WARN,
        description=paragraph(text),  # Dagster shows it as Markdown
        metadata=metadata,
        target_materialization_data=known.get(key),
    )
