"""Replays of a landed topic, for tests, and what is in a topic."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.sender import Progress
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.topics.replay import HourCount, Replay, ReplayEngines, replay_hours
from backfill_platform_tests.fixtures_kafka import Broker
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.pipelines.messages import T0, pipeline_over, send
from backfill_platform_tests.topics.test_land_topic import some_visits
from backfill_platform_tests.world import World

HOURS = 4


def landed(tmp_path: Path, spark: Any, warehouse: Any, broker: Broker, topics: Cluster) -> World:
    """The world of four hours of visits in a topic, landed."""
    topic = broker.topic(partitions=3)
    send(broker.producer(), topic, some_visits(7, 400, HOURS))
    made = World(tmp_path, spark, warehouse, pipeline_over(topic, HOURS), open_lake(tmp_path), lambda: topics)
    found = made.run([made.pipeline.raw.table.path])
    assert all(not one.error for hours in found.values() for one in hours.values())
    return made


def ask(world: World, first: int = 0, last: int = HOURS, *, name: str = "repair-1", **options: Any) -> Replay:
    pipelines = options.pop("pipelines", (world.pipeline,))
    return Replay(name, pipelines, HourRange(T0 + first * HOUR, T0 + last * HOUR), **options)


def do(
    world: World, cluster: Cluster, asked: Replay, tell: Callable[[Progress], None] = lambda progress: None
) -> list[HourCount]:
    return replay_hours(
        asked,
        ReplayEngines(lambda: world.spark, world.lake, cluster, Ledger(world.warehouse), lambda: datetime.now(UTC)),
        every=asked.pipelines,
        say=lambda text: None,
        tell=tell,
    )


def read_all(cluster: Cluster, topic: str) -> list[Any]:
    """All committed messages of a topic, in the order of each partition."""
    consumer = Consumer(
        {
            **cluster.config,
            "group.id": "t",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in cluster.partitions(topic)])
    found, left = [], set(cluster.partitions(topic))
    while left:
        for message in consumer.consume(1000, 0.5):
            if message.error() is None:
                found.append(message)
            else:
                left.discard(message.partition())
    consumer.close()
    return found
