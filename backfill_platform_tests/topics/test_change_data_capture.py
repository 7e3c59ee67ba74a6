"""Debezium's envelopes on a real topic, to the newest state of each entity and hour in ClickHouse."""

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyspark.sql.types as T
import pytest
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.topic import KafkaTopic
from backfill_platform.adapters.spark.debezium import CHANGES, TOMBSTONE, debezium_changes
from backfill_platform.adapters.spark.entities import newest
from backfill_platform.domain.hours import HOUR, HourRange, hour_of
from backfill_platform.domain.tables import Layer
from backfill_platform.pipelines.kafka import KafkaMessage
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable
from backfill_platform_tests.fixtures_kafka import Broker
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T0 = datetime(2026, 3, 1, 10, tzinfo=UTC)
HOURS = HourRange(T0, T0 + 2 * HOUR)
ROW = "customer_id bigint, name string, city string"


class Changes(KafkaMessage):
    """A change of a customer, as Debezium tells it."""

    ingestion_hour: T.TimestampType = Field(description="hour of the message's offset, UTC")
    changed_at: T.TimestampType = Field(description="when the database made the change, UTC")
    op: T.StringType = Field(isin=list(CHANGES), description="create, update, delete, read by a snapshot, or tombstone")
    deleted: T.BooleanType = Field(description="whether the customer is gone")
    customer_id: T.LongType = Field(ge=1, description="number of the customer")
    name: T.StringType = Field(nullable=True, description="name")
    city: T.StringType = Field(nullable=True, description="city; older messages have none")


class Customers(DataFrameModel):
    """The newest change of a customer within an hour."""

    hour: T.TimestampType = Field(description="hour of the change, UTC")
    customer_id: T.LongType = Field(ge=1, description="number of the customer")
    changed_at: T.TimestampType = Field(description="when it was made, UTC")
    deleted: T.BooleanType = Field(description="whether the customer is gone")
    name: T.StringType = Field(nullable=True, description="name")
    city: T.StringType = Field(nullable=True, description="city")


def parse(messages: "DataFrame") -> "DataFrame":
    return debezium_changes(messages, ROW)


def build(changes: "DataFrame") -> "DataFrame":
    real = changes.where(F.col("op") != TOMBSTONE).withColumn("hour", F.date_trunc("hour", "changed_at"))
    found = newest(real, key=("hour", "customer_id"), modified="changed_at", arrived=("ingestion_hour", "kafka_offset"))
    return found.select("hour", "customer_id", "changed_at", "deleted", "name", "city")


class Message(NamedTuple):
    """A message at so many minutes after T0; `value` is the envelope, None for a tombstone."""

    customer: int
    minutes: float
    value: dict[str, Any] | str | None
    key_with_schema: bool = False


def at(minutes: float) -> int:
    return int((T0 + timedelta(minutes=minutes)).timestamp() * 1000)


def envelope(op: str, minutes: float, after: Any, before: Any = None, *, with_schema: bool = False) -> dict[str, Any]:
    told = {"before": before, "after": after, "op": op, "ts_ms": at(minutes) + 900, "source": {"ts_ms": at(minutes), "lsn": 7}}
    return {"schema": {"type": "struct"}, "payload": told} if with_schema else told


def customer(number: int, name: str | None, **more: Any) -> dict[str, Any]:
    return {"customer_id": number, "name": name, **more}


MESSAGES = [
    Message(1, 1, envelope("r", 1, customer(1, "Ada"))),  # before the column `city` was added
    Message(2, 2, envelope("c", 2, customer(2, "Bob"), with_schema=True)),
    Message(
        1, 5, envelope("u", 5, customer(1, "Ada L.", city=None), customer(1, "Ada", city="Bonn"))
    ),  # NULL after, not before
    Message(2, 6, envelope("d", 6, None, customer(2, "Bob"), with_schema=True)),
    Message(2, 9, None, key_with_schema=True),  # its tombstone, late
    Message(2, 9.1, envelope("c", 7, customer(2, "Bobby", city="Ulm"))),  # made again before the tombstone was sent
    Message(3, 10, envelope("c", 10, customer(3, "Cy", city="Trier"))),
    Message(3, 11, envelope("d", 11, None)),  # the database tells nothing of what was deleted
    Message(3, 11.1, None),
    Message(4, 12, envelope("t", 12, None)),  # a table was truncated: nobody's change
    Message(4, 13, "no envelope"),
    Message(1, 70, envelope("u", 4, customer(1, "older: never"))),  # arrives in the next hour
    Message(1, 71, envelope("u", 71, customer(1, "Ada of hour two", city="Köln"))),
    Message(1, 72, envelope("u", 71, customer(1, "same millisecond, later offset", city="Köln"))),
]
WANTED = {
    (0, 1, 5.0, False, "Ada L.", None),
    (0, 2, 7.0, False, "Bobby", "Ulm"),
    (0, 3, 11.0, True, None, None),
    (1, 1, 71.0, False, "same millisecond, later offset", "Köln"),
}


def send(broker: Broker, topic: str) -> None:
    producer = broker.producer()
    for message in MESSAGES:
        key: dict[str, Any] = {"customer_id": message.customer}
        key = {"schema": {}, "payload": key} if message.key_with_schema else key
        value = message.value if isinstance(message.value, str | None) else json.dumps(message.value)
        producer.produce(topic, value, json.dumps(key), timestamp=at(message.minutes))
    assert producer.flush(60) == 0


@pytest.fixture
def world(tmp_path: Path, spark: Any, warehouse: Warehouse, broker: Broker) -> Iterator[World]:
    topic, suffix = broker.topic(partitions=1), uuid.uuid4().hex[:8]
    send(broker, topic)
    pipeline = Pipeline(
        name=f"customers_{suffix}",
        description="Changes of customers.",
        start=HOURS.start,
        end=HOURS.end,
        source=KafkaTopic(topic),
        raw=RawTable(f"changes_{suffix}", Changes, parse, event_time="changed_at"),
        derived=(
            DerivedTable(Layer.TRANSFORMED, f"customers_{suffix}", Customers, f"changes_{suffix}", build, key=("customer_id",)),
        ),
    )
    with closing(Cluster(broker.config)) as cluster:
        found = World(tmp_path, spark, warehouse, pipeline, open_lake(tmp_path), lambda: cluster)
        yield found
        found.drop()


@pytest.mark.whole
def test_the_newest_change_of_each_customer_and_hour_whatever_the_envelope_looks_like(world: World) -> None:
    world.run(world.everything)
    rows = [
        (T0 + hour * HOUR, number, T0 + timedelta(minutes=minutes), deleted, name, city)
        for hour, number, minutes, deleted, name, city in WANTED
    ]
    assert all(hour_of(row[2]) == row[0] for row in rows)
    assert world.net() == world.prints(rows)
    # Nothing is lost: every message is a row or a reject with the reason.
    raw = world.pipeline.raw.table
    landed = world.lake.read(raw, ("op", "kafka_offset"), "kafka_offset >= 0").to_pylist()
    assert sorted(row["kafka_offset"] for row in landed if row["op"] == TOMBSTONE) == [4, 8]
    rejects = world.lake.read(quarantine_of(raw), ("reason", "payload"), "reason is not null").to_pylist()
    assert len(landed) + len(rejects) == len(MESSAGES)
    assert sorted(json.loads(one["payload"])["offset"] for one in rejects) == [9, 10]
