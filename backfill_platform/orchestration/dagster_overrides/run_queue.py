"""The run queue: newest hours first, and no more runs of a pipeline at once than it declares.

Dagster sorts its queue by a tag that whoever launches a run must set. A backfill of the web page has none, and would wait
behind every run that has one. So each run gets its tags when it is queued, from the pipeline of its assets and from its hours.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import dagster as dg
from dagster._core.run_coordinator.base import SubmitRunContext

from backfill_platform.domain.hours import hour_of, parse_hour
from backfill_platform.domain.run_order import order_of
from backfill_platform.errors import HourError

# Tags of assets and of jobs. What a run gets of them are tags that the limits in dagster.yaml go by.
PIPELINE_TAG = "backfill/pipeline"
PRIORITY_TAG = "backfill/priority"
AT_ONCE_TAG = "backfill/runs_at_once"
ORDER_TAG = "dagster/priority"
UNDECLARED = "default"
_DECLARED = (PIPELINE_TAG, PRIORITY_TAG, AT_ONCE_TAG)
_FIRST_HOUR_TAGS = ("dagster/asset_partition_range_start", "dagster/partition")


class PipelineRunQueue(dg.QueuedRunCoordinator):
    """Dagster's own queue; each run that enters it gets its place, and its pipeline's limit."""

    def submit_run(self, context: SubmitRunContext) -> dg.DagsterRun:
        """Queue a run under the tags by which it takes its turn. One that has a place of its own keeps it."""
        run = context.dagster_run
        tags = queue_tags(run.tags, _tags_of_assets(context), datetime.now(UTC))
        if tags:
            self._instance.add_run_tags(run.run_id, tags)
        return super().submit_run(context)


def queue_tags(run: Mapping[str, str], assets: Mapping[str, str], now: datetime) -> dict[str, str]:
    """The tags that a run lacks, from those of its job and of its assets. A run without hours counts as one of now."""
    declared = {**assets, **{name: run[name] for name in _DECLARED if name in run}}
    pipeline, tags = declared.get(PIPELINE_TAG), {}
    if pipeline:
        tags[PIPELINE_TAG] = pipeline
        tags[limit_tag(declared.get(AT_ONCE_TAG, UNDECLARED))] = pipeline
    tags[ORDER_TAG] = str(order_of(_number(declared.get(PRIORITY_TAG)), _first_hour(run) or hour_of(now)))
    return {name: value for name, value in tags.items() if name not in run}


def limit_tag(limit: str) -> str:
    """The tag that runs of a pipeline share of which so many may run at once, or UNDECLARED; dagster.yaml has its limit."""
    return f"{AT_ONCE_TAG}_{limit}"


def _tags_of_assets(context: SubmitRunContext) -> dict[str, str]:
    """What the pipeline of the run has declared, by the tags of its assets; of several pipelines, the first by name."""
    selected = context.dagster_run.asset_selection
    if not selected:
        return {}
    graph = context.workspace.asset_graph
    tags = [graph.get(key).tags for key in selected if graph.has(key)]
    ours = [{name: one[name] for name in _DECLARED if name in one} for one in tags if PIPELINE_TAG in one]
    return min(ours, key=lambda one: one[PIPELINE_TAG], default={})


def _first_hour(run: Mapping[str, str]) -> datetime | None:
    for tag in _FIRST_HOUR_TAGS:
        try:
            if tag in run:
                return parse_hour(run[tag])
        except HourError:
            continue  # a partition of somebody else's asset
    return None


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
