"""The job that drains a topic: a launch of it, from the launchpad or by GraphQL, creates a consumer that ends by itself."""

from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version

import dagster as dg
from pydantic import Field

from backfill_platform.core.hours import format_hour
from backfill_platform.errors import BackfillError, TransientError
from backfill_platform.orchestration.recovery import NEVER_RETRIED
from backfill_platform.orchestration.request import Request
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.connect import Connections
from backfill_platform.repair.drain import PERSIST, DrainReport, drain_topic

_ATTEMPTS = 3


class DrainConfig(dg.Config):
    """Which topic to drain, by what name, and what to do with its messages."""

    drain: str = Field(
        description="name of the drain: one of the same name goes on where it ended, and takes over from one that still runs"
    )
    topic: str = Field("", description="the topic; without, that of the pipeline's replays")
    handler: str = Field(PERSIST, description="a handler of the pipeline, or persist: keep the messages in backfill.drained")


def drain_job_name(pipeline: str) -> str:
    """The name of the job that drains topics of a pipeline."""
    return f"{pipeline}_drain"


def drain_job(pipeline: Pipeline) -> dg.JobDefinition:
    """A job of one op. It fails where the counts of rows selected, messages acknowledged and messages persisted disagree."""

    @dg.op(name=f"{pipeline.name}_drain_op", out=dg.Out(dagster_type=dict))
    def consume(
        context: dg.OpExecutionContext, config: DrainConfig, connections: dg.ResourceParam[Connections]
    ) -> dg.Output[dict[str, object]]:
        asked = Request.from_tags(context.run.tags)
        try:
            with closing(connections.warehouse()) as warehouse, closing(connections.cluster()) as cluster:
                report = drain_topic(
                    pipeline,
                    cluster,
                    warehouse,
                    name=config.drain,
                    topic=config.topic,
                    handler=config.handler,
                    reason=asked.reason,
                    requester=asked.requester,
                    code_version=version("backfill-platform"),
                    clock=lambda: datetime.now(UTC),
                    tell=lambda done, total: context.log.info(f"{done:,} of {total:,} messages"),
                )
        except TransientError as error:
            # It goes on where its offsets ended.
            raise dg.RetryRequested(max_retries=_ATTEMPTS, seconds_to_wait=5) from error
        except BackfillError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        found = {"handled": report.drained.handled, "sent": report.drained.sent}
        return dg.Output(dict(found), metadata={**found, "counts": _table(report)})

    @dg.job(
        name=drain_job_name(pipeline.name),
        description=f"Consume what a topic of {pipeline.name} has, by a consumer that ends by itself.",
        tags=NEVER_RETRIED,
    )
    def job() -> None:
        consume()

    return job


def _table(report: DrainReport) -> dg.TableMetadataValue:
    rows = [
        dg.TableRecord(
            {
                "replay": one.replay,
                "hour (UTC)": format_hour(one.hour),
                "rows selected": "" if one.selected is None else one.selected,
                "messages acknowledged": "" if one.acknowledged is None else one.acknowledged,
                "messages persisted": one.persisted,
            }
        )
        for one in report.hours
    ]
    names = ("replay", "hour (UTC)", "rows selected", "messages acknowledged", "messages persisted")
    return dg.MetadataValue.table(rows, schema=dg.TableSchema([dg.TableColumn(name, "string") for name in names]))
