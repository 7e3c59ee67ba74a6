"""Hours and half-open ranges of hours, in UTC.

An hour is named by its start: an aware UTC `datetime` on the full hour. Only `parse_hour` and, for times that need not be on
the hour, `parse_moment` turn user input into one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from backfill_platform.errors import HourError

HOUR = timedelta(hours=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PARTITION_KEY_FORMAT = "%Y-%m-%d-%H:%M"


def hour_of(moment: datetime) -> datetime:
    """The hour `[h, h+1)` that holds an aware moment, named by its start in UTC. Raises HourError without a time zone."""
    if moment.tzinfo is None:
        raise HourError(f"{moment.isoformat()} has no time zone; give UTC times")
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def hour_after(moment: datetime) -> datetime:
    """An aware moment rounded up to the full hour, in UTC; the moment itself where it is on the hour."""
    return hour_of(moment - timedelta(microseconds=1)) + HOUR


def parse_moment(text: str) -> datetime:
    """A moment from ISO 8601 text or a partition key such as `1998-04-30-22:00`; no offset means UTC.

    Raises HourError when the text is not a time.
    """
    moment: datetime | None = None
    for read in (datetime.fromisoformat, lambda t: datetime.strptime(t, PARTITION_KEY_FORMAT)):  # noqa: DTZ007
        try:
            moment = read(text.strip())
            break
        except ValueError:
            continue
    if moment is None:
        raise HourError(f"'{text}' is not an hour; write it like 1998-04-30T22 (UTC)")
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def parse_hour(text: str) -> datetime:
    """An hour from text that `parse_moment` reads. Raises HourError when it is not a time on a full hour in UTC."""
    moment = parse_moment(text)
    if moment != hour_of(moment):
        raise HourError(f"'{text}' does not lie on a full hour in UTC; write it like {format_hour(hour_of(moment))}")
    return moment


def format_hour(hour: datetime) -> str:
    """`1998-04-30T22`: what `parse_hour` reads back."""
    return hour.astimezone(UTC).strftime("%Y-%m-%dT%H")


def partition_key(hour: datetime) -> str:
    """The Dagster partition key of an hour: `1998-04-30-22:00`."""
    return hour.astimezone(UTC).strftime(PARTITION_KEY_FORMAT)


@dataclass(frozen=True, order=True)
class HourRange:
    """The hours of `[start, end)`; both ends on the hour, in UTC; never empty.

    Raises HourError when an end is not an hour, or the range is empty.
    """

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        for moment in (self.start, self.end):
            if moment.tzinfo is None or (moment - _EPOCH) % HOUR:  # by arithmetic: ranges are made by the thousand
                raise HourError(f"{moment.isoformat()} is not an hour in UTC")
        if self.end <= self.start:
            raise HourError(
                f"the range from {format_hour(self.start)} to {format_hour(self.end)} is empty; ranges are half-open, "
                f"so one hour is --from {format_hour(self.start)} --to {format_hour(self.start + HOUR)}"
            )

    @classmethod
    def parse(cls, start: str, end: str) -> "HourRange":
        """The range of two texts as `parse_hour` reads them."""
        return cls(parse_hour(start), parse_hour(end))

    @classmethod
    def covering(cls, hours: Iterable[datetime]) -> "HourRange":
        """The smallest range that holds all given hours. Raises HourError when there are none."""
        ordered = sorted(hours)
        if not ordered:
            raise HourError("no hours to cover")
        return cls(ordered[0], ordered[-1] + HOUR)

    def __iter__(self) -> Iterator[datetime]:
        hour = self.start
        while hour < self.end:
            yield hour
            hour += HOUR

    def __len__(self) -> int:
        return (self.end - self.start) // HOUR

    def __contains__(self, moment: datetime) -> bool:
        return self.start <= moment < self.end

    def __str__(self) -> str:
        return f"[{format_hour(self.start)}, {format_hour(self.end)})"

    def intersect(self, other: "HourRange") -> "HourRange | None":
        """The hours both ranges hold, or None."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return HourRange(start, end) if start < end else None


def merge_hours(hours: Iterable[datetime]) -> tuple[HourRange, ...]:
    """The fewest ranges that hold exactly the given hours, in order."""
    ordered = sorted(set(hours))
    if not ordered:
        return ()
    cuts = [number for number, (hour, after) in enumerate(pairwise(ordered), 1) if after - hour != HOUR]
    return tuple(HourRange(ordered[first], ordered[end - 1] + HOUR) for first, end in pairwise([0, *cuts, len(ordered)]))
