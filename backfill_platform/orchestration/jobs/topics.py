"""The jobs of topics: one replays hours of the lake, the other creates a consumer that drains a topic and ends by itself.

Launching them, from the launchpad or by GraphQL's `launchRun`, is the request for it. Both name every hour's counts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.connections import Connections
from backfill_platform.adapters.kafka.metrics import served
from backfill_platform.adapters.kafka.sender import Options, Progress
from backfill_platform.adapters.spark.stopping import stoppable
from backfill_platform.domain.hours import HourRange, format_hour
from backfill_platform.domain.pacing import Limits
from backfill_platform.errors import BackfillError, TransientError
from backfill_platform.orchestration.checks.delivery_counts import show_counts
from backfill_platform.orchestration.recovery import NEVER_RETRIED
from backfill_platform.orchestration.run_request import RunRequest
from backfill_platform.pipelines.registry import find_pipeline
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.topics.drain import PERSIST, Drain, drain_topic
from backfill_platform.topics.replay import Replay, ReplayEngines, replay_hours

_ATTEMPTS = 3
_TELL_SECONDS = 5.0


class ReplayConfig(dg.Config):
    """Which hours to replay, where to, and how fast."""

    start: str = Field(description="first owning hour, UTC, such as 2026-03-01T10")
    end: str = Field(description="end of the owning hours, not included")
    name: str = Field("", description="names the replay; the same name goes on where it ended. Without: that of the first run")
    beside: list[str] = Field([], description="other pipelines to send side by side, advanced by one watermark")
    topic: str = Field("", description="another topic than the one of the pipeline's replays")
    live_topic: str = Field("", description="say the name of a live topic twice to write to it")
    tenants: list[str] = Field([], description="only rows of these tenants")
    margins: bool = Field(True, description="also events around the hours that sessions and windows need")
    max_misalignment_minutes: float = Field(5.0, gt=0, description="the most event time that any message may be ahead by")
    messages_per_second: float | None = Field(None, gt=0, description="the most messages per second")
    bytes_per_second: float | None = Field(None, gt=0, description="the most bytes of keys and payloads per second")
    lag_group: str = Field("", description="pause while this consumer group is too far behind")
    max_lag: int = Field(100_000, gt=0, description="messages that it may be behind")
    transactional: bool = Field(
        False,
        description="send in transactions, for consumers that read what is committed: none comes twice when a broker dies",
    )
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="while it runs, serve its figures for Prometheus on this port of the loopback address"
    )


class DrainConfig(dg.Config):
    """Which topic to drain, by what name, and what to do with its messages."""

    drain: str = Field(
        description="name of the drain: one of the same name goes on where it ended, and takes over from one that still runs"
    )
    topic: str = Field("", description="the topic; without, that of the pipeline's replays")
    handler: str = Field(PERSIST, description="a handler of the pipeline, or persist: keep the messages in backfill.drained")


def replay_job_name(pipeline: str) -> str:
    """The name of the job that replays hours of a pipeline."""
    return f"{pipeline}_replay"


def drain_job_name(pipeline: str) -> str:
    """The name of the job that drains topics of a pipeline."""
    return f"{pipeline}_drain"


def replay_job(pipeline: Pipeline, every: Iterable[Pipeline]) -> dg.JobDefinition:
    """A job of one op; `every` are all pipelines. It fails where not all messages were acknowledged."""
    pipelines = {one.name: one for one in every}

    @dg.op(name=f"{pipeline.name}_replay_op", out=dg.Out(dagster_type=dict))
    def send(
        context: dg.OpExecutionContext,
        config: ReplayConfig,
        spark: LazyPySparkResource,
        connections: dg.ResourceParam[Connections],
    ) -> dg.Output[dict[str, object]]:
        with _as_failures(), closing(connections.warehouse()) as warehouse, closing(connections.cluster()) as cluster:
            asked = RunRequest.from_tags(context.run.tags).repair
            hours, ledger = HourRange.parse(config.start, config.end), Ledger(warehouse)
            chosen = (pipeline, *(find_pipeline(pipelines, name) for name in config.beside))
            # A run that is launched again after a failure goes on with the messages of the first.
            name = config.name or f"replay-{context.run.root_run_id or context.run_id}"
            wanted = Replay(
                name,
                chosen,
                hours,
                topics={pipeline.name: config.topic} if config.topic else {},
                live=[config.live_topic] if config.live_topic else [],
                tenants=tuple(config.tenants),
                margins=config.margins,
                options=Options(
                    max_misalignment=round(config.max_misalignment_minutes * 60_000_000),
                    limits=Limits(config.messages_per_second, config.bytes_per_second),
                    lag_group=config.lag_group,
                    max_lag=config.max_lag,
                    transactional=config.transactional,
                ),
                reason=asked.reason,
                requester=asked.requester,
                code_version=version("backfill-platform"),
            )
            with ExitStack() as stack:
                port = config.metrics_port
                figures = None if port is None else stack.enter_context(served(port, name))
                counts = replay_hours(
                    wanted,
                    ReplayEngines(
                        stack.enter_context(stoppable(lambda: spark.spark_session)),
                        connections.lake(),
                        cluster,
                        ledger,
                        lambda: datetime.now(UTC),
                    ),
                    every=tuple(pipelines.values()),
                    say=context.log.info,
                    tell=_Teller(context, figures),
                )
            for one in chosen:
                show_counts(context, one, ledger, list(hours))
        rows = [(one.pipeline, one.topic, format_hour(one.hour), one.selected, one.margin, one.acknowledged) for one in counts]
        names = ("pipeline", "topic", "hour (UTC)", "rows selected", "of these around", "messages acknowledged")
        sent = sum(one.acknowledged for one in counts)
        if lost := sum(one.selected for one in counts) - sent:
            raise dg.Failure(
                f"{lost} messages were not acknowledged; launch it again with the name {name}", allow_retries=False
            )
        return dg.Output({"replay": name, "acknowledged": sent}, metadata={"replay": name, "counts": _table(names, rows)})

    @dg.job(
        name=replay_job_name(pipeline.name),
        description=f"Send hours of {pipeline.name} from the lake to a topic, and count every message.",
        tags=NEVER_RETRIED,
    )
    def job() -> None:
        send()

    return job


def drain_job(pipeline: Pipeline) -> dg.JobDefinition:
    """A job of one op. It fails where the counts of rows selected, messages acknowledged and messages persisted disagree."""

    @dg.op(name=f"{pipeline.name}_drain_op", out=dg.Out(dagster_type=dict))
    def consume(
        context: dg.OpExecutionContext, config: DrainConfig, connections: dg.ResourceParam[Connections]
    ) -> dg.Output[dict[str, object]]:
        with _as_failures(), closing(connections.warehouse()) as warehouse, closing(connections.cluster()) as cluster:
            asked = RunRequest.from_tags(context.run.tags).repair
            report = drain_topic(
                Drain(
                    config.drain,
                    config.topic,
                    config.handler,
                    asked.reason,
                    asked.requester,
                    version("backfill-platform"),
                ),
                pipeline,
                cluster,
                warehouse,
                clock=lambda: datetime.now(UTC),
                tell=lambda done, total: context.log.info(f"{done:,} of {total:,} messages"),
                counted=lambda hours: show_counts(context, pipeline, Ledger(warehouse), hours),
            )
        found = {"handled": report.drained.handled, "sent": report.drained.sent}
        rows = [(one.replay, format_hour(one.hour), one.selected, one.acknowledged, one.persisted) for one in report.hours]
        names = ("replay", "hour (UTC)", "rows selected", "messages acknowledged", "messages persisted")
        return dg.Output(dict(found), metadata={**found, "counts": _table(names, rows)})

    @dg.job(
        name=drain_job_name(pipeline.name),
        description=f"Consume what a topic of {pipeline.name} has, by a consumer that ends by itself.",
        tags=NEVER_RETRIED,
    )
    def job() -> None:
        consume()

    return job


class _Teller:
    """The progress of a replay: in the log of the run now and then, and for who takes its figures."""

    def __init__(self, context: dg.OpExecutionContext, figures: Callable[[Progress], None] | None) -> None:
        self._context, self._figures = context, figures
        self._told = float("-inf")

    def __call__(self, one: Progress) -> None:
        if self._figures is not None:
            self._figures(one)
        if one.seconds - self._told >= _TELL_SECONDS or one.acknowledged == one.total:
            self._told = one.seconds
            self._context.log.info(str(one))


@contextmanager
def _as_failures() -> Iterator[None]:
    try:
        yield
    except TransientError as error:
        # It goes on where it ended.
        raise dg.RetryRequested(max_retries=_ATTEMPTS, seconds_to_wait=5) from error
    except BackfillError as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def _table(names: Sequence[str], rows: Iterable[Sequence[str | int | None]]) -> dg.TableMetadataValue:
    records = [
        dg.TableRecord({name: "" if value is None else value for name, value in zip(names, row, strict=True)}) for row in rows
    ]
    return dg.MetadataValue.table(records, schema=dg.TableSchema([dg.TableColumn(name, "string") for name in names]))
