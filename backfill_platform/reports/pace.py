"""How far the step at work is: hours done, rows, and the time that the rest will take at the same pace."""

import time
from collections.abc import Callable
from datetime import timedelta

from backfill_platform.repair.outcomes import Event, StepFinished, StepStarted
from backfill_platform.reports.words import plural


class Pace:
    """Follows the steps of a run. A step over many hours is done in parts, and each part that ends tells its hours."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: StepStarted | None = None
        self._since, self._hours, self._rows = 0.0, 0, 0

    def take(self, event: Event) -> str:
        """What there is to say about the step after the event, empty where that is nothing."""
        if isinstance(event, StepStarted):
            self._started, self._since, self._hours, self._rows = event, self._clock(), 0, 0
            return self._step
        if isinstance(event, StepFinished) and self._started is not None:
            self._hours += len(event.step.hours)
            self._rows += sum(outcome.lake.rows if outcome.lake else 0 for outcome in event.outcomes)
            self._rows += sum(outcome.target.result.desired.rows if outcome.target else 0 for outcome in event.outcomes)
            return "" if self._left == 0 else f"{self._step}: {self._so_far}"
        return ""

    @property
    def _step(self) -> str:
        if self._started is None:
            return ""
        started = self._started
        return f"step {started.number} of {started.total}: {started.step.verb} {'/'.join(started.step.asset)}"

    @property
    def _left(self) -> int:
        return 0 if self._started is None else len(self._started.step.hours) - self._hours

    @property
    def _so_far(self) -> str:
        left = timedelta(seconds=round((self._clock() - self._since) * self._left / self._hours))
        return f"{self._hours:,} of {plural(self._hours + self._left, 'hour')}, {plural(self._rows, 'row')}, about {left} left"
