"""The impact against the pure references: whatever happens within the damage, no hour outside it changes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.hours import HOUR, HourRange, hour_of
from backfill_platform.domain.impact import Damage, Impact, Neighbourhood, may_start, trace_impact
from backfill_platform.domain.plan import Node
from backfill_platform.domain.tables import Column, Layer, Table
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
    landed = [click for click in clicks if click.at < HOURS.end]
    outside = [click for click in landed if not damage.start <= click.at < damage.end]

    def look(node: Node, ahead: UntilClosed, reached: HourRange) -> Neighbourhood:
        reaching = Counter(
            hour_of(session.started_at)
            for session in sessions(landed, ahead.cap)
            if session.started_at in reached
            and session.started_at < damage.start
            and (session.ended_at > damage.start - ahead.gap or session.is_open)
        )
        before: dict[Hashable, datetime] = {}
        after: dict[Hashable, datetime] = {}
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


def differing(left_rows: Iterable[tuple[Any, ...]], right_rows: Iterable[tuple[Any, ...]]) -> set[datetime]:
    """The hours, in the first column, whose rows are not the same."""
    by_hour: defaultdict[datetime, list[Counter[tuple[Any, ...]]]] = defaultdict(lambda: [Counter(), Counter()])
    for side, rows in enumerate((left_rows, right_rows)):
        for row in rows:
            by_hour[row[0]][side][row] += 1
    return {hour_ for hour_, (left_count, right_count) in by_hour.items() if left_count != right_count}


def session_rows(clicks: Iterable[Click], cap: timedelta) -> list[tuple[Any, ...]]:
    return [
        (
            hour_of(session.started_at),
            session.key,
            session.started_at,
            session.ended_at,
            sum(c.value for c in session.events),
            session.is_open,
        )
        for session in sessions(clicks, cap)
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


@pytest.mark.whole
@settings(max_examples=600, deadline=None)
@given(st.data(), st.sampled_from((30, 60, 90, 600)))
def test_only_affected_hours_change_and_each_of_them_can_change(data: st.DataObject, cap_minutes: int) -> None:
    clicks, cap = data.draw(streams()), timedelta(minutes=cap_minutes)
    damage = data.draw(damages(clicks))
    window = Window(GAP, UntilClosed("key", GAP, cap))
    affected = set(impact(clicks, window, damage).tables[1].hours)
    rows_now = session_rows(clicks, cap)

    # Sound: events are removed, changed and added at random; the set is the same whichever side it is computed from.
    unchanged = data.draw(st.sets(st.sampled_from(clicks))) if clicks else set()
    variant_clicks = [c for c in clicks if not damage.start <= c.at < damage.end or c in unchanged] + data.draw(inside(damage))
    changed = differing(rows_now, session_rows(variant_clicks, cap))
    assert changed <= affected
    assert set(impact(variant_clicks, window, damage).tables[1].hours) == affected
    event(f"hours more than this damage changed: {len(affected - changed)}")

    # Exact: for each hour of the set there is damage that changes it.
    variants = [session_rows(variant, cap) for variant in worst(clicks, damage)]
    assert set().union(*(differing(variants[0], variant) for variant in variants)) == affected


def lines(clicks: Iterable[Click]) -> Iterable[tuple[Any, ...]]:
    return velocity(Line(c.key, 1, c.minute, 1, 1, c.value, c.at) for c in clicks)


def plays(clicks: Iterable[Click]) -> Iterable[tuple[Any, ...]]:
    kinds = ("impression", "play")
    return attribution(Event(c.at, f"{c.minute}-{c.value}", kinds[c.value], c.key, 1) for c in clicks)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("rows", "window"),
    [
        pytest.param(lines, Window(lookback=HOUR), id="velocity"),
        pytest.param(plays, Window(lookahead=4 * HOUR), id="attribution"),
    ],
)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_rows_with_fixed_margins_change_in_affected_hours_only(
    rows: Callable[[Iterable[Click]], Iterable[tuple[Any, ...]]], window: Window, data: st.DataObject
) -> None:
    clicks = data.draw(streams())
    damage = data.draw(damages(clicks))
    affected = set(impact(clicks, window, damage).tables[1].hours)
    outside, _, _ = worst(clicks, damage)
    for variant in (outside, outside + data.draw(inside(damage))):
        changed = differing(rows(clicks), rows(variant))
        assert changed <= affected
        event(f"hours more than this damage changed: {len(affected - changed)}")


def test_a_key_that_returns_after_the_damage_counts_where_the_damage_decides_whether_it_starts_a_session() -> None:
    damage = Damage(at("02:50"), at("02:55"))
    before: dict[Hashable, datetime] = {
        "still there": at("02:46"),
        "at exactly the gap": at("02:45"),
        "back too late": at("02:49"),
    }
    first: dict[Hashable, datetime] = {
        "still there": at("03:15"),
        "at exactly the gap": at("03:15"),
        "new": at("03:24"),
        "back too late": at("03:25"),
    }
    assert may_start(before, first, damage, GAP) == {at("03:00"): 2}  # at exactly the gap, and new


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"1998-05-01T{text}:00+00:00")


def click(key: int, text: str) -> Click:
    return Click(key, (at(text) - hour(0)) // timedelta(minutes=1))


def hours_of(traced: Impact, number: int) -> list[str]:
    return [f"{affected_hour:%H}" for affected_hour in traced.tables[number].hours]


def test_affected_hours_are_those_of_sessions_near_the_damage_contiguous_or_not() -> None:
    long_visit = [click(1, text) for text in ("01:50", "02:15", "02:40", "03:05", "03:30", "03:55", "04:20", "04:45", "05:00")]
    gone_by_then = [click(2, "03:00"), click(2, "04:35")]
    at_exactly_the_gap = [click(3, "03:10"), click(3, "04:50")]
    back_within_the_gap = [click(4, "06:10")]
    back_too_late = [click(5, "06:20")]
    everyone = [*long_visit, *gone_by_then, *at_exactly_the_gap, *back_within_the_gap, *back_too_late]
    damage = Damage(at("05:20"), at("05:50"))
    window = Window(GAP, UntilClosed("key", GAP))
    traced = impact(everyone, window, damage)
    assert hours_of(traced, 0) == ["05"]
    assert hours_of(traced, 1) == hours_of(traced, 2) == ["01", "05", "06"]
    assert (
        traced.tables[1].why[at("01:00")] == "1 sessions begin here and reach the interval, or end less than 30 min before it"
    )
    assert "events of the interval" in traced.tables[1].why[at("05:00")]
    assert "1 sessions begin here less than 30 min after" in traced.tables[1].why[at("06:00")]
    assert traced.tables[2].why[at("01:00")] == "computed from transformed/visits of 1998-05-01T01"
    # The visit is over when its last event is exactly a gap away, and the one who comes back at exactly the gap starts anew.
    assert hours_of(impact(everyone, window, Damage(at("05:30"), at("05:40"))), 1) == ["05"]


def test_the_plans_run_range_by_range_sources_first() -> None:
    window = Window(GAP, UntilClosed("key", GAP))
    visit = [click(1, text) for text in ("03:10", "03:35", "04:00", "04:25", "04:50")]
    traced = impact(visit, window, Damage(at("05:10"), at("05:20")))
    plans = traced.plans()
    assert [(str(plan.hours), [step.verb for step in plan.steps]) for plan in plans] == [
        ("[1998-05-01T05, 1998-05-01T06)", ["land"]),
        ("[1998-05-01T03, 1998-05-01T04)", ["build", "publish", "build", "publish"]),
        ("[1998-05-01T05, 1998-05-01T06)", ["build", "publish", "build", "publish"]),
    ]
    chosen = traced.plans([("warehouse", "visits")])
    assert [[step.verb for step in plan.steps] for plan in chosen] == [["publish"], ["publish"]]
    with pytest.raises(UsageError, match="has no asset warehouse/nobody"):
        traced.plans([("warehouse", "nobody")])


def test_a_derived_table_that_looks_around_spreads_the_damage_further() -> None:
    traced = impact([], Window(lookback=HOUR), Damage(at("02:10"), at("02:20")), above=Window(lookback=HOUR, lookahead=HOUR))
    assert (hours_of(traced, 1), hours_of(traced, 2)) == (["02", "03"], ["01", "02", "03", "04"])
    assert traced.tables[2].why[at("01:00")] == "its window reaches transformed/visits of 1998-05-01T02"


def test_damage_without_an_extent_is_refused() -> None:
    with pytest.raises(UsageError, match="is empty; it is half-open"):
        Damage(at("02:10"), at("02:10"))
