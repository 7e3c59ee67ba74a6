"""Messages that somebody sent to do harm: too large, too deep, no text, no time. The others land, and are drained."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.adapters.kafka.batches import BATCH_BYTES, next_count
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.payload import JsonSchema
from backfill_platform_tests.adapters.kafka.registry import schema_registry
from backfill_platform_tests.fixtures_kafka import Broker
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.pipelines.messages import Visit, pipeline_over, send
from backfill_platform_tests.topics.test_drain_topic import drained
from backfill_platform_tests.world import World

pytestmark = pytest.mark.whole

FOREVER = str(2**63 - 1)
GOOD = [Visit(f"user-{number % 5}", 60 + number, number) for number in range(200)]
HOSTILE: dict[str, bytes | None] = {
    "large": b"x" * (8 << 20),
    "large JSON": json.dumps({"at": GOOD[0].at.isoformat(), "user": "u" * (6 << 20), "number": "x"}).encode(),
    "deep": b"[" * 500_000,
    "deep and whole": b"[" * 200_000 + b"]" * 200_000,
    "deep in a field": b'{"at": "2026-03-01T10:00:00Z", "number": 1, "user": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
    "a number of a million digits": b'{"at": "2026-03-01T10:00:00Z", "user": "u", "number": ' + b"9" * 1_000_000 + b"}",
    "no text": b"\xff\xfe\x00\x80" * 1000,
    "half a character": b'{"at": "2026-03-01T10:00:00Z", "user": "\\ud800", "number": -5}',
    "NUL": b'\x00{"user": "\x00"}',
    "nothing": None,
    "empty": b"",
    "a thousand names": json.dumps({f"n{number}": 1 for number in range(100_000)}).encode(),
}


def send_hostile(broker: Broker, topic: str) -> None:
    producer = broker.producer(**{"message.max.bytes": 20 << 20})
    send(producer, topic, GOOD[:100])
    for name, payload in HOSTILE.items():
        headers: list[tuple[str, bytes | None]] = [
            ("backfill-hour", b"\xff no hour"),
            ("backfill-repair", b"\xff"),
            ("x", None),
        ]
        producer.produce(topic, payload, name.encode() * 1000, timestamp=GOOD[100].stamp, headers=headers)
    assert producer.flush(60) == 0
    send(producer, topic, GOOD[100:])


@pytest.fixture
def world(tmp_path: Path, spark: Any, warehouse: Any, broker: Broker, topics: Cluster) -> World:
    topic = broker.topic(partitions=1, max_message_bytes=str(20 << 20), message_timestamp_after_max_ms=FOREVER)
    send_hostile(broker, topic)
    return World(tmp_path, spark, warehouse, pipeline_over(topic, 1), open_lake(tmp_path), lambda: topics)


def landed(world: World) -> tuple[list[int], int]:
    """The numbers of the visits that landed, and how many messages are in quarantine."""
    raw = world.pipeline.raw.table
    outcomes = world.run([raw.path])[raw.path]
    assert [one.error for one in outcomes.values()] == [""]
    rows = world.lake.read(raw, ["number"], "kafka_offset >= 0").to_pylist()
    rejects = world.lake.read(quarantine_of(raw), ["payload"], "payload is not null").to_pylist()
    return sorted(row["number"] for row in rows), len(rejects)


def test_hostile_messages_are_quarantined_and_the_others_land(world: World) -> None:
    assert landed(world) == ([one.number for one in GOOD], len(HOSTILE))


def test_hostile_messages_of_a_registry_are_quarantined_and_the_others_land(
    tmp_path: Path, spark: Any, warehouse: Any, broker: Broker
) -> None:
    """Python's own parser meets them here."""
    fields = {"at": {"type": "string"}, "user": {"type": "string"}, "number": {"type": "integer"}}
    schema = json.dumps({"title": "visit", "type": "object", "properties": fields})
    topic = broker.topic(partitions=1, max_message_bytes=str(20 << 20))
    with schema_registry() as url, closing(Cluster(broker.config, {"url": url})) as cluster:
        SchemaRegistryClient({"url": url}).register_schema(f"{topic}-value", Schema(schema, "JSON"))
        producer = broker.producer(**{"message.max.bytes": 20 << 20})
        framed = b"\x00\x00\x00\x00\x01"
        payloads: Sequence[bytes] = [framed + one.payload for one in GOOD[:20]]
        bad = [framed + payload for payload in HOSTILE.values() if payload]
        for payload in (*payloads[:10], *bad, b"\x00\x00\x00\x00\x63{}", b"\x00", *payloads[10:]):
            producer.produce(topic, payload, timestamp=GOOD[0].stamp)
        assert producer.flush(60) == 0
        world = World(
            tmp_path, spark, warehouse, pipeline_over(topic, 1, value=JsonSchema()), open_lake(tmp_path), lambda: cluster
        )
        assert landed(world) == ([one.number for one in GOOD[:20]], len(bad) + 2)


def test_a_drain_goes_on_behind_hostile_messages(world: World, topics: Cluster) -> None:
    topic = world.pipeline.source.topic  # type: ignore[union-attr]
    report = drained(world, topics, topic=topic)
    assert report.drained.handled == len(GOOD) + len(HOSTILE)


def test_a_time_that_is_none_lands_in_quarantine(tmp_path: Path, spark: Any, warehouse: Any, broker: Broker) -> None:
    topic = broker.topic(partitions=1, message_timestamp_after_max_ms=FOREVER)
    producer = broker.producer()
    send(producer, topic, GOOD[:3])
    producer.produce(topic, GOOD[3].payload, timestamp=2**62)
    producer.flush(60)
    with closing(Cluster(broker.config)) as cluster:
        world = World(tmp_path, spark, warehouse, pipeline_over(topic, 1), open_lake(tmp_path), lambda: cluster)
        outcomes = world.run([world.pipeline.raw.table.path])
        assert [one.error for hours in outcomes.values() for one in hours.values()] == [""]
        assert drained(world, cluster, topic=topic).drained.handled == 4


class _Sized:
    def __init__(self, size: int) -> None:
        self.size = size

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return self.size


def test_large_messages_are_taken_a_few_at_a_time() -> None:
    assert next_count([], 10_000) <= 100
    assert next_count([_Sized(10)] * 5, 10_000) == 10_000
    assert next_count([_Sized(1 << 20)] * 100, 10_000) == BATCH_BYTES >> 20
    assert next_count([_Sized(1 << 30)], 10_000) == 1
