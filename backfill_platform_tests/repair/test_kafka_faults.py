"""The broker dies and comes back in the middle of landing, replaying and draining: nothing is lost, and the counts prove it."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backfill_platform.core.hours import HOUR
from backfill_platform.core.pacing import Limits
from backfill_platform.errors import BackfillError
from backfill_platform.repair.drain import drain_topic
from backfill_platform.repair.replay import Replay
from backfill_platform.streams.kafka import Cluster
from backfill_platform.streams.replay import Options, Progress
from backfill_platform_tests.fixtures_kafka import Broker, running_broker
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.pipelines import messages
from backfill_platform_tests.pipelines.messages import T0, pipeline_over, send
from backfill_platform_tests.repair.replays import do, read_all
from backfill_platform_tests.repair.test_land_topic import some_visits
from backfill_platform_tests.repair.world import World

pytestmark = pytest.mark.whole

COUNT = 3000
Do = Callable[[], Any]


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of our own, to be killed."""
    with running_broker(tmp_path_factory.mktemp("mortal")) as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, spark: Any, warehouse: Any, mortal: Broker) -> Iterator[World]:
    topic = mortal.topic(partitions=2)
    send(mortal.producer(), topic, some_visits(11, COUNT, 2))
    with closing(Cluster(mortal.config)) as cluster:
        yield World(tmp_path, spark, warehouse, pipeline_over(topic, 2), open_lake(tmp_path), lambda: cluster)


def until_done(work: Do, broker: Broker, moment: threading.Event) -> Any:
    """Do the work; at the moment that it sets, the broker is killed and started again. What fails is asked for again."""

    def power_cut() -> None:
        if moment.wait(120):
            broker.kill()
            broker.start()

    cut = threading.Thread(target=power_cut)
    cut.start()
    try:
        for _ in range(5):
            try:
                return work()
            except BackfillError:
                cut.join(120)
        raise AssertionError("it never got through")
    finally:
        moment.set()
        cut.join(120)


def test_the_broker_dies_while_hours_land(world: World, mortal: Broker) -> None:
    raw, moment = world.pipeline.raw.table, threading.Event()

    def parse(lines: Any) -> Any:
        moment.set()  # the offsets are known, and nothing of them is read
        return messages.parse(lines)

    pipeline = replace(world.pipeline, raw=replace(world.pipeline.raw, parse=parse))

    def land() -> None:
        found = world.run([raw.path], pipeline=pipeline)[raw.path]
        for one in found.values():
            if one.error:
                raise BackfillError(one.error)

    until_done(land, mortal, moment)
    assert moment.is_set()
    rows = world.lake.read(raw, ("number", "kafka_partition", "kafka_offset"), "number >= 0").to_pylist()
    assert Counter(row["number"] for row in rows) == Counter(range(COUNT))
    landed = world.context().ledger.offsets(str(raw), list(world.hours))
    assert sum(len(span) for spans in landed.values() for span in spans) == COUNT


def test_the_broker_dies_while_a_replay_is_sent_and_while_it_is_drained(world: World, mortal: Broker) -> None:
    raw = world.pipeline.raw.table
    world.run([raw.path])
    cluster = world.kafka()
    asked = Replay("faults", (world.pipeline,), world.hours, options=Options(limits=Limits(messages=600)))
    moment = threading.Event()

    def once_under_way(progress: Progress) -> None:
        if 0 < progress.acknowledged < COUNT:
            moment.set()

    counts = until_done(lambda: do(world, cluster, asked, once_under_way), mortal, moment)
    assert moment.is_set()
    assert {one.hour: one.acknowledged for one in counts} == {one.hour: one.selected for one in counts}
    assert {one.hour for one in counts} == {T0, T0 + HOUR}
    sent = read_all(cluster, world.pipeline.source.backfill_topic)
    assert Counter(int(dict(one.headers())["backfill-position"]) for one in sent) == Counter(range(COUNT))

    moment = threading.Event()

    def first_batch(batch: Any) -> list[Any]:
        moment.set()
        return []

    pipeline = replace(world.pipeline, handlers={"first_batch": first_batch})

    def drain() -> Any:
        name = f"faults-{world.pipeline.name}"
        return drain_topic(
            pipeline,
            cluster,
            world.warehouse,
            name=name,
            handler="first_batch",
            clock=lambda: datetime.now(UTC),
            tell=lambda a, b: None,
        )

    report = until_done(drain, mortal, moment)
    assert sum(one.persisted for one in report.hours) == COUNT
    assert all(one.agree for one in report.hours)
