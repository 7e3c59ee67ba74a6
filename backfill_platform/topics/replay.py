"""Replaying hours of the lake into backfill topics, for consumers that must be repaired through the stream.

What is sent is selected first, with the margins that the windows of the derived tables need, and frozen; so a replay that died
goes on where its messages ended. Each hour's counts of rows selected and of messages acknowledged go to the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.state.ledger import Ledger, LedgerEntry
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.kafka.cluster import Cluster, milliseconds
from backfill_platform.adapters.kafka.replay_selection import Manifest, Selection
from backfill_platform.adapters.kafka.sender import Lane, Options, Progress, positions, send
from backfill_platform.adapters.kafka.topic import KafkaTopic
from backfill_platform.adapters.spark.hours import within
from backfill_platform.adapters.spark.reader import RangeRead, read_range
from backfill_platform.domain.hours import HourRange, format_hour, hour_after, parse_hour
from backfill_platform.domain.plan import in_words
from backfill_platform.domain.windows import UntilClosed, Window, contiguous_runs
from backfill_platform.errors import PreconditionError, UsageError
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.topics.delivery_counts import REPLAY

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_PARTITIONS = 4


@dataclass(frozen=True)
class Replay:
    """What is asked for: the owning hours `[start, end)` of some pipelines, by whom and why.

    `topics` names the topic of a pipeline instead of its own backfill topic. `live` repeats the name of a live topic that may
    be written to. Topics that are missing are made with so many `partitions` (of the live topic if 0), and keep the messages
    for `keep` from now on. `tenants` limits it to their rows; without `margins` only events of the hours themselves are sent.
    """

    name: str
    pipelines: tuple[Pipeline, ...]
    hours: HourRange
    topics: Mapping[str, str] = field(default_factory=dict)
    live: Collection[str] = ()
    partitions: int = 0
    keep: timedelta = timedelta(days=7)
    tenants: tuple[str, ...] = ()
    margins: bool = True
    options: Options = field(default_factory=Options)
    reason: str = ""
    requester: str = ""
    code_version: str = ""

    def topic_of(self, pipeline: Pipeline) -> str:
        """The topic that a pipeline's messages go to."""
        return self.topics.get(pipeline.name, pipeline.backfill_topic)


@dataclass(frozen=True)
class HourCount:
    """What became of the events of one hour of a pipeline: rows selected, of these outside the owning hours, acknowledged."""

    pipeline: str
    topic: str
    hour: datetime
    selected: int
    margin: int
    acknowledged: int


@dataclass(frozen=True)
class ReplayEngines:
    """What a replay reads, writes and asks the time. Spark is opened when rows have to be selected."""

    spark: Callable[[], SparkSession]
    lake: Lake
    cluster: Cluster
    ledger: Ledger
    clock: Callable[[], datetime]


def replay_hours(
    asked: Replay,
    engines: ReplayEngines,
    *,
    every: Collection[Pipeline],
    say: Callable[[str], None],
    tell: Callable[[Progress], None],
) -> list[HourCount]:
    """Select, send, count; the counts of each hour, which are in the ledger, too. Asking again goes on with what is missing.

    `every` are all pipelines, whose live topics are not to be written to. Raises UsageError for a live topic that was not named
    twice, PreconditionError for a topic that cannot take the messages, and what sending raises.
    """
    _refuse_live_topics(asked, every)
    cluster, lanes = engines.cluster, []
    for pipeline in asked.pipelines:
        selection = Selection(engines.lake.root_uri, asked.name, pipeline.name)
        manifest = selection.manifest()
        if manifest is None:
            say(f"selecting {pipeline.name} {asked.hours}")
            manifest = _select(asked, pipeline, selection, engines.spark(), engines.lake, cluster, engines.clock())
            done: Mapping[int, int] = {}
        else:
            _refuse_another(asked, pipeline, manifest)
            done = positions(cluster, manifest, fenced=asked.options.transactional)
        lanes.append(Lane(selection, manifest, done))
    started = engines.clock()
    say(f"sending {sum(lane.manifest.rows for lane in lanes):,} messages")
    try:
        send(cluster, lanes, asked.options, tell=tell)
    finally:
        counts = [count for lane in lanes for count in _counts(lane)]
        engines.ledger.append(_entry(asked, count, started, engines.clock()) for count in counts)
    return counts


def _refuse_live_topics(asked: Replay, every: Collection[Pipeline]) -> None:
    live = {one.source.topic for one in every if isinstance(one.source, KafkaTopic)}
    for pipeline in asked.pipelines:
        if (topic := asked.topic_of(pipeline)) in live - set(asked.live):
            raise UsageError(
                f"{topic} is a live topic: its consumers would see these events a second time. Replay to another topic, or "
                f"say its name twice: --live-topic {topic}"
            )


def _refuse_another(asked: Replay, pipeline: Pipeline, manifest: Manifest) -> None:
    if manifest.topic != asked.topic_of(pipeline):
        raise UsageError(
            f"replay {asked.name} sends {pipeline.name} to {manifest.topic}; begin another replay for another topic"
        )


def _select(
    asked: Replay, pipeline: Pipeline, selection: Selection, spark: SparkSession, lake: Lake, cluster: Cluster, now: datetime
) -> Manifest:
    selection.discard_rows()
    topic, raw = asked.topic_of(pipeline), pipeline.raw
    rows = _read(asked, pipeline, spark, lake).rows
    if asked.tenants:
        rows = rows.where(F.col(_tenant_column(pipeline)).cast("string").isin(*asked.tenants))
    first = rows.agg(F.min(F.unix_micros(raw.event_time)), F.max(_partition_of(pipeline))).collect()[0]
    oldest = now if first[0] is None else datetime.fromtimestamp(first[0] / 1e6, UTC)
    partitions = _ready_topic(asked, pipeline, topic, cluster, oldest, -1 if first[1] is None else first[1], now)
    begins = {str(partition): log.stable for partition, log in cluster.logs(topic).items()}
    messages = rows.select(*_message(pipeline, asked.hours, partitions))
    order = ("moment", "partition", "origin", "key", "value")
    messages.orderBy(*order).write.parquet(selection.rows_uri)
    found = selection.column("hour", "margin")
    counts = Counter(found.column("hour").to_pylist())
    margins = Counter(found.filter(found.column("margin")).column("hour").to_pylist())
    manifest = Manifest(asked.name, pipeline.name, topic, dict(counts), dict(margins), begins, selection.row_files())
    selection.commit(manifest)
    return manifest


def _read(asked: Replay, pipeline: Pipeline, spark: SparkSession, lake: Lake) -> RangeRead:
    """The events that the derived tables need for the owning hours."""
    raw = pipeline.raw
    landed = lake.built_hours(raw.table)
    window, hours = _window(pipeline, asked.hours) if asked.margins else (Window(), asked.hours)
    parts, missing_input = contiguous_runs(hours, landed, window, pipeline.start, pipeline.end)
    if missing_input:
        hour, missing = min(missing_input.items())
        raise PreconditionError(
            f"{format_hour(hour)} of {pipeline.name} needs {raw.table} of {format_hour(missing)}, which the lake lacks; "
            "land it first, so that the replay is whole"
        )

    def plan_files(start: datetime, end: datetime) -> list[str]:
        return [file.uri for file in lake.files_between(raw.table, raw.event_time, start, end)]

    return read_range(
        spark,
        raw.table,
        plan_files,
        time=raw.event_time,
        hours=hours,
        window=window,
        origin=pipeline.start,
        available_until=parts[-1].available_until,
    )


def _window(pipeline: Pipeline, hours: HourRange) -> tuple[Window, HourRange]:
    """One window that holds those of all tables that read the raw one, and the hours it is needed for.

    Sessions are followed from the end of the longest look ahead in time on: more than needed does no harm.
    """
    windows = [window for node in pipeline.nodes for window in node.windows_on(pipeline.raw.table)]
    lookback = max((one.lookback for one in windows), default=timedelta(0))
    ahead = max((one.lookahead for one in windows if isinstance(one.lookahead, timedelta)), default=timedelta(0))
    until = next((one.lookahead for one in windows if isinstance(one.lookahead, UntilClosed)), None)
    if until is None:
        return Window(lookback=lookback, lookahead=ahead), hours
    return Window(lookback=lookback, lookahead=until), replace(hours, end=hour_after(hours.end + ahead))


def _tenant_column(pipeline: Pipeline) -> str:
    names = {node.table.tenant for node in pipeline.nodes if node.table.tenant in pipeline.raw.table.column_names}
    if not names - {""}:
        raise UsageError(f"the raw rows of pipeline {pipeline.name} do not say whose they are, so tenants cannot be chosen")
    return min(names - {""})


def _partition_of(pipeline: Pipeline) -> Column:
    return F.col("kafka_partition") if isinstance(pipeline.source, KafkaTopic) else F.lit(None).cast("int")


def _message(pipeline: Pipeline, hours: HourRange, partitions: int) -> list[Column]:
    """The columns of a selection: a message as it came from its topic, or a row of files as JSON."""
    raw, time = pipeline.raw, pipeline.raw.event_time
    event_ms = F.unix_millis(time)
    if isinstance(pipeline.source, KafkaTopic):
        origin = F.concat_ws("/", "kafka_topic", "kafka_partition", "kafka_offset")
        key, value, headers = F.col("kafka_key"), F.col("kafka_payload"), F.col("kafka_headers")
        partition, stamp = F.col("kafka_partition"), F.coalesce(F.unix_millis("kafka_time"), event_ms)
    else:
        names = [name for name in raw.table.column_names if name != raw.table.hour]
        origin, headers, stamp = F.lit(""), F.lit(None).cast("string"), event_ms
        key = F.col(_key_column(pipeline)).cast("string").cast("binary")
        value = F.to_json(F.struct(*names)).cast("binary")
        # As librdkafka's own partitioner does it.
        partition = (F.crc32(key) % partitions).cast("int")
    return [
        F.unix_micros(time).alias("moment"),
        F.date_format(time, "yyyy-MM-dd'T'HH").alias("hour"),
        (~within(time, hours)).alias("margin"),
        partition.alias("partition"),
        key.alias("key"),
        value.alias("value"),
        headers.alias("headers"),
        origin.alias("origin"),
        stamp.alias("stamp"),
    ]


def _key_column(pipeline: Pipeline) -> str:
    """What messages of files are keyed by: the session key or the first key column that the raw table has."""
    columns = pipeline.raw.table.column_names
    ahead = [node.window.lookahead for node in pipeline.nodes]
    keys = [one.key for one in ahead if isinstance(one, UntilClosed)]
    keys += [name for node in pipeline.nodes for name in node.table.key if name in columns]
    return keys[0] if keys else columns[0]


def _ready_topic(
    asked: Replay, pipeline: Pipeline, topic: str, cluster: Cluster, oldest: datetime, highest: int, now: datetime
) -> int:
    """Make the topic, or see that it can take the messages; its number of partitions.

    Kafka keeps messages by their own timestamps: with the usual seven days, old events would be deleted as they arrive.
    """
    age = max(milliseconds(now) - milliseconds(oldest), 0)
    there = topic in cluster.topics()
    if there:
        partitions = len(cluster.partitions(topic))
    else:
        partitions = asked.partitions or _live_partitions(pipeline, cluster) or max(highest + 1, _PARTITIONS)
    if highest >= partitions:
        raise PreconditionError(
            f"topic {topic} has {partitions} partitions, and the messages come from {highest + 1}: choose one with as many"
        )
    if not there:
        config = {"retention.ms": str(age + asked.keep // timedelta(milliseconds=1)), "message.timestamp.type": "CreateTime"}
        cluster.create_topic(topic, partitions, config)
    retention = int(cluster.topic_config(topic).get("retention.ms", "-1"))
    if 0 <= retention <= age:
        raise PreconditionError(
            f"topic {topic} keeps messages for {in_words(timedelta(milliseconds=retention))} by their own time, and the "
            f"first is of {oldest:%Y-%m-%dT%H:%M}: Kafka would delete it at once. Set its retention.ms above {age}, or choose "
            "another topic"
        )
    return partitions


def _live_partitions(pipeline: Pipeline, cluster: Cluster) -> int:
    source = pipeline.source
    if isinstance(source, KafkaTopic) and source.topic in cluster.topics():
        return len(cluster.partitions(source.topic))
    return 0


def _counts(lane: Lane) -> list[HourCount]:
    manifest, acknowledged = lane.manifest, lane.acknowledged()
    return [
        HourCount(
            manifest.pipeline,
            manifest.topic,
            parse_hour(hour),
            selected,
            manifest.margins.get(hour, 0),
            acknowledged[hour] + lane.skipped[hour],
        )
        for hour, selected in sorted(manifest.counts.items())
    ]


def _entry(asked: Replay, count: HourCount, started: datetime, finished: datetime) -> LedgerEntry:
    whole = count.selected == count.acknowledged
    return LedgerEntry(
        repair_id=asked.name,
        attempt_id=asked.name,
        pipeline=count.pipeline,
        target=f"kafka/{count.topic}",
        hour=count.hour,
        mode=REPLAY,
        status="done" if whole else "unfinished",
        rows_read=count.selected,
        rows_kept=count.acknowledged,
        reason=asked.reason,
        note=f"{count.margin} of the rows lie around the hours that were asked for" if count.margin else "",
        requester=asked.requester,
        code_version=asked.code_version,
        server_version="",
        schema_hash="",
        started_at=started,
        finished_at=finished,
    )
