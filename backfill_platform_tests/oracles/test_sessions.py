from datetime import UTC, datetime, timedelta

from backfill_platform.examples.session_rule import sessionize

T0 = datetime(1998, 4, 30, 22, tzinfo=UTC)
GAP = timedelta(minutes=30)
CAP = timedelta(hours=2)
HORIZON = T0 + timedelta(hours=12)


def spans(minutes: dict[str, list[float]], available_until: datetime = HORIZON) -> list[tuple[object, float, float, int, bool]]:
    events = [(key, T0 + timedelta(minutes=m)) for key, times in minutes.items() for m in times]
    sessionized = sessionize(events, key=lambda e: e[0], time=lambda e: e[1], gap=GAP, cap=CAP, available_until=available_until)
    return [
        (
            s.key,
            (s.started_at - T0).total_seconds() / 60,
            (s.ended_at - T0).total_seconds() / 60,
            len(s.events),
            s.is_open,
        )
        for s in sessionized
    ]


def test_a_gap_of_silence_starts_a_new_session() -> None:
    assert spans({"a": [0, 29.5, 59.5]}) == [("a", 0, 29.5, 2, False), ("a", 59.5, 59.5, 1, False)]


def test_keys_do_not_disturb_each_other() -> None:
    assert spans({"a": [0, 40], "b": [20]}) == [("a", 0, 0, 1, False), ("a", 40, 40, 1, False), ("b", 20, 20, 1, False)]


def test_order_of_arrival_does_not_matter() -> None:
    assert spans({"a": [50, 0, 25]}) == [("a", 0, 50, 3, False)]


def test_a_session_near_the_end_of_what_has_landed_may_go_on() -> None:
    near = T0 + timedelta(minutes=60)
    assert spans({"a": [0, 20, 30]}, near) == [("a", 0, 30, 3, False)]
    assert spans({"a": [0, 20, 30.5]}, near) == [("a", 0, 30.5, 3, True)]


def test_a_proxy_that_never_idles_is_cut_at_the_cap_and_flagged() -> None:
    session, *rest = spans({"proxy": [float(m) for m in range(0, 700, 10)]})
    assert rest == []
    assert session == ("proxy", 0, 170, 18, True)


def test_what_has_not_landed_is_not_seen() -> None:
    assert spans({"a": [0, 719, 721]})[-1] == ("a", 719, 719, 1, True)
