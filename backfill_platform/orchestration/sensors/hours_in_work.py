"""Which hours of a pipeline runs and backfills are at work on, or will be."""

from datetime import datetime

import dagster as dg

from backfill_platform.domain.hours import parse_hour
from backfill_platform.orchestration.dagster_overrides.private_names import active_backfills
from backfill_platform.orchestration.partitions import hours_of_tags
from backfill_platform.orchestration.recovery import UNFINISHED
from backfill_platform.pipelines.spec import Pipeline


def hours_in_work(
    instance: dg.DagsterInstance, repository: dg.RepositoryDefinition | None, pipeline: Pipeline
) -> set[datetime]:
    """The hours of queued and unfinished runs and backfills that have assets of the pipeline."""
    ours = {dg.AssetKey(list(asset)) for node in pipeline.nodes for asset in node.assets}
    found: set[datetime] = set()
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED, *UNFINISHED])):
        hours = hours_of_tags(run.tags)
        if hours and ours.intersection(run.asset_selection or ()):
            found.update(hours)
    if repository is None:
        return found
    for backfill in active_backfills(instance):
        # Not of others: those of another code location have assets that this one does not know.
        if backfill.is_asset_backfill and ours.intersection(backfill.asset_selection or ()):
            data = backfill.get_asset_backfill_data(repository.asset_graph)
            for key in ours.intersection(backfill.asset_selection or ()):
                subset = data.get_target_partitions_subset(key)
                found.update(parse_hour(name) for name in subset.get_partition_keys())
    return found
