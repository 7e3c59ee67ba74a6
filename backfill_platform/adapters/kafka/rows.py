"""Ranges of offsets as rows of Spark: parallel tasks read them in Arrow batches, without a consumer group.

Every task reads its own range from the partition's leader and stops at its end, so reading again gives the same rows while the
topic retains them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from backfill_platform.adapters.kafka.batches import milliseconds_of, next_count
from backfill_platform.adapters.kafka.cluster import PROMPT, translated
from backfill_platform.adapters.kafka.payload import Decode, Payload
from backfill_platform.errors import BackfillError, KafkaUnavailable, PreconditionError

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_BATCH = 10_000
_SILENCE_SECONDS = 60.0
_SCHEMA = (
    "file_hour timestamp, kafka_topic string, kafka_partition int, kafka_offset bigint, kafka_time timestamp, "
    "kafka_key binary, kafka_headers string, kafka_payload binary, decoded string, poison string"
)


@dataclass
class Slice(InputPartition):
    """The offsets `[start, end)` of a partition, all of one ingestion hour."""

    hour: datetime
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class _Reading:
    """The parameters of every task. They are pickled: cluster settings may be secrets, and Spark shows options."""

    topic: str
    config: Mapping[str, str]
    registry: Mapping[str, str]
    value: Payload
    slices: Sequence[Slice]


class _Messages(DataSource):
    reading: _Reading

    def schema(self) -> str:
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.reading)


class _Reader(DataSourceReader):
    def __init__(self, reading: _Reading) -> None:
        self._reading = reading

    def partitions(self) -> Sequence[InputPartition]:
        return list(self._reading.slices)  # Spark takes no tuple

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Slice)
        return read_slice(self._reading, partition)


def read_messages(
    spark: SparkSession,
    topic: str,
    slices: Sequence[Slice],
    *,
    value: Payload,
    config: Mapping[str, str],
    registry: Mapping[str, str],
) -> DataFrame:
    """The messages of the slices. Where a registry decodes them, with `decoded` or `poison`: why it cannot be decoded."""
    name = f"kafka_{uuid4().hex}"
    reading = _Reading(topic, dict(config), dict(registry), value, tuple(piece for piece in slices if piece.start < piece.end))
    source = type("Messages", (_Messages,), {"reading": reading, "name": classmethod(lambda cls: name)})
    if not reading.slices:
        return spark.createDataFrame([], _SCHEMA)
    spark.dataSource.register(source)
    return spark.read.format(name).load()


def read_slice(reading: _Reading, piece: Slice) -> Iterator[pa.RecordBatch]:
    """The committed messages of a slice, as Arrow batches.

    Raises KafkaUnavailable when the broker does not answer for a minute, and PreconditionError when offsets are gone.
    """
    from confluent_kafka import Consumer, TopicPartition

    decode = reading.value.decoder(reading.topic, reading.registry)
    consumer = Consumer(
        {
            # Small fetches: what lies beyond the end of a slice, another task fetches again.
            "fetch.message.max.bytes": "1048576",
            "queued.max.messages.kbytes": "16384",
            **PROMPT,
            **reading.config,
            "group.id": "backfill-reads",  # needed by the client; nothing is committed
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",  # offsets that are gone must not be skipped
            "enable.partition.eof": "true",
        }
    )
    try:
        consumer.assign([TopicPartition(reading.topic, piece.partition, piece.start)])
        silent, done, at = 0.0, False, piece.start
        count = next_count((), _BATCH)
        while not done:
            # Not more than the slice can have: the client waits for as many as it is asked for.
            polled = consumer.consume(min(count, piece.end - at), 1.0)
            count = next_count(polled, _BATCH)
            silent = 0.0 if polled else silent + 1.0
            if silent >= _SILENCE_SECONDS:
                raise KafkaUnavailable(
                    f"topic {reading.topic}, partition {piece.partition}: no answer for {_SILENCE_SECONDS:.0f} seconds while "
                    f"reading offsets {piece.start} to {piece.end}; check the brokers, then try again"
                )
            messages, done = _messages_of(polled, reading.topic, piece, at)
            if messages:
                at = messages[-1].offset() + 1
            if at >= piece.end:
                done = True
                messages = [message for message in messages if message.offset() < piece.end]
            if messages:
                yield _batch(reading.topic, piece, messages, decode)
    finally:
        consumer.close()


def _messages_of(polled: Sequence[Message], topic: str, piece: Slice, at: int) -> tuple[list[Message], bool]:
    """The messages among what was polled from offset `at` on, and whether the end of the slice was reported.

    Raises PreconditionError when offsets are gone, and the translated error for one that does not pass.
    """
    from confluent_kafka import KafkaError

    messages, done = [], False
    for message in polled:
        error = message.error()
        if error is None:
            messages.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            # Markers of transactions take offsets, too: the end may be behind the last message.
            done = message.offset() >= piece.end
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise PreconditionError(
                f"topic {topic}, partition {piece.partition}, no longer retains offset {at}: it was deleted "
                "while it was read. Land the hours again: those that the topic still has will land"
            )
        elif not error.retriable():
            raise translated(error, f"reading topic {topic}, partition {piece.partition}")
    return messages, done


def error_of_task(error: Exception) -> BackfillError | None:
    """The error of ours that a reading task has raised, from Spark's report of it; None where it is another one."""
    kinds = (KafkaUnavailable, PreconditionError)
    for kind in kinds:
        _, separator, text = str(error).partition(f"{kind.__module__}.{kind.__name__}: ")
        if separator:
            return kind(text.splitlines()[0])
    return None


def _batch(topic: str, piece: Slice, messages: Sequence[Message], decode: Decode | None) -> pa.RecordBatch:
    count = len(messages)
    values = [message.value() for message in messages]
    decoded, poison = [None] * count, [None] * count
    if decode is not None:
        decoded, poison = _decoded(values, decode)
    stamps = [milliseconds_of(message) for message in messages]
    columns = [
        pa.repeat(pa.scalar(piece.hour, pa.timestamp("us", "UTC")), count),
        pa.repeat(topic, count),
        pa.repeat(pa.scalar(piece.partition, pa.int32()), count),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([None if stamp is None else stamp * 1000 for stamp in stamps], pa.timestamp("us", "UTC")),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([_headers(message.headers()) for message in messages], pa.string()),
        pa.array(values, pa.binary()),
        pa.array(decoded, pa.string()),
        pa.array(poison, pa.string()),
    ]
    names = [part.split()[0] for part in _SCHEMA.split(", ")]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _decoded(values: Sequence[bytes | None], decode: Decode) -> tuple[list[Any], list[Any]]:
    texts: list[Any] = []
    reasons: list[Any] = []
    for value in values:
        text = reason = None
        if value is not None:
            try:
                text = decode(value)
            except Exception as error:  # noqa: BLE001 - whatever a poison message makes a deserializer raise
                reason = f"{type(error).__name__}: {error}"
        texts.append(text)
        reasons.append(reason)
    return texts, reasons


def _headers(headers: Any) -> str | None:
    """JSON: a list of `[name, value in base64 or null]`, in their order. NULL without headers."""
    if not headers:
        return None
    return json.dumps([[name, None if value is None else base64.b64encode(value).decode()] for name, value in headers])


def headers_of(text: str | None) -> list[tuple[str, bytes | None]]:
    """The headers from the JSON text of `kafka_headers`."""
    return [(name, None if value is None else base64.b64decode(value)) for name, value in json.loads(text or "[]")]
