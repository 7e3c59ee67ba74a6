"""Rate limits, and one watermark for all topics of a replay. Pure: the caller passes the time, in monotonic seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_SHORTEST = 1e-6  # seconds: a clock may not advance in less


@dataclass(frozen=True)
class Limits:
    """The most messages and bytes per second, None for no limit. While `paused`, nothing is sent."""

    messages: float | None = None
    bytes: float | None = None
    paused: bool = False


class Budget:
    """A token bucket: `rate` units per second, None for no limit; at most `burst_seconds` of them are saved up."""

    def __init__(self, rate: float | None, now: float, *, burst_seconds: float = 0.2) -> None:
        self.rate = rate
        self._burst_seconds = burst_seconds
        self._left, self._at = 0.0, now

    def change(self, rate: float | None, now: float) -> None:
        """Set another rate from now on, with nothing saved up."""
        if rate != self.rate:
            self.rate, self._left, self._at = rate, 0.0, now

    def wait(self, now: float) -> float:
        """Seconds until something may be sent: 0 while the budget is not overdrawn."""
        if self.rate is None:
            return 0.0
        self._left = min(self._left + (now - self._at) * self.rate, self.rate * self._burst_seconds)
        self._at = now
        seconds = max(-self._left / self.rate, 0.0)
        return seconds if seconds > _SHORTEST else 0.0

    def spend(self, units: float) -> None:
        """Count what was sent. One portion may overdraw the budget; the next one waits for that."""
        if self.rate is not None:
            self._left -= units


def watermark(oldest: Iterable[int | None]) -> int | None:
    """The event time that every source has reached: the smallest of the oldest messages that are not acknowledged yet.

    A source that is finished gives None; the result is None when all are.
    """
    return min((moment for moment in oldest if moment is not None), default=None)
