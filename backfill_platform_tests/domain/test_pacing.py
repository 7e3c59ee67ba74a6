"""Budgets keep their rate whatever the portions, and can be changed while they run."""

from hypothesis import given
from hypothesis import strategies as st

from backfill_platform.domain.pacing import Budget, watermark


@given(st.floats(1, 10_000), st.lists(st.integers(1, 500), min_size=1, max_size=50))
def test_no_more_than_the_rate_and_one_portion(rate: float, portions: list[int]) -> None:
    now, spent = 0.0, 0
    budget = Budget(rate, now)
    for portion in portions:
        wait = budget.wait(now)
        now += wait
        assert budget.wait(now) < 1e-6
        assert spent <= rate * (now + 0.2) + 1e-6
        budget.spend(portion)
        spent += portion


def test_a_rate_is_reached_and_changed() -> None:
    now, sent = 0.0, 0
    budget = Budget(100, now)
    while now < 10:
        wait = budget.wait(now)
        if wait > 0:
            now += wait
        else:
            budget.spend(10)
            sent += 10
    assert 1000 <= sent <= 1040
    budget.change(10, now)
    budget.spend(10)
    assert 0.9 <= budget.wait(now) <= 1.1
    budget.change(None, now)
    assert budget.wait(now) == 0.0


def test_the_watermark_is_that_of_the_source_that_is_most_behind() -> None:
    assert watermark([5, 3, None]) == 3
    assert watermark([None, None]) is None
