"""The broker dies and comes back in the middle of landing, replaying and draining: nothing is lost, and the counts prove it."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.sender import Options, Progress
from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.pacing import Limits
from backfill_platform.errors import BackfillError, CheckFailed
from backfill_platform.topics.drain import Drain, DrainReport, drain_topic
from backfill_platform.topics.replay import Replay
from backfill_platform_tests.adapters.kafka.wire import Wire, wire
from backfill_platform_tests.fixtures_kafka import Broker, free_ports, running_broker
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.fixtures_warehouse import wait_until
from backfill_platform_tests.pipelines import messages
from backfill_platform_tests.pipelines.messages import T0, pipeline_over, send
from backfill_platform_tests.topics.replays import do, read_all
from backfill_platform_tests.topics.test_land_topic import some_visits
from backfill_platform_tests.world import World

pytestmark = pytest.mark.whole

COUNT = 3000
Do = Callable[[], Any]


@dataclass
class Mortal:
    """A broker of our own, to be killed, behind a wire."""

    broker: Broker
    wire: Wire

    def restart(self) -> None:
        self.broker.kill()
        self.broker.start()

    def restart_before_it_answers(self) -> None:
        """It has stored what clients believe they must send again."""
        self.wire.lose_answers()
        wait_until(lambda: self.wire.lost > 0, 60)
        self.restart()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    (told,) = free_ports(1)
    with (
        running_broker(tmp_path_factory.mktemp("mortal"), told=told) as broker,
        wire(told, broker.port) as between,
    ):
        yield Mortal(broker, between)


@pytest.fixture
def world(tmp_path: Path, spark: Any, warehouse: Any, mortal: Mortal) -> Iterator[World]:
    topic = mortal.broker.topic(partitions=2)
    send(mortal.broker.producer(), topic, some_visits(11, COUNT, 2))
    with closing(Cluster(mortal.broker.config)) as cluster:
        yield World(tmp_path, spark, warehouse, pipeline_over(topic, 2), open_lake(tmp_path), lambda: cluster)


def until_done(work: Do, restart: Callable[[], None], moment: threading.Event) -> Any:
    """Do the work; at the moment that it sets, the broker is killed and started again. What fails is asked for again."""

    def power_cut() -> None:
        if moment.wait(120):
            restart()

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


def test_the_broker_dies_while_hours_land(world: World, mortal: Mortal) -> None:
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

    until_done(land, mortal.restart, moment)
    assert moment.is_set()
    rows = world.lake.read(raw, ("number", "kafka_partition", "kafka_offset"), "number >= 0").to_pylist()
    assert Counter(row["number"] for row in rows) == Counter(range(COUNT))
    landed = Ledger(world.warehouse).offsets(str(raw), list(world.hours))
    assert sum(len(span) for spans in landed.values() for span in spans) == COUNT


@pytest.mark.parametrize("transactional", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_broker_dies_while_a_replay_is_sent_and_while_it_is_drained(
    world: World, mortal: Mortal, transactional: bool
) -> None:
    raw = world.pipeline.raw.table
    world.run([raw.path])
    cluster = world.kafka()
    options = Options(limits=Limits(messages=600), transactional=transactional)
    asked = Replay("faults", (world.pipeline,), world.hours, options=options)
    moment = threading.Event()

    def once_under_way(progress: Progress) -> None:
        if 0 < progress.acknowledged < COUNT:
            moment.set()

    counts = until_done(lambda: do(world, cluster, asked, once_under_way), mortal.restart_before_it_answers, moment)
    assert moment.is_set()
    assert {one.hour: one.acknowledged for one in counts} == {one.hour: one.selected for one in counts}
    assert {one.hour for one in counts} == {T0, T0 + HOUR}
    topic = world.topic.backfill_topic
    sent = Counter(int(dict(one.headers())["backfill-position"]) for one in read_all(cluster, topic))
    assert set(sent) == set(range(COUNT))
    # A broker that starts again knows no sender of messages older than a day, unless its transaction is open.
    assert (sent.total() == COUNT) == transactional

    if not transactional:
        with pytest.raises(CheckFailed, match=r"came twice.* with --transactional to another topic"):
            drain(world, cluster, topic)
        topic += ".again"
        asked = replace(asked, name="again", topics={world.pipeline.name: topic}, options=Options(transactional=True))
        do(world, cluster, asked)
    moment = threading.Event()
    report = until_done(lambda: drain(world, cluster, topic, moment.set), mortal.restart, moment)
    assert sum(one.persisted for one in report.hours) == COUNT
    assert all(one.agree for one in report.hours)


def drain(world: World, cluster: Cluster, topic: str, at_first_batch: Callable[[], None] = lambda: None) -> DrainReport:
    def handler(batch: Any) -> list[Any]:
        at_first_batch()
        return []

    return drain_topic(
        Drain(f"{topic}-{world.pipeline.name}", topic, "handler"),
        replace(world.pipeline, handlers={"handler": handler}),
        cluster,
        world.warehouse,
        clock=lambda: datetime.now(UTC),
        tell=lambda a, b: None,
    )
