"""Three brokers: the leader of partitions dies in the middle, another one takes over, and nobody is asked a second time."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.sender import Options, Progress
from backfill_platform.domain.pacing import Limits
from backfill_platform.topics.drain import Drain, drain_topic
from backfill_platform.topics.replay import Replay
from backfill_platform_tests.fixtures_kafka import Broker, running_brokers
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.fixtures_warehouse import wait_until
from backfill_platform_tests.pipelines import messages
from backfill_platform_tests.pipelines.messages import pipeline_over, send
from backfill_platform_tests.topics.replays import do, read_all
from backfill_platform_tests.topics.test_land_topic import some_visits
from backfill_platform_tests.world import World

pytestmark = pytest.mark.slow

COUNT = 3000


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, ...]]:
    with running_brokers(tmp_path_factory.mktemp("three"), 3) as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, spark: Any, warehouse: Any, brokers: tuple[Broker, ...]) -> Iterator[World]:
    config = {"bootstrap.servers": ",".join(one.address for one in brokers)}
    topic = brokers[0].topic(partitions=3)
    send(brokers[0].producer(**config), topic, some_visits(11, COUNT, 2))
    with closing(Cluster(config)) as cluster:
        yield World(tmp_path, spark, warehouse, pipeline_over(topic, 2), open_lake(tmp_path), lambda: cluster)


def leaders(cluster: Cluster, topic: str) -> dict[int, int]:
    return {number: one.leader for number, one in cluster.admin.list_topics(topic, timeout=30).topics[topic].partitions.items()}


@contextmanager
def a_leader_dies(world: World, brokers: tuple[Broker, ...], topic: str) -> Iterator[threading.Event]:
    """At the moment that the block sets, the leader of partition 0 is killed. It is started again after the block."""
    moment = threading.Event()
    died: list[Broker] = []

    def kill() -> None:
        if moment.wait(120) and not died:
            number = leaders(world.kafka(), topic)[0]
            (victim,) = [one for one in brokers if one.node == number]
            victim.kill()
            died.append(victim)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield moment
        killer.join(120)
        assert died, "nobody was killed"
        assert died[0].node not in leaders(world.kafka(), topic).values()
    finally:
        moment.set()
        killer.join(120)
        for one in died:
            one.start()
            # As copies again, so that the next death leaves a majority.
            wait_until(lambda: all(len(found.isrs) == 3 for found in _partitions(world.kafka(), topic)), 120)


def _partitions(cluster: Cluster, topic: str) -> list[Any]:
    return list(cluster.admin.list_topics(topic, timeout=30).topics[topic].partitions.values())


def test_a_leader_changes_while_hours_land(world: World, brokers: tuple[Broker, ...]) -> None:
    raw = world.pipeline.raw.table
    with a_leader_dies(world, brokers, world.topic.topic) as moment:

        def parse(lines: Any) -> Any:
            moment.set()  # the offsets are known, and nothing of them is read
            return messages.parse(lines)

        pipeline = replace(world.pipeline, raw=replace(world.pipeline.raw, parse=parse))
        landed = world.run([raw.path], pipeline=pipeline)[raw.path]
        assert not [one.error for one in landed.values() if one.error]
    rows = world.lake.read(raw, ("number",), "number >= 0").to_pylist()
    assert Counter(row["number"] for row in rows) == Counter(range(COUNT))


@pytest.mark.parametrize("transactional", [False, True])
def test_a_leader_changes_while_a_replay_is_sent_and_while_it_is_drained(
    world: World, brokers: tuple[Broker, ...], transactional: bool
) -> None:
    world.run([world.pipeline.raw.table.path])
    cluster, topic = world.kafka(), world.pipeline.backfill_topic
    options = Options(limits=Limits(messages=600), transactional=transactional)
    asked = Replay(f"leaders-{transactional}", (world.pipeline,), world.hours, options=options)
    cluster.create_topic(topic, 3, {"retention.ms": "-1"})
    with a_leader_dies(world, brokers, topic) as moment:

        def once_under_way(progress: Progress) -> None:
            if 0 < progress.acknowledged < COUNT:
                moment.set()

        counts = do(world, cluster, asked, once_under_way)
    assert sum(one.acknowledged for one in counts) == sum(one.selected for one in counts) == COUNT
    positions = Counter(int(dict(one.headers())["backfill-position"]) for one in read_all(cluster, topic))
    assert positions == Counter(range(COUNT))

    with a_leader_dies(world, brokers, topic) as moment:

        def first_batch(batch: Any) -> list[Any]:
            moment.set()
            return []

        report = drain_topic(
            Drain(f"leaders-{world.pipeline.name}", handler="first_batch"),
            replace(world.pipeline, handlers={"first_batch": first_batch}),
            cluster,
            world.warehouse,
            clock=lambda: datetime.now(UTC),
            tell=lambda done, total: None,
        )
    assert sum(one.persisted or 0 for one in report.hours) == COUNT
    assert all(one.agree for one in report.hours)
