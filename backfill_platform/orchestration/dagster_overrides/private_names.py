"""Names of the pinned Dagster that have no public home, for the rest of `orchestration` to take from here."""

from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill
from dagster._daemon.auto_run_reexecution.event_log_consumer import DAGSTER_EVENT_TYPES, _create_cursor_key

Job = dg.JobDefinition | UnresolvedAssetJobDefinition
JudgedMaterialization = AssetCheckEvaluationTargetMaterializationData


def active_backfills(instance: dg.DagsterInstance) -> Sequence[PartitionBackfill]:
    """The backfills that were asked for and have not ended."""
    return instance.get_backfills(filters=BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING]))


def let_the_daemon_see_failures(instance: dg.DagsterInstance) -> None:
    """Let a daemon that has never run yet see failed runs from here on: by itself it ignores what is older than its start."""
    keys = {_create_cursor_key(kind) for kind in DAGSTER_EVENT_TYPES}
    missing = keys - instance.daemon_cursor_storage.get_cursor_values(keys).keys()
    if missing:
        newest = instance.event_log_storage.get_maximum_record_id() or 0
        instance.daemon_cursor_storage.set_cursor_values(dict.fromkeys(missing, str(newest)))
