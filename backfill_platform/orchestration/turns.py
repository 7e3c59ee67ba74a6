"""When the runs of a pipeline take their turn: the tags of its assets and jobs that the run queue goes by."""

from backfill_platform.domain.run_order import FIRST, LAST
from backfill_platform.orchestration.dagster_overrides.run_queue import AT_ONCE_TAG, ORDER_TAG, PIPELINE_TAG, PRIORITY_TAG
from backfill_platform.pipelines.spec import Pipeline

# Tags of jobs that wait for nobody, and of those that everybody goes before.
AT_THE_HEAD = {ORDER_TAG: str(FIRST)}
AT_THE_END = {ORDER_TAG: str(LAST)}


def turn_tags(pipeline: Pipeline) -> dict[str, str]:
    """What the pipeline declares of its runs: its name, its priority, and how many may run at once."""
    tags = {PIPELINE_TAG: pipeline.name}
    if pipeline.priority:
        tags[PRIORITY_TAG] = str(pipeline.priority)
    if pipeline.runs_at_once is not None:
        tags[AT_ONCE_TAG] = str(pipeline.runs_at_once)
    return tags
