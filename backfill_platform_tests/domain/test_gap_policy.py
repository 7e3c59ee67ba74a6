"""Which repairs are asked for: every gap once for its evidence, newest first, within limits, never in busy hours."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_platform.domain.gap_policy import (
    Asked,
    Decision,
    GapPolicy,
    OnGap,
    Seen,
    assets_for,
    decide,
    gap_of,
    name_of,
    unseen,
)
from backfill_platform.domain.gaps import Gap, GapKind, Place
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import AssetPath
from backfill_platform.errors import SpecError, UsageError

T0 = datetime(2026, 3, 2, tzinfo=UTC)
PUBLISH = GapPolicy(OnGap.PUBLISH)
SESSIONS: AssetPath = ("warehouse", "sessions")


def gap(number: int, evidence: str = "lost") -> Gap:
    return Gap("warehouse/sessions", T0 + number * HOUR, Place.WAREHOUSE, GapKind.MISSING, evidence)


def tick(gaps: list[Gap], seen: Seen | None = None, policy: GapPolicy = PUBLISH, busy: set[datetime] | None = None) -> Decision:
    seen, busy = seen or Seen(), busy or set()
    wanted = {SESSIONS: {one.hour for one in unseen(gaps, seen, busy, policy.action)}}
    return decide(gaps, assets_for(policy, wanted), seen, busy, policy)


def span(first: int, end: int) -> HourRange:
    return HourRange(T0 + first * HOUR, T0 + end * HOUR)


def test_neighbouring_gaps_are_one_request_and_the_newest_is_first() -> None:
    policy = replace(PUBLISH, runs_per_tick=5)
    found = tick([gap(1), gap(2), gap(3), gap(9)], policy=policy)
    assert [one.hours for one in found.requests] == [span(9, 10), span(1, 4)]
    assert all(one.assets == (SESSIONS,) for one in found.requests)


def test_the_same_evidence_is_asked_for_once_and_other_evidence_again() -> None:
    first = tick([gap(1)])
    assert len(first.requests) == 1
    again = tick([gap(1)], first.seen)
    assert (again.requests, again.new) == ((), ())
    changed = tick([gap(1, "lost more")], again.seen)
    assert len(changed.requests) == 1
    assert changed.requests[0].key(changed.seen.asked) != first.requests[0].key(first.seen.asked)


def test_damage_that_comes_back_after_its_repair_is_asked_for_again_under_another_key() -> None:
    first = tick([gap(1)])
    after_repair = tick([], first.seen)
    assert after_repair.gone == (name_of(gap(1)),)
    again = tick([gap(1)], after_repair.seen)
    assert len(again.requests) == 1
    assert (first.seen.number, after_repair.seen.number) == (1, 1)


def test_a_gap_that_is_gone_in_a_busy_hour_is_gone_when_the_work_is_over() -> None:
    first = tick([gap(1)])
    working = tick([], first.seen, busy={gap(1).hour})
    assert (working.gone, working.requests) == ((), ())
    assert tick([], working.seen).gone == (name_of(gap(1)),)


def test_requests_over_the_limit_wait_for_the_next_ticks() -> None:
    gaps = [gap(1), gap(5), gap(9)]
    first = tick(gaps)
    second = tick(gaps, first.seen)
    third = tick(gaps, second.seen)
    assert [one.hours for found in (first, second, third) for one in found.requests] == [span(9, 10), span(5, 6), span(1, 2)]
    assert tick(gaps, third.seen).requests == ()


def test_a_request_that_waits_is_forgotten_when_its_gap_is_gone() -> None:
    first = tick([gap(1), gap(9)])
    assert tick([gap(9)], first.seen).requests == ()


def test_long_ranges_are_cut() -> None:
    policy = replace(PUBLISH, hours_per_run=2, runs_per_tick=9)
    found = tick([gap(n) for n in range(5)], policy=policy)
    assert [one.hours for one in found.requests] == [span(4, 5), span(2, 4), span(0, 2)]


def test_busy_hours_are_left_alone_until_they_are_not() -> None:
    policy = replace(PUBLISH, runs_per_tick=9)
    busy = {gap(1).hour}
    first = tick([gap(1), gap(5)], policy=policy, busy=busy)
    assert [one.hours for one in first.requests] == [span(5, 6)]
    second = tick([gap(1), gap(5)], first.seen, policy)
    assert [one.hours for one in second.requests] == [span(1, 2)]


def test_a_waiting_request_does_not_start_in_hours_that_became_busy() -> None:
    first = tick([gap(1), gap(9)])
    second = tick([gap(1), gap(9)], first.seen, busy={gap(1).hour})
    assert second.requests == ()
    assert [one.hours for one in tick([gap(1), gap(9)], second.seen).requests] == [span(1, 2)]


def test_a_policy_may_only_report_or_only_rehearse() -> None:
    reported = tick([gap(1)], policy=GapPolicy(OnGap.REPORT))
    assert (reported.requests, reported.new) == ((), (gap(1),))
    rehearsed = tick([gap(1)], policy=GapPolicy(OnGap.DRY_RUN))
    assert rehearsed.requests[0].assets == (("dry_run", "sessions"),)


@pytest.mark.parametrize(
    ("before", "after", "asks_for"),
    [
        (OnGap.REPORT, OnGap.REPORT, None),
        (OnGap.REPORT, OnGap.DRY_RUN, ("dry_run", "sessions")),
        (OnGap.REPORT, OnGap.PUBLISH, SESSIONS),
        (OnGap.DRY_RUN, OnGap.REPORT, None),
        (OnGap.DRY_RUN, OnGap.DRY_RUN, None),
        (OnGap.DRY_RUN, OnGap.PUBLISH, SESSIONS),
        (OnGap.PUBLISH, OnGap.REPORT, None),
        (OnGap.PUBLISH, OnGap.DRY_RUN, None),
        (OnGap.PUBLISH, OnGap.PUBLISH, None),
    ],
)
def test_a_policy_that_allows_more_asks_for_what_was_done_less_about(
    before: OnGap, after: OnGap, asks_for: AssetPath | None
) -> None:
    first = tick([gap(1)], policy=GapPolicy(before))
    kept = Seen.from_json(first.seen.to_json())
    second = tick([gap(1)], kept, GapPolicy(after))
    assert [one.assets for one in second.requests] == ([] if asks_for is None else [(asks_for,)])
    assert tick([gap(1)], second.seen, GapPolicy(after)).requests == ()
    keys = [one.key(found.seen.asked) for found in (first, second) for one in found.requests]
    assert len(set(keys)) == len(keys)


def test_a_cursor_of_before_the_action_was_kept_counts_its_gaps_as_reported() -> None:
    evidence = tick([gap(1)]).seen.asked[name_of(gap(1))].evidence
    old = Seen.from_json(json.dumps({"asked": {name_of(gap(1)): evidence}, "waiting": [], "number": 7}))
    assert (old.asked, old.number) == ({name_of(gap(1)): Asked(evidence, OnGap.REPORT)}, 7)
    assert tick([gap(1)], old, GapPolicy(OnGap.REPORT)).new == ()
    assert [one.hours for one in tick([gap(1)], old).requests] == [span(1, 2)]


def test_a_request_that_waits_is_withdrawn_when_the_policy_no_longer_allows_it() -> None:
    report = GapPolicy(OnGap.REPORT)
    gaps = [gap(1), gap(9)]
    first = tick(gaps)
    stopped = tick(gaps, first.seen, report)
    assert (stopped.requests, stopped.seen.waiting) == ((), ())
    told = tick(gaps, stopped.seen, report)
    assert told.new == (gap(1),), "nothing repairs it any more, so somebody has to hear of it"
    assert [one.hours for one in tick(gaps, told.seen).requests] == [span(1, 2)]


def test_a_impact_beyond_the_gap_is_part_of_its_repair() -> None:
    wanted: dict[AssetPath, set[datetime]] = {
        ("raw", "clicks"): {gap(5).hour},
        ("transformed", "sessions"): {gap(1).hour, gap(5).hour},
        SESSIONS: {gap(1).hour, gap(5).hour},
    }
    found = decide([gap(5)], wanted, Seen(), set(), replace(PUBLISH, runs_per_tick=2)).requests
    assert [(one.hours, one.assets[0]) for one in found] == [
        (span(5, 6), ("raw", "clicks")),
        (span(1, 2), ("transformed", "sessions")),
    ]


def test_what_is_remembered_survives_the_cursor_and_a_broken_one_is_a_new_start() -> None:
    seen = tick([gap(1), gap(9)]).seen
    assert Seen.from_json(seen.to_json()) == seen
    assert Seen.from_json(None) == Seen.from_json("{") == Seen.from_json("[]") == Seen()
    assert gap_of(name_of(gap(3))) == ("warehouse/sessions", gap(3).hour)


def test_hours_are_looked_at_when_they_have_settled() -> None:
    policy = GapPolicy(look_back=timedelta(hours=5), settle=timedelta(hours=2))
    live = span(0, 100)
    assert policy.hours(live, T0 + 10 * HOUR + timedelta(minutes=30)) == span(3, 8)
    assert policy.hours(live, T0 + 2 * HOUR) is None
    assert policy.hours(span(0, 4), T0 + 1000 * HOUR) == span(0, 4)


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    for wrong in ({"hours_per_run": 0}, {"runs_per_tick": 0}, {"look_back": timedelta(0)}):
        with pytest.raises(SpecError):
            GapPolicy(**wrong)
    with pytest.raises(UsageError, match="change limits: hour: extra inputs"):
        GapPolicy(change_limits={"hour": 1})


@given(
    st.lists(st.dictionaries(st.integers(0, 30), st.sampled_from("ab")), min_size=1, max_size=8),
    st.lists(st.sets(st.integers(0, 30)), min_size=8, max_size=8),
    st.integers(1, 5),
    st.integers(1, 3),
)
def test_whatever_comes_every_gap_is_asked_for_once_and_never_beside_other_work(
    looks: list[dict[int, str]], busy: list[set[int]], hours_per_run: int, runs_per_tick: int
) -> None:
    policy = GapPolicy(OnGap.PUBLISH, hours_per_run=hours_per_run, runs_per_tick=runs_per_tick)
    keys: set[str] = set()
    done: set[datetime] = set()
    seen = Seen()
    for number, gaps in enumerate(looks):
        blocked = {T0 + one * HOUR for one in busy[number]}
        found = tick([gap(n, text) for n, text in gaps.items()], seen, policy, blocked)
        assert len(found.requests) <= runs_per_tick
        hours = [hour for one in found.requests for hour in one.hours]
        assert len(hours) == len(set(hours))
        assert blocked.isdisjoint(hours)
        assert all(len(one.hours) <= hours_per_run for one in found.requests)
        new = {f"{one.key(found.seen.asked)}#{seen.number}" for one in found.requests}
        assert keys.isdisjoint(new)
        keys |= new
        seen = found.seen
    last = [gap(n, text) for n, text in looks[-1].items()]
    seen = Seen()
    while (found := tick(last, seen, policy)).requests:
        done |= {hour for one in found.requests for hour in one.hours}
        seen = found.seen
    assert done == {one.hour for one in last}
