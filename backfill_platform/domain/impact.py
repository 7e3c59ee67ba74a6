"""The impact of damaged raw events: which owning hours of which tables must be built again, and why.

Damage is an interval of event time in which events are missing, wrong or too many; everything outside it is taken to be right.
Windows give an upper bound (`Window.reached_by`). For sessions, two looks at the data narrow it to what really can change,
because a session rule with gap `g` carries a change no further than this:

- before the interval, a key has at most one session that can change: the one whose last event before the interval is less than
  `g` away from it. If it ends earlier, no event of the interval can join it (`Neighbourhood.reaching`).
- after the interval, only a key's first event can begin or cease to begin a session, and only if it comes less than `g` after
  the interval, and at least `g` after the key's last event before the interval (`may_start`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby

from backfill_platform.domain.hours import HourRange, hour_after, hour_of, merge_hours
from backfill_platform.domain.plan import DRY_RUN, AssetPath, Landing, Node, Plan, in_words, make_plan
from backfill_platform.domain.windows import UntilClosed
from backfill_platform.errors import UsageError

_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True)
class Damage:
    """Raw events with an event time in `[start, end)`, of the given tenants and session keys or of all, cannot be trusted.

    Raises UsageError when the interval is empty.
    """

    start: datetime
    end: datetime
    tenants: tuple[str, ...] = ()
    keys: frozenset[Hashable] | None = None

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise UsageError(f"the damage {self} is empty; it is half-open, so its end must come after its start")

    def __str__(self) -> str:
        whose = f" of {', '.join(self.tenants)}" if self.tenants else ""
        return f"[{_moment(self.start)}, {_moment(self.end)}){whose}"

    @property
    def hours(self) -> HourRange:
        """The hours that hold a part of the interval."""
        return HourRange(hour_of(self.start), hour_after(self.end))


@dataclass(frozen=True)
class Neighbourhood:
    """What the data says about sessions around the damage, by owning hour.

    `reaching` counts sessions that begin before the interval and end less than a gap before it or later; `starting` counts keys
    of `may_start`; `untold` says for hours before the interval why their sessions cannot be looked at.
    """

    reaching: Mapping[datetime, int] = field(default_factory=dict)
    starting: Mapping[datetime, int] = field(default_factory=dict)
    untold: Mapping[datetime, str] = field(default_factory=dict)


Look = Callable[[Node, UntilClosed, HourRange], Neighbourhood]


@dataclass(frozen=True)
class Affected:
    """The hours of a table that must be built again, in order, each with the reason."""

    node: Node
    why: Mapping[datetime, str]

    @property
    def hours(self) -> tuple[datetime, ...]:
        return tuple(sorted(self.why))


@dataclass(frozen=True)
class Impact:
    """What damage does to the tables of a pipeline, in the order of the flow."""

    pipeline: str
    damage: Damage
    tables: tuple[Affected, ...]

    def plans(
        self, chosen: Collection[AssetPath] = (), *, dry_run: bool = False, landing: Landing = Landing.SAFE
    ) -> tuple[Plan, ...]:
        """The repair: one plan per contiguous range of hours, sources before what is computed from them.

        `chosen` limits it to some assets; without, it takes all but dry runs, or the dry runs alone. Tables with the same hours
        share their plans.
        """
        nodes = tuple(affected.node for affected in self.tables)
        make_plan(self.pipeline, nodes, self.damage.hours, chosen)  # refuses assets that are not there
        found: list[Plan] = []
        for hours, group in groupby(self.tables, key=lambda affected: affected.hours):
            assets = [asset for affected in group for asset in affected.node.assets if (asset[0] == DRY_RUN) is dry_run]
            wanted = [asset for asset in assets if not chosen or asset in chosen]
            if wanted:
                found += [make_plan(self.pipeline, nodes, span, wanted, landing) for span in merge_hours(hours)]
        return tuple(found)


def trace_impact(
    pipeline: str, nodes: tuple[Node, ...], hours: HourRange, damage: Damage, raw: Mapping[datetime, str], look: Look
) -> Impact:
    """Follow the damage from table to table; `nodes` are in the order of the flow, `hours` are all that the pipeline has.

    `raw` are the ingestion hours that must be landed again, with reasons. `look` is asked for the neighbourhood of the damage
    within the given hours, for tables of sessions that are computed from raw events.
    """
    found: dict[AssetPath, Affected] = {}
    for node in nodes:
        if node.reads is None:
            why = dict(raw)
        elif found[node.reads.path].node.reads is None:
            why = _from_raw(node, hours, damage, look)
        else:
            why = _from_derived(node, hours, found[node.reads.path].hours)
        found[node.table.path] = Affected(node, why)
    return Impact(pipeline, damage, tuple(found.values()))


def may_start(
    last_before: Mapping[Hashable, datetime], first_after: Mapping[Hashable, datetime], damage: Damage, gap: timedelta
) -> dict[datetime, int]:
    """How many keys, by hour, have a first event after the damage that begins a session or not depending on the damage.

    `last_before` is a key's last event before the interval, `first_after` its first event at or after the end of it.
    """
    depending = (
        hour_of(first)
        for key, first in first_after.items()
        if first < damage.end + gap and (key not in last_before or first - last_before[key] >= gap)
    )
    return dict(Counter(depending))


def _from_raw(node: Node, hours: HourRange, damage: Damage, look: Look) -> dict[datetime, str]:
    window = node.window
    reached = window.reached_by(damage.start, damage.end).intersect(hours)
    if reached is None:
        return {}
    own = dict.fromkeys((hour for hour in reached if hour in damage.hours), "events of the interval are its own")
    before = [hour for hour in reached if hour < damage.hours.start]
    after = [hour for hour in reached if hour >= damage.hours.end]
    back = f"its rows look back {in_words(window.lookback)}, into the interval"
    ahead = window.lookahead
    if isinstance(ahead, timedelta):
        return {
            **dict.fromkeys(before, f"its rows look ahead {in_words(ahead)}, into the interval"),
            **own,
            **dict.fromkeys(after, back),
        }
    near = look(node, ahead, reached)
    gap = in_words(ahead.gap)
    why = {hour: reason for hour, reason in near.untold.items() if hour in before}
    why |= {
        hour: f"{count} sessions begin here and reach the interval, or end less than {gap} before it"
        for hour, count in near.reaching.items()
        if hour in before
    }
    if window.lookback > ahead.gap:
        # The transform looks back further than the session rule does; nothing is known about what it does there.
        return {**why, **own, **dict.fromkeys(after, back)}
    following = {
        hour: f"{count} sessions begin here less than {gap} after the interval, or would if its events were others"
        for hour, count in near.starting.items()
        if hour in after
    }
    return {**why, **own, **following}


def _from_derived(node: Node, hours: HourRange, source: Iterable[datetime]) -> dict[datetime, str]:
    why: dict[datetime, str] = {}
    for changed in source:
        # Rows of a derived table are read by their owning hour, which is an instant.
        reached = node.window.reached_by(changed, changed + _INSTANT).intersect(hours)
        for hour in reached or ():
            why.setdefault(hour, f"computed from {node.reads} of {hour:%Y-%m-%dT%H}" if hour == changed else "")
            why[hour] = why[hour] or f"its window reaches {node.reads} of {changed:%Y-%m-%dT%H}"
    return why


def _moment(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
