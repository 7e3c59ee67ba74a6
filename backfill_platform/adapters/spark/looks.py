"""Looking at keys and times of events: which sessions go on across a moment, and until when.

A repair looks ahead before it reads: at two columns, of which few rows matter. Where the files hold no more than some million
events, this process reads them by Arrow (`arrow_looks`), in a fraction of the time of Spark's jobs; more are read by Spark
(`spark_looks`). Both give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

PlanFiles = Callable[[datetime, datetime], Sequence[str]]  # those that may hold events of a span of time

STARTED = "_started"
LAST = "_last"  # microseconds: as a timestamp it would come back in the machine's local time
MOST_EVENTS = 20_000_000  # that this process looks at, a few files at a time


@dataclass(frozen=True)
class Across:
    """The keys with an event in `[begin, before)` and one in `[since, end)`: their sessions may go on across these moments."""

    begin: datetime
    end: datetime
    before: datetime
    since: datetime


@dataclass(frozen=True)
class Wanted:
    """The sessions that start in `[started_from, started_before)` and whose last event comes at or after `last_from`."""

    started_from: datetime
    started_before: datetime
    last_from: datetime


class Looks(Protocol):
    """Looks at the events of some files. Keys that are NULL have no sessions."""

    def sessions(self, keys: Across | pa.Table, begin: datetime, end: datetime, wanted: Wanted) -> pa.Table:
        """The wanted ones of the sessions that the events in `[begin, end)` of these keys make.

        `keys` is a table of one column, or says what their events are. A row has the key, `STARTED` and `LAST`: the times of
        the first and the last event, in microseconds since 1970.
        """
        ...

    def go_on(self, open_sessions: pa.Table, begin: datetime, end: datetime) -> pa.Table:
        """The open sessions, key and `LAST`, as far as events in `[begin, end)` let them go on; each key has one."""
        ...


class SizedLooks:
    """Looks by `few` where the files of the events hold at most `MOST_EVENTS` rows, else by `many`.

    `rows` counts the rows of the files for events in `[begin, end)`; None where `few` cannot read them.
    """

    def __init__(self, few: Looks, many: Looks, rows: Callable[[datetime, datetime], int | None]) -> None:
        self._few, self._many, self._rows = few, many, rows

    def sessions(self, keys: Across | pa.Table, begin: datetime, end: datetime, wanted: Wanted) -> pa.Table:
        """As `Looks.sessions`."""
        first = min(begin, keys.begin) if isinstance(keys, Across) else begin
        return self._by(first, end).sessions(keys, begin, end, wanted)

    def go_on(self, open_sessions: pa.Table, begin: datetime, end: datetime) -> pa.Table:
        """As `Looks.go_on`."""
        return self._by(begin, end).go_on(open_sessions, begin, end)

    def _by(self, begin: datetime, end: datetime) -> Looks:
        rows = self._rows(begin, end)
        return self._many if rows is None or rows > MOST_EVENTS else self._few
