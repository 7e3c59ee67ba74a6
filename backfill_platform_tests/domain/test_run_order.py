"""Which run goes first."""

from datetime import UTC, datetime, timedelta

from backfill_platform.domain.run_order import FIRST, LAST, PRIORITIES, order_of

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def test_the_newest_hours_go_first_and_so_a_live_hour_before_a_backfill_that_reaches_up_to_it() -> None:
    live, backfill, old = NOW, NOW - timedelta(days=365), datetime(1998, 5, 1, tzinfo=UTC)
    assert order_of(0, live) > order_of(0, backfill) > order_of(0, old)


def test_priority_counts_more_than_any_hour() -> None:
    assert order_of(1, datetime(1998, 5, 1, tzinfo=UTC)) > order_of(0, NOW + timedelta(days=36_500))
    assert order_of(-1, NOW) < order_of(0, datetime(1970, 1, 1, tzinfo=UTC))


def test_what_waits_for_nobody_and_what_waits_for_all_lie_outside() -> None:
    places = [order_of(priority, moment) for priority in PRIORITIES for moment in (NOW, datetime(1970, 1, 1, tzinfo=UTC))]
    assert max(places) < FIRST
    assert min(places) > LAST
