"""Hours that were materialized and no longer hold what was materialized: Dagster shows them as failed, and offers them again.

Dagster has no event that says so. It calls an hour failed where the newest plan to materialize it belongs to a run that failed;
that is what is written here: a run of its own that planned the hours, did nothing, and failed with the reason. The next
materialization of an hour makes it green again. Which hours a run plans can be said in private events alone.
"""

from collections.abc import Collection, Mapping
from datetime import datetime

import dagster as dg
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent

from backfill_platform.domain.hours import partition_key
from backfill_platform.orchestration.dagster_overrides.hourly_event_log import batched

DAMAGE_TAG = "backfill/damage"  # on the runs that say so
_STEP = "hours"


def show_as_failed(
    instance: dg.DagsterInstance,
    job_name: str,
    hours: Mapping[dg.AssetKey, Collection[datetime]],
    why: str,
    tags: Mapping[str, str],
) -> None:
    """Make these hours failed, with the reason, by a run of this name with these tags."""
    found = {asset: sorted(chosen) for asset, chosen in hours.items() if chosen}
    if not found:
        return
    run = instance.add_run(
        dg.DagsterRun(
            job_name=job_name,
            status=dg.DagsterRunStatus.FAILURE,  # from the first, so that nobody takes it for a run at work
            tags={**tags, DAMAGE_TAG: "true"},
            asset_selection=frozenset(found),
        )
    )
    with batched(instance):
        for asset, chosen in found.items():
            for hour in chosen:
                planned = AssetMaterializationPlannedData(asset, partition=partition_key(hour))
                event = DagsterEvent.build_asset_materialization_planned_event(job_name, _STEP, planned)
                instance.report_dagster_event(event, run_id=run.run_id)
    instance.report_run_failed(run, why)


def shown_as_failed(instance: dg.DagsterInstance, asset: dg.AssetKey) -> set[str]:
    """The partition keys whose newest plan is that of a run of `show_as_failed`: nothing has been materialized since."""
    attempts = instance.event_log_storage.get_latest_asset_partition_materialization_attempts_without_materializations(asset)
    runs = {run.run_id for run in instance.get_runs(dg.RunsFilter(tags={DAMAGE_TAG: "true"}))} if attempts else set()
    return {key for key, (run_id, _) in attempts.items() if run_id in runs}
