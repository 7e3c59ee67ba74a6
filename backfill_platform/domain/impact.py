"""The impact of damaged raw events: which owning hours of which tables must be built again, and why.

Damage is an interval of event time in which events are missing, wrong or too many; everything outside it counts as correct.
Windows give an upper bound (`Window.reached_by`). For sessions, two queries of the data narrow it to what really can change,
because a session rule with gap `g` carries a change no further than this:

- before the interval, a key has at most one session that can change: the one whose last event before the interval is less than
  `g` away from it. If it ends earlier, no event of the interval can join it (`Neighbourhood.reaching`).
- after the interval, only a key's first event can begin or cease to begin a session, and only if it comes less than `g` after
  the interval, and at least `g` after the key's last event before the interval (`may_start`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby

from backfill_platform.domain.hours import HourRange, hour_after, hour_of, merge_hours
from backfill_platform.domain.plan import DRY_RUN, AssetPath, Input, Landing, Node, Plan, in_words, make_plan
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
    of `may_start`; `not_examined` has, for hours before the interval, the reason why their sessions could not be read.
    """

    reaching: Mapping[datetime, int] = field(default_factory=dict)
    starting: Mapping[datetime, int] = field(default_factory=dict)
    not_examined: Mapping[datetime, str] = field(default_factory=dict)


Look = Callable[[Node, UntilClosed, HourRange], Neighbourhood]


@dataclass(frozen=True)
class Affected:
    """The hours of a table that must be built again, in order, each with the reason."""

    node: Node
    why: Mapping[datetime, str]

    @property
    def hours(self) -> tuple[datetime, ...]:
        """The hours in order."""
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
        """The repair: one plan for each contiguous range of hours, sources before the tables computed from them.

        `chosen` limits it to some assets; without it, the plans have all assets but the dry runs, or only these with
        `dry_run`. Tables with the same hours share their plans. Raises UsageError for an asset that the pipeline lacks.
        """
        nodes = tuple(affected.node for affected in self.tables)
        make_plan(self.pipeline, nodes, self.damage.hours, chosen)  # refuses assets that do not exist
        plans: list[Plan] = []
        for hours, group in groupby(self.tables, key=lambda affected: affected.hours):
            assets = [asset for affected in group for asset in affected.node.assets if (asset[0] == DRY_RUN) is dry_run]
            selected = [asset for asset in assets if not chosen or asset in chosen]
            if selected:
                plans += [make_plan(self.pipeline, nodes, span, selected, landing) for span in merge_hours(hours)]
        return tuple(plans)


def trace_impact(
    pipeline: str, nodes: tuple[Node, ...], hours: HourRange, damage: Damage, raw: Mapping[datetime, str], look: Look
) -> Impact:
    """Follow the damage from table to table; `nodes` are in the order of the flow, `hours` are all hours of the pipeline.

    `raw` has the ingestion hours that must be landed again, with reasons. `look` reads the neighbourhood of the damage within
    the given hours; it is called for tables of sessions that are computed from raw events.
    """
    affected: dict[AssetPath, Affected] = {}
    for node in nodes:
        why = dict(raw) if node.reads is None else {}
        for source in node.inputs:
            if source.elsewhere:
                continue  # the damage is in this pipeline's events
            if affected[source.table.path].node.reads is None:
                reached = _from_raw(replace(node, window=source.window), hours, damage, look)
            else:
                reached = reached_from(source, hours, affected[source.table.path].hours)
            why = {**reached, **why}
        affected[node.table.path] = Affected(node, why)
    return Impact(pipeline, damage, tuple(affected.values()))


def may_start(
    last_before: Mapping[Hashable, datetime], first_after: Mapping[Hashable, datetime], damage: Damage, gap: timedelta
) -> dict[datetime, int]:
    """How many keys, by hour, have a first event after the damage of which the damage decides whether it begins a session.

    `last_before` has the last event of a key before the interval, `first_after` its first event at or after the end of it.
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
    neighbourhood = look(node, ahead, reached)
    gap = in_words(ahead.gap)
    why = {hour: reason for hour, reason in neighbourhood.not_examined.items() if hour in before}
    why |= {
        hour: f"{count} sessions begin here and reach the interval, or end less than {gap} before it"
        for hour, count in neighbourhood.reaching.items()
        if hour in before
    }
    if window.lookback > ahead.gap:
        # The transform looks back further than the session rule does, for reasons that are not known here.
        return {**why, **own, **dict.fromkeys(after, back)}
    following = {
        hour: f"{count} sessions begin here less than {gap} after the interval, or would if its events were others"
        for hour, count in neighbourhood.starting.items()
        if hour in after
    }
    return {**why, **own, **following}


def reached_from(source: Input, hours: HourRange, changes: Iterable[datetime]) -> dict[datetime, str]:
    """The hours, of those given, that read one of the changed hours of a derived table, each with the reason."""
    why: dict[datetime, str] = {}
    for changed in changes:
        # Rows of a derived table are read by their owning hour, which is an instant.
        reached = source.window.reached_by(changed, changed + _INSTANT).intersect(hours)
        for hour in reached or ():
            why.setdefault(hour, f"computed from {source} of {hour:%Y-%m-%dT%H}" if hour == changed else "")
            why[hour] = why[hour] or f"its window reaches {source} of {changed:%Y-%m-%dT%H}"
    return why


def _moment(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
