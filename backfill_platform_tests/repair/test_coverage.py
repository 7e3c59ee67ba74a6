"""The share of sessions that each margin would have recovered, as people see it."""

from datetime import timedelta

from backfill_platform.domain.hours import HOUR
from backfill_platform.repair.build import coverage

GAP = timedelta(minutes=30)


def test_each_margin_has_its_open_sessions_and_the_share_that_is_closed() -> None:
    curve = coverage([[(GAP, 40), (3 * GAP, 10), (7 * GAP, 0)]], 200)
    assert [row[:3] for row in curve] == [("30 min", 40, "80.00 %"), ("90 min", 10, "95.00 %"), ("210 min", 0, "100.00 %")]
    assert [row[3] for row in curve] == ["█" * 32, "█" * 38, "█" * 40]


def test_nothing_less_than_all_looks_like_all() -> None:
    ((_, _, share, bar),) = coverage([[(GAP, 1)]], 1_000_000)
    assert (share, bar) == ("99.99 %", "█" * 39 + "▉")


def test_stretches_are_added_up_and_one_that_is_closed_early_stays_closed() -> None:
    long, short, at_the_horizon = [(GAP, 4), (3 * GAP, 2), (24 * HOUR, 1)], [(GAP, 0)], [(timedelta(0), 3)]
    curve = coverage([long, short, at_the_horizon], 10)
    assert [row[:2] for row in curve] == [("0 s", 7), ("30 min", 7), ("90 min", 5), ("1 d", 4)]


def test_there_is_no_curve_without_sessions_or_margins() -> None:
    assert coverage([[(GAP, 0)]], 0) == ()
    assert coverage([()], 5) == ()
