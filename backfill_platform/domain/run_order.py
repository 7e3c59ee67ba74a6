"""Which of the runs that wait in Dagster's queue goes first: a whole number, the larger the earlier."""

from datetime import UTC, datetime

from backfill_platform.domain.hours import HOUR

PRIORITIES = range(-10, 11)  # what a pipeline may declare
_STEP = 10_000_000  # hours since 1970 stay below it for a thousand years
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# A look at gaps takes seconds, and repairs of the same tick wait for it; an undo is what somebody sits and waits for.
FIRST = _STEP * 100
# Maintenance can wait for everything else.
LAST = -_STEP * 100


def order_of(priority: int, first_hour: datetime) -> int:
    """The place of a run: by the priority of its pipeline, then the newest hours first.

    A range counts by its first hour, so a live hour goes before a backfill that reaches up to it.
    """
    return priority * _STEP + (first_hour - _EPOCH) // HOUR
