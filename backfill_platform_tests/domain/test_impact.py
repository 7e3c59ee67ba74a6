"""The impact against the pure references: whatever happens within the damage, no hour outside it changes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from backfill_platform.domain.hours import HOUR, HourRange, hour_of
from backfill_platform.domain.impact import Damage, Impact, Neighbourhood, may_start, trace_impact
from backfill_platform.domain.plan import Node
from backfill_platform.domain.tables import Column, ColumnType, Layer, Table
from backfill_platform.domain.windows import NO_MARGIN, UntilClosed, Window
from backfill_platform.errors import UsageError
from backfill_platform.examples.session_rule import Session, sessionize
from backfill_platform_tests.events import hour
from backfill_platform_tests.oracles.payments import Line, velocity
from backfill_platform_tests.oracles.playbacks import Event, attribution

HOURS = HourRange(hour(0), hour(10))
MINUTES = len(HOURS) * 60
GAP = timedelta(minutes=30)
COLUMNS = (Column("hour", ColumnType.TIMESTAMP),)
RAW = Node(Table(Layer.RAW, "clicks", COLUMNS), None)
STEPS = (0, 1, 29, 30, 31, 59, 60, 61, 119, 240)


class Click(NamedTuple):
    """An event of a key, in whole minutes so that boundaries are hit."""

    key: int
    minute: int
    value: int = 0
    micros: int = 0

    @property
    def at(self) -> datetime:
        return hour(0) + timedelta(minutes=self.minute, microseconds=self.micros)


def nodes(window: Window, above: Window = NO_MARGIN) -> tuple[Node, ...]:
    table = Node(Table(Layer.TRANSFORMED, "visits", COLUMNS), RAW.table, window, published=True)
    return (RAW, table, Node(Table(Layer.AGGREGATED, "hourly", COLUMNS), table.table, above, published=True))


def impact(clicks: Iterable[Click], window: Window, damage: Damage, above: Window = NO_MARGIN) -> Impact:
    """As the platform looks it up in the lake, from the rows that the reference makes of the same events."""
    known = [click for click in clicks if click.at < HOURS.end]
    outside = [click for click in known if not damage.start <= click.at < damage.end]

    def look(node: Node, ahead: UntilClosed, reached: HourRange) -> Neighbourhood:
        reaching = Counter(
            hour_of(one.started_at)
            for one in sessions(known, ahead.cap)
            if one.started_at in reached
            and one.started_at < damage.start
            and (one.ended_at > damage.start - ahead.gap or one.is_open)
        )
        before, after = {}, {}
        for click in sorted(outside, key=lambda click: click.at):
            if damage.start - ahead.gap <= click.at < damage.start:
                before[click.key] = click.at
            elif damage.end <= click.at < damage.end + ahead.gap:
                after.setdefault(click.key, click.at)
        return Neighbourhood(reaching, may_start(before, after, damage, ahead.gap))

    raw = dict.fromkeys(damage.hours, "damaged")
    return trace_impact("clicks", nodes(window, above), HOURS, damage, raw, look)


def sessions(clicks: Iterable[Click], cap: timedelta) -> list[Session[Click]]:
    return sessionize(clicks, key=lambda c: c.key, time=lambda c: c.at, gap=GAP, cap=cap, available_until=HOURS.end)


def differing(one: Iterable[tuple[Any, ...]], other: Iterable[tuple[Any, ...]]) -> set[datetime]:
    """The hours, in the first column, whose rows are not the same."""
    by_hour: defaultdict[datetime, list[Counter[tuple[Any, ...]]]] = defaultdict(lambda: [Counter(), Counter()])
    for side, rows in enumerate((one, other)):
        for row in rows:
            by_hour[row[0]][side][row] += 1
    return {found for found, (left, right) in by_hour.items() if left != right}


def session_rows(clicks: Iterable[Click], cap: timedelta) -> list[tuple[Any, ...]]:
    return [
        (hour_of(one.started_at), one.key, one.started_at, one.ended_at, sum(c.value for c in one.events), one.is_open)
        for one in sessions(clicks, cap)
    ]


@st.composite
def streams(draw: st.DrawFn) -> list[Click]:
    """Clicks of a few keys that come and go around the gap and the hour; the third never idles for long."""
    clicks = []
    for key in range(draw(st.integers(1, 3))):
        minute = draw(st.integers(0, MINUTES - 1))
        for step in draw(st.lists(st.sampled_from(STEPS if key < 2 else (0, 10, 29)), max_size=20)):
            clicks.append(Click(key, minute, draw(st.integers(0, 1))))
            minute += step
    return [click for click in clicks if click.minute < MINUTES]


@st.composite
def damages(draw: st.DrawFn, clicks: list[Click]) -> Damage:
    """An interval anywhere, or one that begins or ends about a gap away from a click, where the rules decide."""
    length = draw(st.sampled_from((1, 2, 10, 28, 30, 60, 100, 200)))
    near = draw(st.sampled_from(clicks)).minute if clicks else 0
    start = draw(st.one_of(st.integers(0, MINUTES - 1), st.sampled_from((1, 29, 30)).map(lambda after: near + after)))
    if draw(st.booleans()):
        start = near - draw(st.sampled_from((0, 1, 28, 29, 30))) - length
    start = min(max(start, 0), MINUTES - 1)
    return Damage(hour(0) + timedelta(minutes=start), hour(0) + timedelta(minutes=min(start + length, MINUTES)))


def inside(damage: Damage) -> st.SearchStrategy[list[Click]]:
    first, last = ((moment - hour(0)) // timedelta(minutes=1) for moment in (damage.start, damage.end))
    return st.lists(
        st.builds(Click, st.integers(0, 4), st.integers(first, last - 1), st.integers(0, 1), st.just(0)), max_size=12
    )


def worst(clicks: list[Click], damage: Damage) -> list[list[Click]]:
    """What the interval may hold besides: nothing; every key from its first to its last instant; newcomers in each hour."""
    outside = [click for click in clicks if not damage.start <= click.at < damage.end]
    first, last = ((moment - hour(0)) // timedelta(minutes=1) for moment in (damage.start, damage.end))
    busy = [Click(key, minute, 1) for key in range(3) for minute in range(first, last)]
    busy += [Click(key, last, 1, micros=-1) for key in range(3)]
    newcomers = [Click(100 + n, max(first, n * 60)) for n in range(len(HOURS)) if max(first, n * 60) < min(last, n * 60 + 60)]
    return [outside, outside + busy, outside + newcomers]


@settings(max_examples=600, deadline=None)
@given(st.data(), st.sampled_from((30, 60, 90, 600)))
def test_sessions_change_nowhere_else_and_can_change_everywhere_in_it(data: st.DataObject, cap_minutes: int) -> None:
    clicks, cap = data.draw(streams()), timedelta(minutes=cap_minutes)
    damage = data.draw(damages(clicks))
    window = Window(GAP, UntilClosed("key", GAP, cap))
    found = set(impact(clicks, window, damage).tables[1].hours)
    now = session_rows(clicks, cap)

    # Sound: events are removed, changed and added at random; the set is the same whichever side it is computed from.
    kept = data.draw(st.sets(st.sampled_from(clicks))) if clicks else set()
    other = [c for c in clicks if not damage.start <= c.at < damage.end or c in kept] + data.draw(inside(damage))
    changed = differing(now, session_rows(other, cap))
    assert changed <= found
    assert set(impact(other, window, damage).tables[1].hours) == found
    event(f"hours more than this damage changed: {len(found - changed)}")

    # Exact: for each hour of the set there is damage that changes it.
    variants = [session_rows(variant, cap) for variant in worst(clicks, damage)]
    assert set().union(*(differing(variants[0], variant) for variant in variants)) == found


def lines(clicks: Iterable[Click]) -> Iterable[tuple[Any, ...]]:
    return velocity(Line(c.key, 1, c.minute, 1, 1, c.value, c.at) for c in clicks)


def plays(clicks: Iterable[Click]) -> Iterable[tuple[Any, ...]]:
    kinds = ("impression", "play")
    return attribution(Event(c.at, f"{c.minute}-{c.value}", kinds[c.value], c.key, 1) for c in clicks)


@pytest.mark.parametrize(
    ("rows", "window"),
    [
        pytest.param(lines, Window(lookback=HOUR), id="velocity"),
        pytest.param(plays, Window(lookahead=4 * HOUR), id="attribution"),
    ],
)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_rows_with_fixed_margins_change_nowhere_else(
    rows: Callable[[Iterable[Click]], Iterable[tuple[Any, ...]]], window: Window, data: st.DataObject
) -> None:
    clicks = data.draw(streams())
    damage = data.draw(damages(clicks))
    found = set(impact(clicks, window, damage).tables[1].hours)
    outside, _, _ = worst(clicks, damage)
    for variant in (outside, outside + data.draw(inside(damage))):
        changed = differing(rows(clicks), rows(variant))
        assert changed <= found
        event(f"hours more than this damage changed: {len(found - changed)}")


def test_who_comes_back_may_start_a_session_or_not_depending_on_the_damage() -> None:
    damage = Damage(at("02:50"), at("02:55"))
    before = {"still there": at("02:46"), "at exactly the gap": at("02:45"), "back too late": at("02:49")}
    first = {"still there": at("03:15"), "at exactly the gap": at("03:15"), "new": at("03:24"), "back too late": at("03:25")}
    assert may_start({**before}, {**first}, damage, GAP) == {at("03:00"): 2}  # at exactly the gap, and new


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"1998-05-01T{text}:00+00:00")


def click(key: int, text: str) -> Click:
    return Click(key, (at(text) - hour(0)) // timedelta(minutes=1))


def hours_of(found: Impact, number: int) -> list[str]:
    return [f"{one:%H}" for one in found.tables[number].hours]


def test_the_hours_are_those_of_the_visits_that_come_near_contiguous_or_not() -> None:
    long_visit = [click(1, text) for text in ("01:50", "02:15", "02:40", "03:05", "03:30", "03:55", "04:20", "04:45", "05:00")]
    gone_by_then = [click(2, "03:00"), click(2, "04:35")]
    at_exactly_the_gap = [click(3, "03:10"), click(3, "04:50")]
    back_within_the_gap = [click(4, "06:10")]
    back_too_late = [click(5, "06:20")]
    everyone = [*long_visit, *gone_by_then, *at_exactly_the_gap, *back_within_the_gap, *back_too_late]
    damage = Damage(at("05:20"), at("05:50"))
    window = Window(GAP, UntilClosed("key", GAP))
    found = impact(everyone, window, damage)
    assert hours_of(found, 0) == ["05"]
    assert hours_of(found, 1) == hours_of(found, 2) == ["01", "05", "06"]
    assert found.tables[1].why[at("01:00")] == "1 sessions begin here and reach the interval, or end less than 30 min before it"
    assert "events of the interval" in found.tables[1].why[at("05:00")]
    assert "1 sessions begin here less than 30 min after" in found.tables[1].why[at("06:00")]
    assert found.tables[2].why[at("01:00")] == "computed from transformed/visits of 1998-05-01T01"
    # The visit is over when its last event is exactly a gap away, and the one who comes back at exactly the gap starts anew.
    assert hours_of(impact(everyone, window, Damage(at("05:30"), at("05:40"))), 1) == ["05"]


def test_the_plans_run_range_by_range_sources_first() -> None:
    window = Window(GAP, UntilClosed("key", GAP))
    visit = [click(1, text) for text in ("03:10", "03:35", "04:00", "04:25", "04:50")]
    found = impact(visit, window, Damage(at("05:10"), at("05:20")))
    plans = found.plans()
    assert [(str(plan.hours), [step.verb for step in plan.steps]) for plan in plans] == [
        ("[1998-05-01T05, 1998-05-01T06)", ["land"]),
        ("[1998-05-01T03, 1998-05-01T04)", ["build", "publish", "build", "publish"]),
        ("[1998-05-01T05, 1998-05-01T06)", ["build", "publish", "build", "publish"]),
    ]
    chosen = found.plans([("warehouse", "visits")])
    assert [[step.verb for step in plan.steps] for plan in chosen] == [["publish"], ["publish"]]
    with pytest.raises(UsageError, match="has no asset warehouse/nobody"):
        found.plans([("warehouse", "nobody")])


def test_a_derived_table_that_looks_around_spreads_the_damage_further() -> None:
    found = impact([], Window(lookback=HOUR), Damage(at("02:10"), at("02:20")), above=Window(lookback=HOUR, lookahead=HOUR))
    assert (hours_of(found, 1), hours_of(found, 2)) == (["02", "03"], ["01", "02", "03", "04"])
    assert found.tables[2].why[at("01:00")] == "its window reaches transformed/visits of 1998-05-01T02"


def test_damage_without_an_extent_is_refused() -> None:
    with pytest.raises(UsageError, match="is empty; it is half-open"):
        Damage(at("02:10"), at("02:10"))
