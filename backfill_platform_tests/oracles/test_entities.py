from datetime import datetime, timedelta
from random import Random
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from backfill_platform_tests.oracles.entities import newest

T0 = datetime.fromisoformat("2026-01-01T00:00:00Z")


class Change(NamedTuple):
    """What an entity was changed to; None deletes it."""

    arrived: int
    entity: str
    minute: int
    value: str | None


def state(changes: list[Change]) -> dict[str, str | None]:
    states = newest(
        changes,
        key=lambda change: change.entity,
        modified=lambda change: T0 + timedelta(minutes=change.minute),
        arrived=lambda change: change.arrived,
    )
    return {str(entity): change.value for entity, change in states.items()}


def test_the_newest_wins_equal_replaces_and_older_never_does() -> None:
    assert state([Change(1, "a", 5, "old"), Change(2, "a", 6, "new")]) == {"a": "new"}
    assert state([Change(1, "a", 5, "first"), Change(2, "a", 5, "second")]) == {"a": "second"}
    assert state([Change(2, "a", 5, "second"), Change(1, "a", 5, "first")]) == {"a": "second"}
    assert state([Change(1, "a", 6, "new"), Change(2, "a", 5, "late")]) == {"a": "new"}
    assert state([Change(1, "a", 0, "x"), Change(2, "b", 1, "y")]) == {"a": "x", "b": "y"}


def test_a_deleted_entity_comes_back_by_a_change_that_is_not_older_only() -> None:
    deleted = [Change(1, "a", 1, "x"), Change(2, "a", 5, None)]
    assert state(deleted) == {"a": None}
    assert state([*deleted, Change(3, "a", 4, "late")]) == {"a": None}
    assert state([*deleted, Change(3, "a", 5, "same time")]) == {"a": "same time"}
    assert state([*deleted, Change(3, "a", 6, "again")]) == {"a": "again"}


CHANGES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.sampled_from(["x", "y", None])), max_size=12).map(
    lambda drawn: [Change(number, *values) for number, values in enumerate(drawn)]
)


@given(CHANGES, st.randoms(use_true_random=False))
def test_the_state_is_that_of_the_greatest_time_and_arrival_in_whatever_order_it_is_read(
    changes: list[Change], chance: Random
) -> None:
    greatest = {}
    for change in sorted(changes, key=lambda change: (change.minute, change.arrived)):
        greatest[change.entity] = change.value
    shuffled = changes.copy()
    chance.shuffle(shuffled)
    assert state(shuffled) == state(changes) == greatest
