"""A Kafka topic as the source of a pipeline: an ingestion hour is a range of offsets in each partition.

A range goes from the first message with a timestamp in the hour to the first with one in a later hour, so every message belongs
to exactly one hour, also where timestamps are out of order (`domain/offsets.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.adapters.kafka.cluster import Cluster, Log, OpenCluster, milliseconds
from backfill_platform.adapters.kafka.payload import Payload, Text
from backfill_platform.adapters.kafka.rows import Slice, read_messages
from backfill_platform.adapters.records.inspection import Inspection
from backfill_platform.domain.hours import HOUR, HourRange, format_hour
from backfill_platform.domain.offsets import Span, Spans
from backfill_platform.errors import PreconditionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Columns that rows of a topic have in addition to those of a file's lines.
MESSAGE_COLUMNS = (
    "kafka_topic",
    "kafka_partition",
    "kafka_offset",
    "kafka_time",
    "kafka_key",
    "kafka_headers",
    "kafka_payload",
)
_MOST_MESSAGES = 250_000  # read by one task

LandedTo = Callable[[datetime], Mapping[int, int]]


@dataclass(frozen=True)
class KafkaTopic:
    """A topic whose messages are the events of a pipeline; the parser gets each payload as `line`, decoded by `value`.

    `backfill` is the topic of replays, which the pipeline reads instead of `topic` with BACKFILL_SOURCE=backfill; by default
    the topic's name with `.backfill`. The setting BACKFILL_KAFKA names the cluster.
    """

    topic: str
    value: Payload = field(default_factory=Text)
    backfill: str = ""

    @property
    def backfill_topic(self) -> str:
        """The topic of replays."""
        return self.backfill or f"{self.topic}.backfill"

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """The source of the hours, as text."""
        return (f"Kafka topic {self.topic}",)

    def open(self, cluster: OpenCluster, clock: Callable[[], datetime], landed_to: LandedTo, *, backfill: bool) -> TopicReader:
        """A reader of the topic, or with `backfill` of the topic of replays.

        `landed_to` gives, for the end of an hour, the offsets up to which the hour was landed, by partition.
        """
        return TopicReader(self.backfill_topic if backfill else self.topic, self.value, cluster(), clock, landed_to)


class TopicReader:
    """A topic of a cluster, as landing reads it. Its offsets are read once."""

    missing_place = "kafka_time: not within an hour"
    undecodable = "payload: cannot be decoded"

    def __init__(
        self, topic: str, value: Payload, cluster: Cluster, clock: Callable[[], datetime], landed_to: LandedTo
    ) -> None:
        self._topic, self._value, self._cluster, self._clock, self._landed_to = topic, value, cluster, clock, landed_to
        self._since = cache(lambda moment: cluster.first_since(topic, [moment])[moment])
        self._logs = cache(lambda: cluster.logs(topic))

    def spans(self, hour: datetime) -> Spans:
        """The offsets of an ingestion hour, of every partition."""
        first, after = self._since(hour), self._since(hour + HOUR)
        spans = []
        for partition, log in self._logs().items():
            start, end = first.get(partition), after.get(partition)
            last = log.stable if end is None else end
            spans.append(Span(partition, last if start is None else min(start, last), last))
        return tuple(spans)

    def inspect(self, hours: Iterable[datetime], taken: Mapping[str, str]) -> Inspection:
        """The hours that cannot be landed. Messages are counted as they are read."""
        return Inspection(self.absent(hours), None)

    def versions(self, hours: Iterable[datetime]) -> dict[datetime, str]:
        """None: messages of a topic never change."""
        return {}

    def absent(self, hours: Iterable[datetime]) -> dict[datetime, str]:
        """The hours that cannot be landed, with the reason: not over, held back by a transaction, or no longer retained."""
        now = self._clock()
        reasons = {}
        for hour in hours:
            if hour + HOUR > now:
                reasons[hour] = f"the hour is not over: it is {now:%Y-%m-%dT%H:%M} UTC"
            elif reason := self._why_not(hour):
                reasons[hour] = reason
        return reasons

    def _why_not(self, hour: datetime) -> str:
        try:
            spans = self.spans(hour)
        except PreconditionError as error:
            return str(error)
        after = self._since(hour + HOUR)
        for span in spans:
            log, end = self._logs()[span.partition], after.get(span.partition)
            if log.stable < log.end and (end is None or end > log.stable):
                return (
                    f"partition {span.partition} of {self._topic} has a transaction open since offset {log.stable}, which may "
                    "belong to the hour; land it again when the transaction is over"
                )
            if log.start > 0 and span.start <= log.start and not self._all_retained(hour, span, log):
                return (
                    f"partition {span.partition} of {self._topic} retains nothing before offset {log.start}, so messages of "
                    f"{format_hour(hour)} may be gone; what has landed of it stays as it is"
                )
        return ""

    def _all_retained(self, hour: datetime, span: Span, log: Log) -> bool:
        """Whether the log, which begins with the hour, has all of it: judged by earlier landings or by the topic's settings."""
        landed = self._landed_to(hour).get(span.partition)
        if landed is not None and log.start <= landed:
            return True
        config = self._config()
        age, size = int(config.get("retention.ms", "-1")), int(config.get("retention.bytes", "-1"))
        oldest = milliseconds(self._clock()) - age
        return size < 0 and "delete" in config.get("cleanup.policy", "delete") and age > 0 and oldest < milliseconds(hour)

    def _config(self) -> dict[str, str]:
        return self._cluster.topic_config(self._topic)

    def lines(self, spark: SparkSession, hours: Collection[datetime], taken: Mapping[str, str] | None = None) -> DataFrame:
        """The messages of the hours, each once: `line`, `undecodable`, `file_hour` and the columns of the message.

        Nothing is `taken` from messages by name: a pipeline parses them.
        """
        slices = [
            Slice(hour, span.partition, start, min(start + _MOST_MESSAGES, span.end))
            for hour in sorted(hours)
            for span in self.spans(hour)
            for start in range(span.start, span.end, _MOST_MESSAGES)
        ]
        cluster = self._cluster
        rows = read_messages(spark, self._topic, slices, value=self._value, config=cluster.config, registry=cluster.registry)
        if isinstance(self._value, Text):
            text, broken = F.col("kafka_payload").cast("string"), ~F.is_valid_utf8(F.col("kafka_payload").cast("string"))
        else:
            text, broken = F.col("decoded"), F.col("poison").isNotNull()
        undecodable = F.coalesce(broken, F.lit(False))
        return rows.select(
            F.when(~undecodable, text).alias("line"), undecodable.alias("undecodable"), "file_hour", "poison", *MESSAGE_COLUMNS
        )

    def ingestion_hour(self, event_time: Column) -> Column:
        """The hour of the message's offset, regardless of the time of the event."""
        return F.col("file_hour")

    def payload(self, given: Collection[str] = ()) -> Column:
        """The payload of a quarantine row: the message with its position, as JSON; key and payload in base64."""
        return F.to_json(
            F.struct(
                *(F.col(f"kafka_{name}").alias(name) for name in ("topic", "partition", "offset", "time")),
                F.base64("kafka_key").alias("key"),
                F.col("kafka_headers").alias("headers"),
                F.base64("kafka_payload").alias("payload"),
                F.col("poison"),
            )
        )
