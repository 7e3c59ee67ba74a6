"""From gaps to repairs: which ranges to ask for, newest first, each gap once for as long as its evidence stays the same.

Pure decisions over values: what has been asked for is a small state that the caller keeps from one look to the next.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from backfill_platform.domain.change_limits import ChangeLimits
from backfill_platform.domain.gaps import Gap
from backfill_platform.domain.hours import HOUR, HourRange, merge_hours, parse_hour
from backfill_platform.domain.plan import DRY_RUN, WAREHOUSE, AssetPath, layer_order
from backfill_platform.errors import SpecError


class OnGap(StrEnum):
    """What may be done about gaps without asking anybody."""

    REPORT = "report"  # say what is wrong
    DRY_RUN = "dry-run"  # build the lake's hours again, and show what would change in the warehouse
    PUBLISH = "publish"  # repair, within the change limits

    def does_more_than(self, other: "OnGap") -> bool:
        """Whether this repairs more of a gap than `other`: they are listed from the least to the most."""
        every = list(OnGap)
        return every.index(self) > every.index(other)


@dataclass(frozen=True)
class GapPolicy:
    """How a pipeline is watched. Hours are looked at from `look_back` before its end, or before now, up to `settle` before now.

    A tick comes `every` so often and asks for at most `runs_per_tick` repairs of at most `hours_per_run` hours. `change_limits`
    is as `ChangeLimits.parse` takes it. Raises SpecError for values that make no sense, UsageError for change limits that is
    none.
    """

    action: OnGap = OnGap.REPORT
    look_back: timedelta = timedelta(days=7)
    settle: timedelta = timedelta(hours=1)
    every: timedelta = timedelta(minutes=1)
    hours_per_run: int = 24
    runs_per_tick: int = 1
    change_limits: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.look_back < HOUR or self.settle < timedelta(0) or self.every < timedelta(seconds=1):
            raise SpecError("a gap policy looks back an hour or more, settles for zero or more, and ticks every second or less")
        if self.hours_per_run < 1 or self.runs_per_tick < 1:
            raise SpecError("a gap policy asks for one hour a run and one run a tick, or more")
        ChangeLimits.parse(self.change_limits or {})

    def hours(self, every: HourRange, now: datetime) -> HourRange | None:
        """Those of a pipeline's hours that are looked at now; None where there are none yet."""
        end = min(every.end, (now - self.settle).replace(minute=0, second=0, microsecond=0))
        start = max(every.start, end - self.look_back)
        return HourRange(start, end) if start < end else None


class Asked(NamedTuple):
    """What was done about a gap: the evidence it was done on, as a digest, and the action of the policy at that time."""

    evidence: str
    action: OnGap = OnGap.REPORT


@dataclass(frozen=True)
class RepairRequest:
    """One range run: the assets, in the order of the flow, over contiguous hours, with the gaps it answers."""

    hours: HourRange
    assets: tuple[AssetPath, ...]
    gaps: tuple[str, ...]

    def key(self, asked: Mapping[str, Asked]) -> str:
        """Names the request for the evidence it was made on; the same request on other evidence has another key."""
        evidence = json.dumps([str(self.hours), self.assets, [[gap, asked.get(gap)] for gap in self.gaps]])
        return f"{self.hours}#{hashlib.sha256(evidence.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Seen:
    """What was done about each open gap, by its name, and the requests that wait for their turn.

    `number` counts the requests made, so that damage that comes back after its repair is a new request.
    """

    asked: Mapping[str, Asked] = field(default_factory=dict)
    waiting: tuple[RepairRequest, ...] = ()
    number: int = 0

    def to_json(self) -> str:
        """A text that `from_json` reads."""
        waiting = [
            [one.hours.start.isoformat(), one.hours.end.isoformat(), [list(asset) for asset in one.assets], list(one.gaps)]
            for one in self.waiting
        ]
        return json.dumps({"asked": dict(self.asked), "waiting": waiting, "number": self.number})

    @classmethod
    def from_json(cls, text: str | None) -> "Seen":
        """The state of a text; nothing has been asked for where there is none, or one of another version."""
        try:
            found = json.loads(text or "{}")
            waiting = tuple(
                RepairRequest(HourRange.parse(start, end), tuple((one[0], one[1]) for one in assets), tuple(gaps))
                for start, end, assets, gaps in found.get("waiting", ())
            )
            asked = {name: _asked(one) for name, one in found.get("asked", {}).items()}
            return cls(asked, waiting, int(found.get("number", 0)))
        except (ValueError, TypeError, AttributeError, KeyError):
            return cls()


@dataclass(frozen=True)
class Decision:
    """What to do now: the requests to make, the gaps nobody had seen before, those that are gone, and the state to keep."""

    requests: tuple[RepairRequest, ...]
    new: tuple[Gap, ...]
    gone: tuple[str, ...]
    seen: Seen


def name_of(gap: Gap) -> str:
    """Names the hour of a table, whatever is wrong with it."""
    return f"{gap.table} {gap.hour.isoformat()} {gap.place}"


def gap_of(name: str) -> tuple[str, datetime]:
    """The table and the hour of a gap's name."""
    table, hour, _ = name.split(" ")
    return table, parse_hour(hour)


def unseen(gaps: Iterable[Gap], seen: Seen, busy: Collection[datetime], action: OnGap) -> tuple[Gap, ...]:
    """The gaps whose evidence is new, or about which less was done than `action`, in hours that nothing is at work on.

    Those of busy hours wait for the next look.
    """
    return tuple(gap for gap in gaps if not _is_done(gap, seen, action) and gap.hour not in busy)


def _is_done(gap: Gap, seen: Seen, action: OnGap) -> bool:
    before = seen.asked.get(name_of(gap))
    return before is not None and before.evidence == _evidence(gap) and not action.does_more_than(before.action)


def decide(
    gaps: Collection[Gap],
    wanted: Mapping[AssetPath, Collection[datetime]],
    seen: Seen,
    busy: Collection[datetime],
    policy: GapPolicy,
) -> Decision:
    """What to do about the gaps. `wanted` are the hours of each asset that the unseen ones need, `busy` hours in work.

    Requests touch no busy hour; they wait. A request whose gaps are all gone is forgotten, and one that the policy no longer
    allows is withdrawn: its gaps are new at the next look.
    """
    new = unseen(gaps, seen, busy, policy.action)
    names = {name_of(gap) for gap in gaps}
    # What is gone while a repair is at work may be half a repair: it is said when the work is over.
    gone = tuple(sorted(name for name in set(seen.asked) - names if gap_of(name)[1] not in busy))
    withdrawn = {name for one in seen.waiting if not _allows(policy, one) for name in one.gaps}
    asked = {name: one for name, one in seen.asked.items() if name not in gone and name not in withdrawn}
    asked |= {name_of(gap): Asked(_evidence(gap), policy.action) for gap in new}
    waiting = [one for one in seen.waiting if names.intersection(one.gaps) and _allows(policy, one)]
    if policy.action is not OnGap.REPORT and new:
        chunks = _chunks(wanted, new, policy.hours_per_run)
        # What was found anew is asked for with all of its hours; older requests for the same ones would only repeat it.
        covered = {hour for one in chunks for hour in one.hours}
        waiting = [one for one in waiting if not set(one.hours) <= covered] + chunks
    waiting.sort(key=lambda one: one.hours.start, reverse=True)
    ready: list[RepairRequest] = []
    blocked = set(busy)
    for one in waiting:
        if len(ready) < policy.runs_per_tick and blocked.isdisjoint(one.hours):
            ready.append(one)
            blocked.update(one.hours)
    left = tuple(one for one in waiting if one not in ready)
    return Decision(tuple(ready), new, gone, Seen(asked, left, seen.number + len(ready)))


def assets_for(policy: GapPolicy, wanted: Mapping[AssetPath, Collection[datetime]]) -> dict[AssetPath, set[datetime]]:
    """What the policy lets be materialized of what a repair needs: dry runs instead of publishing, or all of it."""
    found: dict[AssetPath, set[datetime]] = {}
    for (prefix, name), hours in wanted.items():
        shown = DRY_RUN if prefix == WAREHOUSE and policy.action is OnGap.DRY_RUN else prefix
        found.setdefault((shown, name), set()).update(hours)
    return found


def _allows(policy: GapPolicy, request: RepairRequest) -> bool:
    """Whether a request that an earlier policy has made may still begin."""
    publishes = any(prefix == WAREHOUSE for prefix, _ in request.assets)
    return policy.action is OnGap.PUBLISH or (policy.action is OnGap.DRY_RUN and not publishes)


def _asked(stored: Any) -> Asked:
    """As it is stored: evidence and action, or the evidence alone by a version that did not keep what was done."""
    return Asked(stored) if isinstance(stored, str) else Asked(str(stored[0]), OnGap(stored[1]))


def _chunks(wanted: Mapping[AssetPath, Collection[datetime]], gaps: Iterable[Gap], most: int) -> list[RepairRequest]:
    """The fewest ranges that hold all wanted hours, cut where they are too long; each with the assets wanted in it."""
    names = [(name_of(gap), gap.hour) for gap in gaps]
    found = []
    for span in merge_hours(hour for hours in wanted.values() for hour in hours):
        # A gap's impact may lie in several cuts of a span; each of them answers it.
        answered = tuple(sorted(name for name, hour in names if hour in span))
        for start in range(0, len(span), most):
            first = span.start + start * HOUR
            part = HourRange(first, min(first + most * HOUR, span.end))
            assets = {asset for asset, hours in wanted.items() if not set(part).isdisjoint(hours)}
            if assets:
                found.append(RepairRequest(part, tuple(sorted(assets, key=layer_order)), answered))
    everything = tuple(sorted(name for name, _ in names))
    return [one if one.gaps else RepairRequest(one.hours, one.assets, everything) for one in found]


def _evidence(gap: Gap) -> str:
    text = json.dumps([gap.kind, gap.evidence, gap.tenants])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
