"""Hours of offsets follow each other; what lies between two of them was landed with neither."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.offsets import Span, decode, encode, holes

H = datetime(2026, 3, 1, 10, tzinfo=UTC)


@given(st.dictionaries(st.integers(0, 50), st.tuples(st.integers(0, 10**12), st.integers(0, 1000)), max_size=5))
def test_the_text_of_the_ledger_is_read_back(ranges: dict[int, tuple[int, int]]) -> None:
    spans = tuple(Span(partition, start, start + count) for partition, (start, count) in sorted(ranges.items()))
    assert decode(encode(spans)) == spans
    assert decode("") == ()


@given(st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=1, max_size=6), st.data())
def test_a_hole_is_what_was_added_behind_an_hour(counts: list[list[int]], data: st.DataObject) -> None:
    """Hours of two partitions in a row; messages that came late push the starts of all later hours on."""
    late = data.draw(st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=len(counts), max_size=len(counts)))
    at, landed, expected = [0, 0], {}, {}
    for number, (own, added) in enumerate(zip(counts, late, strict=True)):
        hour = H + number * HOUR
        landed[hour] = tuple(Span(p, at[p], at[p] + own[p]) for p in (0, 1))
        at = [at[p] + own[p] for p in (0, 1)]
        if number + 1 < len(counts):
            lost = tuple(Span(p, at[p], at[p] + added[p]) for p in (0, 1) if added[p])
            if lost:
                expected[hour] = lost
            at = [at[p] + added[p] for p in (0, 1)]
    assert holes(landed) == expected


def test_hours_that_have_not_landed_leave_no_hole() -> None:
    assert holes({H: (Span(0, 0, 5),), H + 2 * HOUR: (Span(0, 9, 12),)}) == {}
