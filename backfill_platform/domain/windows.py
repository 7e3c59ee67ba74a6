"""How much event time around a range its rows need, and when enough has been read.

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

    `cap` bounds how far a session is followed beyond the end of its owning hour; what is cut there is kept and flagged.
    It is counted from the owning hour, not from the range, so that every chunking of a range gives the same rows.
    `key`, `started` and `ended` name columns: of the events, and of the rows the transform returns.
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
    """What a transform reads around the hours it builds; the default is the hours themselves."""

    lookback: timedelta = timedelta(0)
    lookahead: timedelta | UntilClosed = timedelta(0)

    def __post_init__(self) -> None:
        if self.lookback < timedelta(0):
            raise SpecError("a lookback cannot be negative")
        if isinstance(self.lookahead, timedelta) and self.lookahead < timedelta(0):
            raise SpecError("a lookahead cannot be negative")

    def read_from(self, hours: HourRange, origin: datetime) -> datetime:
        """The first moment to read, clipped at the origin: the first hour the pipeline has."""
        return max(hours.start - self.lookback, min(origin, hours.start))

    def read_ends(self, hours: HourRange, available_until: datetime) -> Iterator[datetime]:
        """The ends to read up to, one after the other, until closed: each step doubles, up to the cap or the horizon.

        `available_until` is the end of what has landed: events beyond it wait until their hour lands. A fixed lookahead gives a
        single edge.
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
        """The hours whose rows can depend on events in `[start, end)`, as far as the window alone can tell.

        Those that read the interval: `[h - lookback, h + 1 h + lookahead)` meets it. Open keys count up to their cap.
        """
        ahead = self.lookahead.cap if isinstance(self.lookahead, UntilClosed) else self.lookahead
        return HourRange(hour_of(start - ahead), hour_after(end + self.lookback))

    def around(self, hours: HourRange) -> HourRange:
        """The hours that may be read to build the given ones; open keys are followed for as long as their cap."""
        ahead = self.lookahead.cap if isinstance(self.lookahead, UntilClosed) else self.lookahead
        return HourRange(hour_of(hours.start - self.lookback), hour_after(hours.end + ahead))

    def needs(self, hour: datetime, origin: datetime) -> HourRange:
        """The hours of the source that must be there before `hour` can be built: its own and those of fixed margins.

        How far an open key is followed is not known before; a source that ends on the way leaves the session open.
        """
        ahead = self.lookahead if isinstance(self.lookahead, timedelta) else timedelta(0)
        first = hour_of(max(hour - self.lookback, min(origin, hour)))
        return HourRange(first, hour_after(hour + HOUR + ahead))


NO_MARGIN = Window()


@dataclass(frozen=True)
class ContiguousRun:
    """Hours that can be built together: their source is there without a hole up to `available_until`, and ends there."""

    hours: tuple[datetime, ...]
    available_until: datetime


def contiguous_runs(
    hours: Iterable[datetime], there: Collection[datetime], window: Window, origin: datetime, end: datetime | None
) -> tuple[list[ContiguousRun], dict[datetime, datetime]]:
    """The hours that can be built from the source hours that are `there`, and for each other one the first hour it lacks.

    `origin` and `end` bound the hours that exist at all. A hole in the source is no silence: nothing is concluded across it.
    """
    present = set(there)
    run_end = {hour: run.end for run in merge_hours(present) for hour in run}
    missing_input: dict[datetime, datetime] = {}
    together: dict[datetime, list[datetime]] = {}
    for hour in sorted(hours):
        needed = [one for one in window.needs(hour, origin) if end is None or one < end]
        missing = next((one for one in needed if one not in present), None)
        if missing is None:
            together.setdefault(run_end[hour], []).append(hour)
        else:
            missing_input[hour] = missing
    return [ContiguousRun(tuple(found), available_until) for available_until, found in together.items()], missing_input


def followed_until(started: datetime, cap: timedelta, available_until: datetime) -> datetime:
    """The moment up to which a session is known: the cap after its owning hour, or the end of what has landed."""
    return min(hour_of(started) + HOUR + cap, available_until)
