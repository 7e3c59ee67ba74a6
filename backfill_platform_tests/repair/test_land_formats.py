"""Avro, JSON Schema and Protobuf in Confluent's wire format are decoded in the tasks that read them; poison is set aside."""

import base64
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.payload import Avro, JsonSchema, Payload, Protobuf
from backfill_platform.reports.facts import facts_of
from backfill_platform_tests.adapters.kafka.registry import schema_registry
from backfill_platform_tests.fixtures_kafka import Broker
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.pipelines.messages import T0, Visit, pipeline_over
from backfill_platform_tests.pipelines.visit_message import VisitMessage
from backfill_platform_tests.world import World

pytestmark = pytest.mark.whole

_AVRO = {
    "type": "record",
    "name": "Visit",
    "fields": [{"name": "at", "type": "string"}, {"name": "user", "type": "string"}, {"name": "number", "type": "long"}],
}
_JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Visit",
    "type": "object",
    "properties": {"at": {"type": "string"}, "user": {"type": "string"}, "number": {"type": "integer"}},
}


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with schema_registry() as url:
        yield url


def serializer(value: Payload, url: str) -> Any:
    client = SchemaRegistryClient({"url": url})
    if isinstance(value, Avro):
        return AvroSerializer(client, json.dumps(_AVRO))
    if isinstance(value, JsonSchema):
        return JSONSerializer(json.dumps(_JSON), client)
    return ProtobufSerializer(VisitMessage, client, {"use.deprecated.format": False})


@pytest.mark.parametrize("value", [Avro(), JsonSchema(), Protobuf(VisitMessage)], ids=["avro", "json", "protobuf"])
def test_a_format_of_the_registry_is_decoded_and_its_poison_is_kept(
    tmp_path: Path, spark: Any, warehouse: Any, broker: Broker, registry: str, value: Payload
) -> None:
    topic = broker.topic(partitions=1)
    visits = [Visit("user-1", 60 * number, number) for number in range(5)]
    encode = serializer(value, registry)
    producer = broker.producer()
    context = SerializationContext(topic, MessageField.VALUE)
    poison = [b"\x00\x00\x00\x00\x63no such schema", b"no magic byte", b""]
    for visit in visits:
        row: Any = {"at": visit.at.isoformat(), "user": visit.user, "number": visit.number}
        if isinstance(value, Protobuf):
            row = VisitMessage(**row)
        producer.produce(topic, encode(row, context), visit.user, timestamp=visit.stamp)
    for payload in poison:
        producer.produce(topic, payload, timestamp=visits[-1].stamp)
    assert producer.flush(60) == 0
    with closing(Cluster(broker.config, {"url": registry})) as cluster:
        world = World(tmp_path, spark, warehouse, pipeline_over(topic, 1, value=value), open_lake(tmp_path), lambda: cluster)
        raw = world.pipeline.raw.table
        found = world.run([raw.path])[raw.path][T0]
    assert (found.error, facts_of(found)["rows"], facts_of(found)["quarantined"]) == ("", 5, 3)
    rows = world.lake.read(raw, ("user", "number", "event_time"), "number >= 0").to_pylist()
    assert Counter((row["user"], row["number"], row["event_time"]) for row in rows) == Counter(
        (one.user, one.number, one.at) for one in visits
    )
    rejects = world.lake.read(quarantine_of(raw), ("reason", "payload"), "reason != ''").to_pylist()
    assert {base64.b64decode(json.loads(row["payload"])["payload"]) for row in rejects} == set(poison)
    assert all("payload: cannot be decoded" in row["reason"] for row in rejects)
    assert all(json.loads(row["payload"])["poison"] for row in rejects)
