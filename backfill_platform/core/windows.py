"""How much event time around a range its rows need, and when enough has been read.

All ranges are half-open. A session rule with gap `g`: an event continues the session of its key when it comes less than `g`
after the key's previous event. So an event starts a session exactly when its key has no event in `(t - g, t)`, which makes
a lookback of one gap exact. Ahead there is no exact fixed margin: a key is followed until it is idle for a gap.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from backfill_platform.core.hours import HOUR, HourRange, hour_of
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

    def edges(self, hours: HourRange, horizon: datetime) -> Iterator[datetime]:
        """The ends to read up to, one after the other, until closed: each step doubles, up to the cap or the horizon.

        `horizon` is the end of what has landed: events beyond it wait until their hour lands. A fixed lookahead gives a
        single edge.
        """
        if isinstance(self.lookahead, timedelta):
            yield min(hours.end + self.lookahead, horizon)
            return
        last = min(hours.end + self.lookahead.cap, horizon)
        step = self.lookahead.gap
        edge = min(hours.end + step, last)
        yield edge
        while edge < last:
            step *= 2
            edge = min(edge + step, last)
            yield edge

    def touches(self, hour: datetime, damaged: datetime) -> bool:
        """Whether the rows owned by `hour` may depend on events of the hour `damaged`, as far as the spec alone can tell."""
        ahead = self.lookahead if isinstance(self.lookahead, timedelta) else self.lookahead.gap
        return hour - self.lookback < damaged + HOUR and damaged < hour + HOUR + ahead


NO_MARGIN = Window()


def followed_until(started: datetime, cap: timedelta, horizon: datetime) -> datetime:
    """The moment up to which a session is known: the cap after its owning hour, or the end of what has landed."""
    return min(hour_of(started) + HOUR + cap, horizon)
