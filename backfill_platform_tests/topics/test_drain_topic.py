"""Topics are drained by a consumer that ends by itself, and every message is counted: real broker, real warehouse."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.consumer import Message, Outgoing
from backfill_platform.domain.hours import HOUR
from backfill_platform.errors import CheckFailed, TakenOver, UsageError
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.topics.drain import Drain, drain_topic
from backfill_platform_tests.fixtures_kafka import Broker
from backfill_platform_tests.pipelines.messages import T0
from backfill_platform_tests.topics.replays import HOURS, ask, do, landed, read_all
from backfill_platform_tests.topics.test_land_topic import some_visits
from backfill_platform_tests.world import World

pytestmark = pytest.mark.whole


@pytest.fixture
def world(tmp_path: Path, spark: Any, warehouse: Any, broker: Broker, topics: Cluster) -> World:
    return landed(tmp_path, spark, warehouse, broker, topics)


def drained(world: World, cluster: Cluster, name: str = "drain-1", **options: Any) -> Any:
    pipeline: Pipeline = options.pop("pipeline", world.pipeline)
    return drain_topic(
        Drain(f"{name}-{world.pipeline.name}", **options),
        pipeline,
        cluster,
        world.warehouse,
        clock=lambda: datetime.now(UTC),
        tell=lambda done, total: None,
    )


def test_a_drain_ends_by_itself_and_all_three_counts_agree(world: World, topics: Cluster) -> None:
    do(world, topics, ask(world))
    report = drained(world, topics)
    assert report.drained.handled == 400
    assert sum(one.persisted for one in report.hours) == 400
    assert all(one.agree and one.selected for one in report.hours)
    again = drained(world, topics)
    assert (again.drained.handled, again.hours) == (0, report.hours)
    kept = world.warehouse.rows(
        "SELECT payload FROM backfill.drained FINAL WHERE drain = {name:String}",
        parameters={"name": f"drain-1-{world.pipeline.name}"},
        doing="looking",
    )
    assert Counter(payload.encode() if isinstance(payload, str) else payload for (payload,) in kept) == Counter(
        one.payload for one in some_visits(7, 400, HOURS)
    )


def test_counts_that_disagree_fail_the_drain(world: World, topics: Cluster, broker: Broker) -> None:
    do(world, topics, ask(world))
    topic = world.topic.backfill_topic
    headers = [("backfill-repair", b"repair-1"), ("backfill-hour", b"2026-03-01T11"), ("backfill-position", b"9999")]
    producer = broker.producer()
    producer.produce(topic, b"nobody selected this", headers=headers)
    producer.flush()
    with pytest.raises(CheckFailed, match=r"2026-03-01T11: (\d+) selected, \1 acknowledged"):
        drained(world, topics)
    entries = Ledger(world.warehouse).read(target=f"kafka/{topic}")
    assert {one.hour for one in entries if one.mode == "drain" and one.status == "refused"} == {T0 + HOUR}


def test_a_handler_sends_onward_exactly_once_though_it_dies(world: World, topics: Cluster, broker: Broker) -> None:
    """It has drained one replay, and dies when it has sent messages of another."""
    do(world, topics, ask(world))
    onward = broker.topic(partitions=1)
    dies = False

    class Died(Exception):
        pass

    def upper(messages: Any) -> Iterator[Outgoing]:
        for one in messages:
            yield Outgoing(onward, one.value.upper(), one.key)
        if dies:
            raise Died

    pipeline = replace(world.pipeline, handlers={"upper": upper})
    drained(world, topics, pipeline=pipeline, handler="upper")
    do(world, topics, ask(world, name="repair-2"))
    dies = True
    with pytest.raises(Died):
        drained(world, topics, pipeline=pipeline, handler="upper")
    dies = False
    report = drained(world, topics, pipeline=pipeline, handler="upper")
    assert all(one.agree for one in report.hours)
    assert report.drained.handled == 400
    assert Counter(one.value() for one in read_all(topics, onward)) == Counter(
        one.payload.upper() for one in 2 * some_visits(7, 400, HOURS)
    )
    with pytest.raises(UsageError, match="it has persist, upper"):
        drained(world, topics, pipeline=pipeline, handler="lower")


def test_a_second_drain_of_the_name_takes_over(world: World, topics: Cluster) -> None:
    do(world, topics, ask(world))
    begun, go_on, told = threading.Event(), threading.Event(), threading.Event()

    def waits(messages: Sequence[Message]) -> list[Outgoing]:
        begun.set()
        assert go_on.wait(60)
        return []

    def lets_go(messages: Sequence[Message]) -> list[Outgoing]:
        go_on.set()
        assert told.wait(60)  # it is at work for longer than a session lives without it
        return []

    pipeline = replace(world.pipeline, handlers={"waits": waits, "lets_go": lets_go})

    with ThreadPoolExecutor(1) as beside:
        first = beside.submit(drained, world, topics, pipeline=pipeline, handler="waits")
        first.add_done_callback(lambda done: told.set())
        assert begun.wait(60)
        second = drained(world, topics, pipeline=pipeline, handler="lets_go")
        assert isinstance(first.exception(60), TakenOver)
    assert second.drained.handled == 400
    assert sum(one.persisted for one in second.hours) == 400
