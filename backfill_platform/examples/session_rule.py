"""The session rule in plain Python: the reference for the Spark transform. Slow, obvious and complete."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from backfill_platform.domain.windows import followed_until

E = TypeVar("E")


@dataclass(frozen=True)
class Session(Generic[E]):
    """The events of one key with less than a gap between neighbours, in time order.

    `is_open` says that the session may go on: its cap, or the end of what has landed, came before a full gap without events.
    """

    key: Hashable
    started_at: datetime
    ended_at: datetime
    events: tuple[E, ...]
    is_open: bool


def sessionize(
    events: Iterable[E],
    *,
    key: Callable[[E], Hashable],
    time: Callable[[E], datetime],
    gap: timedelta,
    cap: timedelta,
    available_until: datetime,
) -> list[Session[E]]:
    """All sessions of the events before `available_until`, in the order in which keys appear, then by start.

    Events beyond the cap of their session belong to no session, as they belong to no row of the Spark transform.
    """
    by_key: defaultdict[Hashable, list[E]] = defaultdict(list)
    for event in events:
        if time(event) >= available_until:
            continue
        by_key[key(event)].append(event)
    sessions = []
    for owner, own in by_key.items():
        own.sort(key=time)
        group: list[E] = []
        for event in own:
            if group and time(event) - time(group[-1]) >= gap:
                sessions.append(_close(owner, group, time, gap, cap, available_until))
                group = []
            group.append(event)
        sessions.append(_close(owner, group, time, gap, cap, available_until))
    return sessions


def _close(
    key: Hashable,
    group: list[E],
    time: Callable[[E], datetime],
    gap: timedelta,
    cap: timedelta,
    available_until: datetime,
) -> Session[E]:
    until = followed_until(time(group[0]), cap, available_until)
    within_cap = tuple(event for event in group if time(event) < until)
    ended = time(within_cap[-1])
    return Session(key, time(within_cap[0]), ended, within_cap, is_open=ended + gap > until)
