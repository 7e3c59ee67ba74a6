"""How much event time around a range of hours its rows need, and when enough has been read.

All ranges are half-open. A session rule with gap `g`: an event continues the session of its key when it comes less than `g`
after the key's previous event. So an event starts a session exactly when its key has no event in `(t - g, t)`, which makes
a lookback of one gap exact. Ahead there is no exact fixed margin: a key is followed until it is idle for a gap.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from backfill_platform.domain.hours import HOUR, HourRange, hour_after, hour_of, merge_hours
from backfill_platform.errors import SpecError


@dataclass(frozen=True)
class UntilClosed:
    """Read ahead, for open keys only, until every session that starts in the range is closed.

    `cap` bounds how far a session is followed beyond the end of its owning hour; a session cut there stays and is flagged
    as open. It counts from the owning hour, not from the range, so that the rows do not depend on how a range is split.
    `key` names a column of the events; `started` and `ended` name columns of the rows that the transform returns.
    Raises SpecError unless 0 < gap <= cap.
    """

    key: str
    gap: timedelta
    cap: timedelta = timedelta(days=1)
    started: str = "started_at"
    ended: str = "ended_at"

    def __post_init__(self) -> None:
        if not timedelta(0) < self.gap <= self.cap:
            raise SpecError(f"the gap must be positive and at most the cap; got gap {self.gap} and cap {self.cap}")


@dataclass(frozen=True)
class Window:
    """The event time that a transform reads around the hours it builds; by default nothing but the hours themselves.

    Raises SpecError for a negative margin.
    """

    lookback: timedelta = timedelta(0)
    lookahead: timedelta | UntilClosed = timedelta(0)

    def __post_init__(self) -> None:
        if self.lookback < timedelta(0):
            raise SpecError("a lookback cannot be negative")
        if isinstance(self.lookahead, timedelta) and self.lookahead < timedelta(0):
            raise SpecError("a lookahead cannot be negative")

    def read_from(self, hours: HourRange, origin: datetime) -> datetime:
        """The first moment to read, not before `origin`, the first hour of the pipeline."""
        return max(hours.start - self.lookback, min(origin, hours.start))

    def read_ends(self, hours: HourRange, available_until: datetime) -> Iterator[datetime]:
        """The ends to read up to, one after the other, until all sessions are closed: steps double, up to the cap.

        None lies beyond `available_until`, the end of what has landed. A fixed lookahead gives a single end.
        """
        if isinstance(self.lookahead, timedelta):
            yield min(hours.end + self.lookahead, available_until)
            return
        last = min(hours.end + self.lookahead.cap, available_until)
        step = self.lookahead.gap
        read_end = min(hours.end + step, last)
        yield read_end
        while read_end < last:
            step *= 2
            read_end = min(read_end + step, last)
            yield read_end

    def reached_by(self, start: datetime, end: datetime) -> HourRange:
        """The hours whose rows can depend on events in `[start, end)`, judged by the window alone.

        These are the hours `h` whose reading range `[h - lookback, h + 1 h + lookahead)` meets the interval; for open keys the
        lookahead is the cap.
        """
        ahead = self.lookahead.cap if isinstance(self.lookahead, UntilClosed) else self.lookahead
        return HourRange(hour_of(start - ahead), hour_after(end + self.lookback))

    def around(self, hours: HourRange) -> HourRange:
        """The hours that may be read to build the given ones; open keys are followed up to their cap."""
        ahead = self.lookahead.cap if isinstance(self.lookahead, UntilClosed) else self.lookahead
        return HourRange(hour_of(hours.start - self.lookback), hour_after(hours.end + ahead))

    def needs(self, hour: datetime, origin: datetime) -> HourRange:
        """The hours of the source that must exist before `hour` can be built: the hour itself and those of fixed margins.

        How far an open key must be followed is not known in advance; where the source ends, the session stays open.
        """
        ahead = self.lookahead if isinstance(self.lookahead, timedelta) else timedelta(0)
        first = hour_of(max(hour - self.lookback, min(origin, hour)))
        return HourRange(first, hour_after(hour + HOUR + ahead))


NO_MARGIN = Window()


@dataclass(frozen=True)
class ContiguousRun:
    """Hours that can be built together: their source has no hole up to `available_until`, where it ends."""

    hours: tuple[datetime, ...]
    available_until: datetime


def contiguous_runs(
    hours: Iterable[datetime], source_hours: Collection[datetime], window: Window, origin: datetime, end: datetime | None
) -> tuple[list[ContiguousRun], dict[datetime, datetime]]:
    """The hours that can be built from `source_hours`, and for each other hour the first hour of the source that it lacks.

    `origin` and `end` bound the hours of the pipeline. A hole in the source does not mean that nothing happened there, so no
    session is closed across it.
    """
    wanted, available = sorted(hours), set(source_hours)
    run_end = {hour: run.end for run in merge_hours(available) for hour in run}
    missing_input = first_missing(wanted, available, window, origin, end)
    hours_by_end: dict[datetime, list[datetime]] = {}
    for hour in wanted:
        if hour not in missing_input:
            hours_by_end.setdefault(run_end[hour], []).append(hour)
    return [
        ContiguousRun(tuple(together), available_until) for available_until, together in hours_by_end.items()
    ], missing_input


def first_missing(
    hours: Iterable[datetime], source_hours: Collection[datetime], window: Window, origin: datetime, end: datetime | None
) -> dict[datetime, datetime]:
    """For each of the hours whose window the source does not have as a whole: the first hour of the source that it lacks.

    `origin` and `end` bound the hours of the pipeline that fills the source.
    """
    found: dict[datetime, datetime] = {}
    for hour in hours:
        needed = (at for at in window.needs(hour, origin) if end is None or at < end)
        missing = next((at for at in needed if at not in source_hours), None)
        if missing is not None:
            found[hour] = missing
    return found


def followed_until(started: datetime, cap: timedelta, available_until: datetime) -> datetime:
    """The moment up to which a session is known: the cap after its owning hour, or the end of what has landed."""
    return min(hour_of(started) + HOUR + cap, available_until)
