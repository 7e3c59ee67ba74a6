"""Landing ingestion hours from a real topic: each message once, in its hour, with every byte of it."""

import base64
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.rows import headers_of
from backfill_platform.detection.survey import survey
from backfill_platform.domain.gaps import GapKind
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.offsets import decode
from backfill_platform.domain.plan import Landing
from backfill_platform.errors import CheckFailed, PreconditionError
from backfill_platform.reports.facts import facts_of
from backfill_platform_tests.fixtures_kafka import Broker
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.pipelines import messages
from backfill_platform_tests.pipelines.messages import T0, Visit, pipeline_over, send, sessions_of
from backfill_platform_tests.world import World

pytestmark = pytest.mark.whole

Make = Callable[..., World]


@pytest.fixture
def over(tmp_path: Path, spark: Any, warehouse: Any, broker: Broker) -> Iterator[Make]:
    """Makes the world of a topic."""
    with closing(Cluster(broker.config)) as cluster:

        def make(topic: str, hours: int = 3, **options: Any) -> World:
            return World(
                tmp_path, spark, warehouse, pipeline_over(topic, hours, **options), open_lake(tmp_path), lambda: cluster
            )

        yield make


def rows_of(world: World, *columns: str) -> Counter[tuple[Any, ...]]:
    found = world.lake.read(world.pipeline.raw.table, columns, "kafka_offset >= 0").to_pylist()
    return Counter(tuple(row[name] for name in columns) for row in found)


def some_visits(seed: int, count: int = 300, hours: int = 3) -> list[Visit]:
    chance = random.Random(seed)
    return [
        Visit(f"user-{chance.randrange(12)}", second, number)
        for number, second in enumerate(sorted(chance.randrange(hours * 3600) for _ in range(count)))
    ]


def test_every_message_lands_once_in_its_hour_with_all_that_it_has(broker: Broker, over: Make) -> None:
    """Landed in two parts and in another order than sent: the rows are those of the messages, twice in a row."""
    topic, visits = broker.topic(partitions=3), some_visits(1)
    send(broker.producer(), topic, visits)
    world = over(topic)
    raw = world.pipeline.raw.table
    for landing in (Landing.SAFE, Landing.REPLACE):
        for hours in (slice(1, 3), slice(0, 1)):
            chosen = list(world.hours)[hours]
            found = world.run([raw.path], world.range(chosen), landing=landing)[raw.path]
            assert [one.error for one in found.values()] == [""] * len(chosen)
    columns = ("ingestion_hour", "user", "number", "kafka_payload", "kafka_time", "kafka_key")
    wanted = Counter(
        (one.at.replace(minute=0, second=0), one.user, one.number, one.payload, one.at, one.user.encode()) for one in visits
    )
    assert rows_of(world, *columns) == wanted
    (headers,) = {tuple(headers_of(text)) for (text,) in rows_of(world, "kafka_headers")}
    assert headers == (("from", b"test"), ("none", None))
    places = rows_of(world, "kafka_topic", "kafka_partition", "kafka_offset")
    assert len(places) == len(visits)
    assert {name for name, _, _ in places} == {topic}


def test_offsets_are_in_the_ledger_and_follow_each_other(broker: Broker, over: Make) -> None:
    topic = broker.topic(partitions=2)
    send(broker.producer(), topic, some_visits(2))
    world = over(topic)
    raw = world.pipeline.raw.table
    world.run([raw.path])
    landed = Ledger(world.warehouse).offsets(str(raw), list(world.hours))
    ends = {span.partition: 0 for span in landed[T0]}
    for hour in world.hours:
        assert {span.partition: span.start for span in landed[hour]} == ends
        ends = {span.partition: span.end for span in landed[hour]}
        rows = rows_of(world, "ingestion_hour", "kafka_partition")
        assert sum(map(len, landed[hour])) == sum(n for (one, _), n in rows.items() if one == hour)
    entry = Ledger(world.warehouse).read(target=str(raw), hours=[T0])[0]
    assert decode(entry.offsets) == landed[T0]


def test_sessions_over_a_topic_are_those_of_plain_python(broker: Broker, over: Make) -> None:
    """Late, doubled and future timestamps: the message's hour is its offset's, the session is that of the event time."""
    topic = broker.topic(partitions=2)
    visits = some_visits(3)
    late = [Visit("user-1", 600, 1000, sent=2 * 3600 + 60), Visit("user-2", 30, 1001, sent=3600)]
    send(broker.producer(), topic, sorted([*visits, *visits[:20], *late], key=lambda one: one.stamp))
    world = over(topic)
    outcomes = world.run(world.everything)
    assert [one.error for hours in outcomes.values() for one in hours.values()] == [""] * 9
    table = world.pipeline.published[0]
    rows = world.lake.read(table, table.column_names, "visits > 0").to_pylist()
    found = {(row["user"], row["started_at"]): (row["ended_at"], row["visits"], row["numbers"]) for row in rows}
    assert found == sessions_of([*visits, *late])


def test_messages_that_join_a_landed_hour_make_it_short_and_landing_it_again_mends_it(broker: Broker, over: Make) -> None:
    topic = broker.topic(partitions=1)
    send(broker.producer(), topic, [Visit("user-1", 60, 0), Visit("user-1", 120, 1)])
    world = over(topic, hours=2)
    raw = world.pipeline.raw.table
    world.run([raw.path], world.range([T0]))
    send(broker.producer(), topic, [Visit("user-1", 130, 2), Visit("user-1", 3700, 3), Visit("user-1", 140, 4)])
    world.run([raw.path], world.range([T0 + HOUR]))
    found = survey(world.pipeline, world.hours, world.lake, world.warehouse)
    gaps = {gap.hour: (gap.kind, gap.evidence) for gap in found.gaps if gap.table == str(raw)}
    assert gaps.keys() == {T0}
    assert gaps[T0][0] is GapKind.SHORT
    assert gaps[T0][1].startswith("offsets 2 to 2 of partition 0 lie between it and the hour after it")
    world.run([raw.path], world.range([T0]))
    found = survey(world.pipeline, world.hours, world.lake, world.warehouse)
    assert [gap for gap in found.gaps if gap.table == str(raw)] == []
    assert Counter(number for (number,) in rows_of(world, "number").elements()) == Counter(range(5))


def test_poison_is_quarantined_with_its_bytes_and_its_place(broker: Broker, over: Make) -> None:
    topic = broker.topic(partitions=1)
    producer = broker.producer()
    poison = [b"\xff\xfe\x00 no text", b"{not json", b""]
    for number, payload in enumerate(poison):
        producer.produce(topic, payload, b"k\xff", timestamp=int(T0.timestamp() * 1000) + number)
    producer.produce(topic, None, b"deleted", timestamp=int(T0.timestamp() * 1000) + 5)
    producer.flush()
    send(producer, topic, [Visit("user-1", 60, 1)])
    world = over(topic, hours=1)
    raw = world.pipeline.raw.table
    found = world.run([raw.path])[raw.path][T0]
    assert (found.error, facts_of(found)["rows"], facts_of(found)["quarantined"]) == ("", 1, 4)
    rejects = quarantine_of(raw)
    kept = [json.loads(row["payload"]) for row in world.lake.read(rejects, ("payload",), "reason != ''").to_pylist()]
    payloads = {one["offset"]: None if "payload" not in one else base64.b64decode(one["payload"]) for one in kept}
    assert payloads == {0: poison[0], 1: poison[1], 2: poison[2], 3: None}
    assert {base64.b64decode(one["key"]) for one in kept} == {b"k\xff", b"deleted"}


def test_offsets_that_are_gone_are_an_error_and_what_has_landed_stays(broker: Broker, over: Make) -> None:
    topic = broker.topic(partitions=1)
    visits = some_visits(4)
    send(broker.producer(), topic, visits)
    world = over(topic)
    raw = world.pipeline.raw.table
    world.run([raw.path])
    before = rows_of(world, "kafka_offset", "number")
    first_of_second_hour = sum(one.seconds < 3600 for one in visits)
    trim(broker, topic, first_of_second_hour + 5)
    found = world.run([raw.path])[raw.path]
    assert [bool(one.error) for one in found.values()] == [True, True, False]
    assert f"retains nothing before offset {first_of_second_hour + 5}" in found[T0 + HOUR].error
    assert rows_of(world, "kafka_offset", "number") == before


@pytest.mark.parametrize(("times", "returned"), [(0, 100), (2, 300)])
def test_a_parser_that_loses_or_doubles_messages_lands_nothing(broker: Broker, over: Make, times: int, returned: int) -> None:
    topic = broker.topic()
    send(broker.producer(), topic, some_visits(9, 200, 2))
    world = over(topic, 2)

    def parse(lines: Any) -> Any:
        copies = F.when(F.col("number") % 2 == 0, 1).otherwise(times)
        return messages.parse(lines).withColumn("copy", F.explode(F.array_repeat(F.lit(0), copies))).drop("copy")

    pipeline = replace(world.pipeline, raw=replace(world.pipeline.raw, parse=parse))
    with pytest.raises(CheckFailed, match=f"the parser made {returned} rows of 200 lines"):
        world.run([world.pipeline.raw.table.path], pipeline=pipeline)
    assert not world.lake.built_hours(world.pipeline.raw.table)


def test_offsets_that_vanish_while_they_are_read_are_one_sentence(broker: Broker, over: Make) -> None:
    topic = broker.topic(partitions=1)
    send(broker.producer(), topic, some_visits(8, 200, 2))
    world = over(topic, 2)

    def parse(lines: Any) -> Any:
        trim(broker, topic, 10)  # the offsets are known, and nothing of them is read
        return messages.parse(lines)

    pipeline = replace(world.pipeline, raw=replace(world.pipeline.raw, parse=parse))
    with pytest.raises(PreconditionError, match=f"topic {topic}, partition 0, no longer retains offset 0") as failed:
        world.run([world.pipeline.raw.table.path], pipeline=pipeline)
    assert len(str(failed.value)) < 300


def test_a_log_that_begins_where_the_last_landed_hour_ended_is_complete(broker: Broker, over: Make) -> None:
    topic = broker.topic(partitions=1)
    visits = some_visits(5)
    send(broker.producer(), topic, visits)
    world = over(topic)
    raw = world.pipeline.raw.table
    first, *rest = world.hours
    world.run([raw.path], world.range([first]))
    trim(broker, topic, sum(one.seconds < 3600 for one in visits))
    found = world.run([raw.path], world.range(rest))[raw.path]
    assert [one.error for one in found.values()] == ["", ""]


def test_only_what_is_committed_lands_and_an_open_transaction_holds_the_hour_back(broker: Broker, over: Make) -> None:
    """In this hour, seen two hours later: brokers give the markers of transactions their own time."""
    topic, now = broker.topic(partitions=1), datetime.now(UTC)
    sent = int((now - T0).total_seconds())
    producer = broker.producer(**{"transactional.id": topic})
    producer.init_transactions()
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        send(producer, topic, [Visit("user-1", 60 * number, 10 * number + n, sent) for n in range(3)])
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.begin_transaction()
    send(producer, topic, [Visit("user-1", 3599, 99, sent)])
    world = over(topic, hours=2, start=now.replace(minute=0, second=0, microsecond=0))
    raw, later = world.pipeline.raw.table, now + 2 * HOUR
    hours = HourRange(world.pipeline.start, world.pipeline.start + 2 * HOUR)
    held = world.run([raw.path], hours, clock=lambda: later)[raw.path]
    assert ["transaction open since offset 12" in one.error for one in held.values()] == [True, True], held
    producer.commit_transaction()
    done = world.run([raw.path], hours, clock=lambda: later)[raw.path]
    assert [one.error for one in done.values()] == ["", ""]
    assert Counter(number for (number,) in rows_of(world, "number").elements()) == Counter([0, 1, 2, 20, 21, 22, 99])


def test_an_hour_that_is_not_over_and_a_topic_that_is_not_there_are_named(over: Make, broker: Broker) -> None:
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    topic = broker.topic(partitions=1)
    world = over(topic, hours=2, start=now - HOUR)
    raw = world.pipeline.raw.table
    found = world.run([raw.path])[raw.path]
    assert found[now - HOUR].error == ""
    assert found[now].error.startswith("the hour is not over")
    gone = over("nobody-has-this")
    raw = gone.pipeline.raw.table
    assert {one.error for one in gone.run([raw.path])[raw.path].values()} == {"the cluster has no topic nobody-has-this"}


def test_a_compacted_topic_lands_what_it_still_has(broker: Broker, over: Make) -> None:
    topic = broker.topic(
        partitions=1,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="100",
        min_compaction_lag_ms="0",
        delete_retention_ms="0",
    )
    visits = [Visit(f"user-{number % 3}", number, number) for number in range(60)]
    send(broker.producer(), topic, visits)
    wait_for_compaction(broker, topic, visits)
    world = over(topic, hours=1)
    raw = world.pipeline.raw.table
    found = world.run([raw.path])[raw.path][T0]
    assert found.error == ""
    landed = rows_of(world, "number", "kafka_offset")
    assert all(number == offset for number, offset in landed)
    assert set(landed.values()) == {1}
    # The newest of each user but the one whose messages went on.
    assert {number for number, _ in landed} >= {58, 59}
    assert facts_of(found)["rows"] == len(landed) < 60


def wait_for_compaction(broker: Broker, topic: str, visits: list[Visit]) -> None:
    """Until most of the messages are gone. The newest segment is never cleaned: small messages roll it."""
    deadline, number = time.monotonic() + 60, len(visits)
    while time.monotonic() < deadline:
        send(broker.producer(), topic, [Visit("user-0", 100 + number, number)])
        number += 1
        consumer = Consumer({**broker.config, "group.id": "w", "enable.partition.eof": True})
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen = 0
        while True:
            messages = consumer.consume(100, 2.0)
            seen += sum(one.error() is None for one in messages)
            if any(one.error() is not None for one in messages):
                break
        consumer.close()
        if seen < 30:
            return
        time.sleep(0.5)
    raise AssertionError("the broker did not compact the topic")


def trim(broker: Broker, topic: str, offset: int) -> None:
    """Delete the messages before an offset, as retention does."""
    admin = AdminClient(broker.config)
    for answer in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        answer.result(30)
