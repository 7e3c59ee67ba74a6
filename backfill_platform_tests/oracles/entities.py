"""The rule of `modify time` in plain Python: the oracle of the Spark transform. Slow, obvious and complete.

Changes of an entity carry the time at which the entity was modified. The newest one is its state: a newer change replaces it,
one of the same time that arrives later replaces it, an older one never does. A delete is a change like any other and stays as
a tombstone: forgotten, it would let an older change that arrives later bring the entity back.
"""

from collections.abc import Callable, Hashable, Iterable
from datetime import datetime
from typing import Any, TypeVar

C = TypeVar("C")


def newest(
    changes: Iterable[C],
    *,
    key: Callable[[C], Hashable],
    modified: Callable[[C], datetime],
    arrived: Callable[[C], Any],
) -> dict[Hashable, C]:
    """The newest change of each entity, tombstones included, as applying them one by one as they arrive leaves it."""
    state: dict[Hashable, C] = {}
    for change in sorted(changes, key=arrived):
        now = state.get(key(change))
        if now is None or modified(change) >= modified(now):
            state[key(change)] = change
    return state
