"""Rejected messages of a real topic go through a corrected parser, when the topic no longer has them."""

from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.domain.plan import requeue_plan
from backfill_platform_tests.fixtures_kafka import Broker
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.pipelines.messages import T0, parse, pipeline_over
from backfill_platform_tests.world import World

pytestmark = pytest.mark.whole

GOOD = b'{"at": "2026-03-01T10:00:01Z", "user": "ada", "number": 1}'
MENDED = b'{"at": "2026-03-01T10:00:02Z", "user": "bob", "number": "2 visits"}'
HOPELESS, NO_TEXT = b"no json", b"\xff\xfe"


def parse_today(lines: DataFrame) -> DataFrame:
    """The parser of the tests, for numbers with a word behind them, too."""
    mended = lines.withColumn("came", F.col("line")).withColumn("line", F.regexp_replace("line", '"(\\d+) visits"', "$1"))
    return parse(mended).withColumn("line", F.col("came")).drop("came")


def test_messages_move_with_every_byte_and_their_offsets(tmp_path: Path, spark: Any, warehouse: Any, broker: Broker) -> None:
    topic = broker.topic(partitions=1)
    producer = broker.producer()
    for number, value in enumerate((GOOD, MENDED, HOPELESS, NO_TEXT)):
        sent = int(T0.timestamp() * 1000) + 1000 + number
        producer.produce(topic, value, key=b"\x00key", timestamp=sent, headers=[("from", b"test")])
    producer.flush()
    with closing(Cluster(broker.config)) as cluster:
        world = World(tmp_path, spark, warehouse, pipeline_over(topic, 1), open_lake(tmp_path), lambda: cluster)
        raw = world.pipeline.raw.table
        world.run([raw.path])

    def no_cluster() -> Cluster:
        raise AssertionError("the topic is not read")

    def payloads() -> tuple[Counter[bytes], int]:
        rows = world.lake.read(raw, ("kafka_payload",), "kafka_offset >= 0").column("kafka_payload").to_pylist()
        return Counter(rows), world.lake.rows_by_hour(quarantine_of(raw)).get(T0, 0)

    assert payloads() == (Counter([GOOD]), 3)
    world = replace(world, kafka=no_cluster)
    today = replace(world.pipeline, raw=replace(world.pipeline.raw, parse=parse_today))
    plan = requeue_plan(world.pipeline.name, world.pipeline.nodes[0], world.hours)
    found = world.walk([plan], world.job(today))[raw.path]
    assert [one.error for one in found.values()] == [""]
    assert payloads() == (Counter([GOOD, MENDED]), 2)
    columns = ("kafka_offset", "kafka_key", "kafka_headers", "kafka_time", "user", "number")
    rows = sorted(world.lake.read(raw, columns, "kafka_offset >= 0").to_pylist(), key=lambda row: row["kafka_offset"])
    assert [(row["user"], row["number"]) for row in rows] == [("ada", 1), ("bob", 2)]
    for name in ("kafka_key", "kafka_headers"):
        assert rows[0][name] == rows[1][name]
    assert (rows[1]["kafka_time"] - rows[0]["kafka_time"]).total_seconds() == 0.001
    landed, requeued = reversed(Ledger(warehouse).read(target=str(raw), hours=[T0]))
    assert (landed.mode, requeued.mode) == ("land", "requeue")
    assert requeued.offsets == landed.offsets
    assert requeued.offsets
    again = world.walk([plan], world.job(today))[raw.path]
    assert [one.lake.measures["requeued"] for one in again.values() if one.lake] == [0]
