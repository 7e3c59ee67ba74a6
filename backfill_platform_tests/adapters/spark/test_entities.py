from collections import Counter
from datetime import datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.entities import newest
from backfill_platform.adapters.spark.hours import between
from backfill_platform_tests.oracles import entities

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # which would start one job after the other
PATIENT = (HealthCheck.too_slow, HealthCheck.data_too_large)
T0 = datetime.fromisoformat("2026-01-01T00:00:00Z")
SCHEMA = (
    "stream long, entity long, modified_at timestamp, value string, deleted boolean, ingestion_hour timestamp, position long"
)


class Change(NamedTuple):
    """A change of an entity; `stream` keeps apart what is tried in one job. What orders it by arrival comes last on purpose."""

    stream: int
    entity: int
    modified_at: datetime
    value: str | None
    deleted: bool
    ingestion_hour: datetime
    position: int


def change(hour: int, position: int, modified: float, value: str | None, entity: int = 1, stream: int = 0) -> Change:
    """One that arrived at a position of an hour and was modified so many hours after T0; no value deletes."""
    at = T0 + timedelta(hours=modified)
    return Change(stream, entity, at, value, value is None, T0 + timedelta(hours=hour), position)


def by_spark(frame: "DataFrame", *key: str) -> "DataFrame":
    return newest(frame, key=key, modified="modified_at", arrived=("ingestion_hour", "position"))


def rows(frame: "DataFrame") -> Counter[Change]:
    times = ("ingestion_hour", "modified_at")
    numbered = frame.select(*(F.unix_seconds(name).alias(name) if name in times else name for name in Change._fields))

    def value(row: "Row", name: str) -> Any:
        return datetime.fromtimestamp(row[name], T0.tzinfo) if name in times else row[name]

    return Counter(Change(*[value(row, name) for name in Change._fields]) for row in numbered.collect())


def by_reference(changes: list[Change]) -> Counter[Change]:
    newest_changes = entities.newest(
        changes,
        key=lambda c: (c.stream, c.entity),
        modified=lambda c: c.modified_at,
        arrived=lambda c: (c.ingestion_hour, c.position),
    )
    return Counter(newest_changes.values())


def test_a_delete_wins_over_older_changes_that_arrive_later(spark: "SparkSession") -> None:
    update, delete, late = change(0, 1, 0.5, "x"), change(0, 2, 0.9, None), change(3, 0, 0.8, "late")
    frame = spark.createDataFrame([late, update, delete], SCHEMA)
    assert by_spark(frame, "entity").columns == list(Change._fields)
    assert rows(by_spark(frame, "entity")) == Counter([delete])
    again, later = change(4, 0, 0.9, "same time"), change(4, 1, 0.9, "later, and a smaller text")
    for added in ([again], [later, again]):
        state = rows(by_spark(frame.unionByName(spark.createDataFrame(added, SCHEMA)), "entity"))
        assert state == Counter(added[:1])


def test_changes_with_equal_times_and_positions_give_one_result_in_any_order(spark: "SparkSession") -> None:
    smaller, larger = change(0, 1, 0.5, "x"), change(0, 1, 0.5, "y")
    for pair in ([smaller, larger], [larger, smaller]):
        assert rows(by_spark(spark.createDataFrame(pair, SCHEMA).coalesce(1), "entity")) == Counter([larger])


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Change], list[Change]]:
    """Changes of a few entities with few times, so that many are equal, in two parts, some delivered again."""
    drawn = st.tuples(
        st.integers(0, 3), st.sampled_from([0, 0.5, 1, 1.5, 2]), st.sampled_from(["x", "y", None]), st.integers(1, 2)
    )
    changes = [
        change(hour, at, modified, value, entity)
        for at, (hour, modified, value, entity) in enumerate(draw(st.lists(drawn, max_size=10)))
    ]
    both = draw(st.permutations(changes + (draw(st.lists(st.sampled_from(changes), max_size=3)) if changes else [])))
    cut = draw(st.integers(0, len(both)))
    return both[:cut], both[cut:]


@pytest.mark.whole
@settings(max_examples=3, deadline=None, phases=WITHOUT_SHRINKING, suppress_health_check=PATIENT)
@given(st.lists(streams(), min_size=20, max_size=60))
def test_random_changes_give_the_state_of_the_reference_at_once_and_in_parts(
    spark: "SparkSession", drawn: list[tuple[list[Change], list[Change]]]
) -> None:
    parts = [[c._replace(stream=number) for number, both in enumerate(drawn) for c in both[part]] for part in (0, 1)]
    expected = by_reference([*parts[0], *parts[1]])
    first, second = (spark.createDataFrame(part, SCHEMA) for part in parts)
    assert rows(by_spark(first.unionByName(second), "stream", "entity")) == expected
    state = by_spark(first, "stream", "entity")
    for _ in range(2):  # the second time changes nothing
        state = by_spark(state.unionByName(second), "stream", "entity")
    assert rows(state) == expected


def test_the_newest_of_each_hour_is_built_in_any_chunks_and_gives_the_state(spark: "SparkSession") -> None:
    changes = [change(n % 5, n, (n * 7 % 20) / 4, None if n % 6 == 0 else f"v{n}", n % 3) for n in range(60)]
    frame = spark.createDataFrame(changes, SCHEMA).withColumn("hour", F.date_trunc("hour", "modified_at"))
    whole = by_spark(frame, "hour", "entity")
    hours = [T0 + timedelta(hours=n) for n in range(5)]
    apart = [by_spark(frame.where(between("modified_at", hour, hour + timedelta(hours=1))), "hour", "entity") for hour in hours]
    joined = reduce(lambda left, right: left.unionByName(right), apart)
    assert rows(joined) == rows(whole)
    assert rows(by_spark(whole.drop("hour"), "entity")) == by_reference(changes)
