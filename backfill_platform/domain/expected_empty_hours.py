"""Hours in which nothing happens by right: declared by the pipeline, or learned from the same hours of other days.

An hour without events is a gap where events are to be expected, and silence where they are not.
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

    `Quiet(22, 4)` goes over midnight. Raises SpecError for what is no hour or weekday.
    """

    first: int
    end: int
    weekdays: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)

    def __post_init__(self) -> None:
        if not (0 <= self.first <= 23 and 0 <= self.end <= 24 and self.first != self.end):
            raise SpecError(f"quiet hours go from 0 to 24 and are not empty; got [{self.first}, {self.end})")
        if not self.weekdays or not set(self.weekdays) <= set(range(7)):
            raise SpecError(f"weekdays go from 0 (Monday) to 6 (Sunday); got {self.weekdays}")

    def __contains__(self, hour: datetime) -> bool:
        wraps = self.end < self.first
        inside = (hour.hour >= self.first or hour.hour < self.end) if wraps else self.first <= hour.hour < self.end
        return inside and hour.weekday() in self.weekdays


def expected_empty_hours(
    hours: HourRange, declared: Iterable[ExpectedEmptyHours], rows: Mapping[datetime, int], landed: Collection[datetime]
) -> set[datetime]:
    """The hours of the range without rows that are quiet: declared to be, or usually without many.

    Compared are the same hours of the day, up to four weeks away, by weekday if there are two such hours and by day otherwise;
    an hour is quiet where their median is below ten rows. `rows` and `landed` are of all hours around, not of the range alone.
    With fewer than two hours to compare with, nothing has been learned.
    """
    spans, known = tuple(declared), set(landed)
    found = set()
    for hour in hours:
        if hour in known and not rows.get(hour):
            learned = _usual(hour, rows, known)
            if any(hour in span for span in spans) or (learned is not None and learned < _FEW_ROWS):
                found.add(hour)
    return found


def _usual(hour: datetime, rows: Mapping[datetime, int], landed: Collection[datetime]) -> float | None:
    for step in (7, 1):
        near = (hour + timedelta(days=days) for days in range(-7 * _WEEKS, 7 * _WEEKS + 1, step) if days)
        counts = [rows.get(other, 0) for other in near if other in landed]
        if len(counts) >= 2:
            return median(counts)
    return None
