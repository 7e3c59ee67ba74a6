"""Hours of the lake go to a backfill topic and from there to whoever drains it: real broker, real lake, real warehouse."""

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.kafka import sender as sending
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.replay_selection import Selection
from backfill_platform.adapters.kafka.sender import Options, Progress, positions
from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.pacing import Limits
from backfill_platform.errors import PreconditionError, UsageError
from backfill_platform.topics import replay as replaying
from backfill_platform.topics.replay import Replay
from backfill_platform_tests.events import Click, random_clicks
from backfill_platform_tests.fixtures_kafka import Broker
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.pipelines.messages import T0, Visit, pipeline_over, send, sessions_of
from backfill_platform_tests.topics.replays import HOURS, ask, do, landed, read_all
from backfill_platform_tests.topics.test_land_topic import some_visits
from backfill_platform_tests.world import World

pytestmark = pytest.mark.whole


@pytest.fixture
def world(tmp_path: Path, spark: Any, warehouse: Any, broker: Broker, topics: Cluster) -> World:
    return landed(tmp_path, spark, warehouse, broker, topics)


def moments(messages: list[Any]) -> dict[int, list[int]]:
    by_partition: dict[int, list[int]] = {}
    for one in messages:
        by_partition.setdefault(one.partition(), []).append(one.timestamp()[1])
    return by_partition


def test_a_replay_is_the_messages_as_they_were_in_the_order_of_event_time(world: World, topics: Cluster) -> None:
    asked = ask(world)
    counts = do(world, topics, asked)
    source = world.topic
    live, sent = read_all(topics, source.topic), read_all(topics, source.backfill_topic)

    def same(one: Any) -> tuple[Any, ...]:
        return (one.partition(), one.key(), one.value(), one.timestamp()[1], tuple(one.headers()[:2]))

    assert Counter(map(same, sent)) == Counter(map(same, live))
    assert all(times == sorted(times) for times in moments(sent).values())
    origins = {dict(one.headers())["backfill-origin"].decode() for one in sent}
    assert origins == {f"{one.topic()}/{one.partition()}/{one.offset()}" for one in live}
    assert {dict(one.headers())["backfill-repair"] for one in sent} == {b"repair-1"}
    by_hour = Counter(T0 + HOUR * (visit.seconds // 3600) for visit in some_visits(7, 400, HOURS))
    assert {one.hour: (one.selected, one.acknowledged, one.margin) for one in counts} == {
        hour: (n, n, 0) for hour, n in by_hour.items()
    }
    entries = Ledger(world.warehouse).read(target=f"kafka/{source.backfill_topic}")
    assert {one.hour: (one.rows_read, one.rows_kept, one.status) for one in entries} == {
        hour: (n, n, "done") for hour, n in by_hour.items()
    }


def test_sessions_over_the_replayed_topic_are_whole_at_both_edges(world: World, topics: Cluster, tmp_path: Path) -> None:
    """The same pipeline over the topic of the replay, as a live job would read it, in a lake of its own."""
    do(world, topics, ask(world, 1, 3))
    (tmp_path / "consumer").mkdir()
    there = replace(world.pipeline, name=f"{world.pipeline.name}_c", handlers={})
    consumer = World(
        tmp_path / "consumer", world.spark, world.warehouse, there, open_lake(tmp_path / "consumer"), lambda: topics
    )
    path = there.derived[0].table.path
    outcomes = consumer.walk([consumer.plan([there.raw.table.path, path])], replayed=True)
    assert all(not one.error for hours in outcomes.values() for one in hours.values())
    table = there.derived[0].table
    rows = consumer.lake.read(table, table.column_names, "visits > 0").to_pylist()
    found = {
        (row["user"], row["started_at"]): (row["ended_at"], row["visits"], row["numbers"])
        for row in rows
        if T0 + HOUR <= row["hour"] < T0 + 3 * HOUR
    }
    wanted = sessions_of(some_visits(7, 400, HOURS))
    closed = {key: value for key, value in wanted.items() if T0 + HOUR <= key[1] < T0 + 3 * HOUR}
    assert found == closed
    crossing = [key for key, value in closed.items() if value[0] >= T0 + 3 * HOUR]
    assert crossing, "no session crosses the edge: the test shows nothing"


def test_a_live_topic_must_be_named_twice(world: World, topics: Cluster) -> None:
    live = world.topic.topic
    asked = ask(world, topics={world.pipeline.name: live})
    with pytest.raises(UsageError, match="its consumers would see these events a second time"):
        do(world, topics, asked)
    before = len(read_all(topics, live))
    do(world, topics, replace(asked, live=(live,)))
    assert len(read_all(topics, live)) == 2 * before


def test_a_topic_that_would_forget_the_messages_at_once_is_refused(world: World, topics: Cluster, broker: Broker) -> None:
    topic = broker.topic(partitions=3, retention_ms="604800000")
    with pytest.raises(PreconditionError, match="Kafka would delete it at once"):
        do(world, topics, ask(world, topics={world.pipeline.name: topic}))
    narrow = broker.topic(partitions=1)
    with pytest.raises(PreconditionError, match="has 1 partitions"):
        do(world, topics, ask(world, name="other", topics={world.pipeline.name: narrow}))


@pytest.mark.parametrize("transactional", [False, True])
def test_a_replay_that_died_goes_on_without_a_message_twice(
    world: World, topics: Cluster, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    """It dies at several points; the topic ends with every message once, and the counts are those of all attempts."""
    monkeypatch.setattr(sending, "_PORTION", 20)
    monkeypatch.setattr(sending, "_COMMIT_SECONDS", 0.0)
    asked = ask(world, options=Options(transactional=transactional, max_misalignment=900_000_000))
    attempts = 0

    class Died(Exception):
        pass

    original = sending.Lane.send

    def dies(lane: Any, *given: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts in (4, 9, 11):
            raise Died
        return original(lane, *given)

    monkeypatch.setattr(sending.Lane, "send", dies)
    for _ in range(3):
        with pytest.raises(Died):
            do(world, topics, asked)
    counts = do(world, topics, asked)
    sent = read_all(topics, world.topic.backfill_topic)
    assert sorted(int(dict(one.headers())["backfill-position"]) for one in sent) == list(range(400))
    assert sum(one.acknowledged for one in counts) == 400
    manifest = Selection(world.lake.root_uri, "repair-1", world.pipeline.name).manifest()
    assert manifest is not None
    assert max(positions(topics, manifest).values()) == 399


def test_two_pipelines_advance_by_one_watermark(
    world: World, topics: Cluster, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has most events early, the other late: nothing is sent that is more than the bound ahead of what is to come."""
    second = broker.topic(partitions=1)
    send(broker.producer(), second, [Visit("late", 3 * 3600 + n * 30, n) for n in range(100)] + [Visit("early", 5, 1000)])
    other = pipeline_over(second, HOURS)
    both = World(tmp_path, world.spark, world.warehouse, other, world.lake, lambda: topics)
    both.run([other.raw.table.path])
    bound = timedelta(minutes=10)
    order: list[tuple[str, int]] = []

    class Watched(sending.Lane):
        def send(self, producer: Any, most: int, available_until: int) -> tuple[int, int]:
            reached = min(one for one in (lane.oldest for lane in lanes) if one is not None)
            done = super().send(producer, most, available_until)
            if self.sent:
                last = self._columns["moment"][self._at - 1] if self._at else self.sent[-1].first
                order.append((self.manifest.topic, last - reached))
            return done

    lanes: list[Any] = []

    def watched(*given: Any) -> Any:
        lanes.append(Watched(*given))
        return lanes[-1]

    monkeypatch.setattr(replaying, "Lane", watched)
    micros = bound // timedelta(microseconds=1)
    do(world, topics, ask(world, pipelines=(world.pipeline, other), options=Options(max_misalignment=micros)))
    assert {name for name, _ in order} == {world.topic.backfill_topic, other.backfill_topic}
    assert max(ahead for _, ahead in order) <= micros
    assert len(read_all(topics, other.backfill_topic)) == 101


def test_only_the_tenant_and_the_hours_that_are_asked_for(world: World, topics: Cluster) -> None:
    do(world, topics, ask(world, 1, 2, tenants=("user-3",), margins=False))
    sent = read_all(topics, world.topic.backfill_topic)
    wanted = [one for one in some_visits(7, 400, HOURS) if one.user == "user-3" and 3600 <= one.seconds < 7200]
    assert Counter(one.value() for one in sent) == Counter(one.payload for one in wanted)


def test_rows_of_files_are_sent_as_json_by_their_session_key(
    tmp_path: Path, spark: Any, warehouse: Any, topics: Cluster
) -> None:
    clicks = random_clicks(3, hours=2, clients=5)
    files = World.over(tmp_path, spark, warehouse, [one.line for one in clicks], 2)
    files.run([files.pipeline.raw.table.path])
    asked = Replay("files-1", (files.pipeline,), files.hours, topics={files.pipeline.name: f"files.{tmp_path.name}"})
    do(files, topics, asked)
    sent = read_all(topics, f"files.{tmp_path.name}")

    def known(one: Click) -> tuple[int, str]:
        return (one.client, one.at.strftime("%Y-%m-%dT%H:%M:%S"))

    found = Counter((int(one.key()), json.loads(one.value())["event_time"][:19]) for one in sent)
    assert found == Counter(map(known, clicks))
    assert all(len({one.partition() for one in sent if one.key() == key}) == 1 for key in {one.key() for one in sent})


def test_limits_are_changed_and_pauses_ended_while_it_runs(world: World, topics: Cluster) -> None:
    """Ten messages a second would take forty seconds: it is paused, and then let go."""
    asked = ask(world, options=Options(limits=Limits(messages=10)))
    selection = Selection(world.lake.root_uri, asked.name, world.pipeline.name)
    told: list[Progress] = []

    def change(progress: Progress) -> None:
        told.append(progress)
        if len(told) == 2:
            selection.set_limits(Limits(messages=10, paused=True))
        elif len(told) == 5:
            selection.set_limits(Limits())

    counts = do(world, topics, asked, change)
    assert sum(one.acknowledged for one in counts) == 400
    assert [bool(one.paused) for one in told[:5]] == [False, False, True, True, True]
    # What was on its way when the pause began is acknowledged by the second look at the latest.
    assert told[4].acknowledged == told[3].acknowledged < 100, "it went on while it was paused"
    assert told[-1].seconds < 30
    with pytest.raises(UsageError, match="there is no replay"):
        Selection(world.lake.root_uri, "unknown", world.pipeline.name).set_limits(Limits())


def test_it_waits_for_consumers_that_are_behind(world: World, topics: Cluster, broker: Broker) -> None:
    """The group has committed nothing: when more than its lag is in the topic, sending stops until it has."""
    topic = world.topic.backfill_topic
    group = f"slow-{topic}"
    told: list[Progress] = []

    def consume(progress: Progress) -> None:
        told.append(progress)
        if progress.paused and progress.acknowledged < 400:
            consumer = Consumer({**topics.config, "group.id": group, "enable.auto.commit": False})
            ends = [TopicPartition(topic, partition, log.end) for partition, log in topics.logs(topic).items()]
            consumer.commit(offsets=ends, asynchronous=False)
            consumer.close()

    options = Options(limits=Limits(messages=100), lag_group=group, max_lag=50)
    counts = do(world, topics, ask(world, options=options), consume)
    assert sum(one.acknowledged for one in counts) == 400
    assert any(f"{group} is " in one.paused for one in told)
