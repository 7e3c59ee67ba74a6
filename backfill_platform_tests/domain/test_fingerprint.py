from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from backfill_platform.domain.fingerprint import EMPTY, Fingerprint, repair_id

prints = st.builds(Fingerprint, st.integers(-1000, 1000), st.integers(-(2**64), 2**64))


@given(prints, prints, prints)
def test_fingerprints_form_a_group_so_deltas_can_be_proven(a: Fingerprint, b: Fingerprint, c: Fingerprint) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a - a == EMPTY
    assert a + (b - a) == b


def test_hashes_wrap_at_64_bits() -> None:
    assert Fingerprint(0, 2**64 - 1) + Fingerprint(0, 2) == Fingerprint(0, 1)
    assert Fingerprint(1, -1) == Fingerprint(1, 2**64 - 1)
    assert str(Fingerprint(3, 255)) == "3:00000000000000ff"


def test_a_repair_is_named_by_its_time_and_chance() -> None:
    assert repair_id(datetime(1998, 4, 30, 22, 5, 6, tzinfo=UTC), b"\x01\x02\xff") == "r19980430t220506_0102ff"
