"""How fast and how far apart: rate limits, and one watermark for all topics of a replay. Pure; the caller brings the clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_SHORTEST = 1e-6  # seconds: below it, a clock need not move at all


@dataclass(frozen=True)
class Limits:
    """The most messages and bytes per second, None for no limit. `paused` holds everything back."""

    messages: float | None = None
    bytes: float | None = None
    paused: bool = False


class Budget:
    """A token bucket: `rate` units per second, of which at most `burst_seconds` are saved up."""

    def __init__(self, rate: float | None, now: float, *, burst_seconds: float = 0.2) -> None:
        self.rate = rate
        self._burst_seconds = burst_seconds
        self._left, self._at = 0.0, now

    def change(self, rate: float | None, now: float) -> None:
        """Another rate from now on; nothing is saved up."""
        if rate != self.rate:
            self.rate, self._left, self._at = rate, 0.0, now

    def wait(self, now: float) -> float:
        """Seconds until something may be sent: none while the budget is not overdrawn."""
        if self.rate is None:
            return 0.0
        self._left = min(self._left + (now - self._at) * self.rate, self.rate * self._burst_seconds)
        self._at = now
        seconds = max(-self._left / self.rate, 0.0)
        return seconds if seconds > _SHORTEST else 0.0

    def spend(self, units: float) -> None:
        """What was sent. The budget may be overdrawn by one portion, which the next one waits for."""
        if self.rate is not None:
            self._left -= units


def watermark(oldest: Iterable[int | None]) -> int | None:
    """The event time that every source has reached: the smallest of the oldest messages that are not acknowledged yet.

    None for a source that is finished; None for all when all are.
    """
    return min((moment for moment in oldest if moment is not None), default=None)
