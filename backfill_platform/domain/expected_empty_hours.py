"""Hours that are expected to be empty: declared by the pipeline, or learned from the same hours of other days.

An hour without events is a gap only where events are expected.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from backfill_platform.domain.hours import HourRange
from backfill_platform.errors import SpecError

_WEEKS = 4
_FEW_ROWS = 10  # by chance alone, an hour that should have so many has none once in 20,000 times (Poisson)


@dataclass(frozen=True)
class ExpectedEmptyHours:
    """Hours of the day in UTC, half-open `[first, end)`, in which no events are expected; `weekdays` count from Monday as 0.

    `ExpectedEmptyHours(22, 4)` goes over midnight. Raises SpecError for a value that is not an hour or a weekday.
    """

    first: int
    end: int
    weekdays: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)

    def __post_init__(self) -> None:
        if not (0 <= self.first <= 23 and 0 <= self.end <= 24 and self.first != self.end):
            raise SpecError(
                f"expected empty hours lie within 0 to 24 and hold at least one hour; got [{self.first}, {self.end})"
            )
        if not self.weekdays or not set(self.weekdays) <= set(range(7)):
            raise SpecError(f"weekdays are numbers from 0 (Monday) to 6 (Sunday), at least one; got {self.weekdays}")

    def __contains__(self, hour: datetime) -> bool:
        wraps = self.end < self.first
        inside = (hour.hour >= self.first or hour.hour < self.end) if wraps else self.first <= hour.hour < self.end
        return inside and hour.weekday() in self.weekdays


def expected_empty_hours(
    hours: HourRange, declared: Iterable[ExpectedEmptyHours], rows: Mapping[datetime, int], landed: Collection[datetime]
) -> set[datetime]:
    """The hours of the range that landed without rows and are expected to be empty: by declaration, or by habit.

    The habit is that of the same hour of the day up to four weeks before and after: on the same weekday if at least two such
    hours have landed, else on any day. An hour is expected to be empty where their median is below ten rows; with fewer than
    two hours to compare with, nothing is learned. `rows` and `landed` cover those weeks, not the range alone.
    """
    spans, landed_hours = tuple(declared), set(landed)
    expected = set()
    for hour in hours:
        if hour in landed_hours and not rows.get(hour):
            usual = _usual_rows(hour, rows, landed_hours)
            if any(hour in span for span in spans) or (usual is not None and usual < _FEW_ROWS):
                expected.add(hour)
    return expected


def _usual_rows(hour: datetime, rows: Mapping[datetime, int], landed: Collection[datetime]) -> float | None:
    for step in (7, 1):
        near = (hour + timedelta(days=days) for days in range(-7 * _WEEKS, 7 * _WEEKS + 1, step) if days)
        counts = [rows.get(other, 0) for other in near if other in landed]
        if len(counts) >= 2:
            return median(counts)
    return None
