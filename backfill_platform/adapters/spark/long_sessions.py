"""Sessions that began long before a range and go on into it: are events of the range beyond the cap of their session?

A range is read from one gap before its first hour, which tells that such an event starts no session, but not when its session
started. How far back that matters is bounded by the cap; only keys without a silence are followed, so hardly any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from backfill_platform.adapters.spark.closure import FURTHER_BACK, GAPS_BACK
from backfill_platform.adapters.spark.looks import LAST, STARTED, Across, Looks, Wanted
from backfill_platform.adapters.spark.sessions import moment_number
from backfill_platform.domain.hours import HOUR, hour_after

if TYPE_CHECKING:
    from datetime import datetime

    from backfill_platform.domain.hours import HourRange
    from backfill_platform.domain.windows import UntilClosed


def started_long_before(looks: Looks, ahead: UntilClosed, *, hours: HourRange, origin: datetime) -> pa.Table | None:
    """The sessions that go on into `hours` and may have events there that are beyond their cap; None when there are none.

    One row of key and start (`STARTED`, microseconds since 1970) for each. A start earlier than the cap and an hour before the
    range is given as some moment before that: all their events of the range are beyond the cap. `origin` is where the events
    of the pipeline begin.
    """
    latest = min(hour_after(hours.end - ahead.cap - HOUR), hours.start)
    if latest <= origin:
        return None
    earliest, end = max(origin, hours.start - ahead.cap - HOUR - ahead.gap), hours.start + ahead.gap
    keys: Across | pa.Table = Across(max(origin, hours.start - ahead.gap), end, before=hours.start, since=hours.start)
    found, back = [], GAPS_BACK
    while True:
        begin = max(earliest, hours.start - back * ahead.gap)
        # Where reading began less than a gap before a session's first event, it may have begun before.
        doubtful = begin if begin == earliest else begin + ahead.gap
        until = min(max(latest, doubtful), hours.start)
        sessions = looks.sessions(keys, begin, end, Wanted(begin, until, last_from=hours.start)).drop_columns(LAST)
        certain = pc.greater_equal(sessions[STARTED], moment_number(doubtful))
        found.append(sessions.filter(certain))
        keys = sessions.filter(pc.invert(certain)).drop_columns(STARTED)
        if not keys.num_rows:
            sessions_found = pa.concat_tables(found)
            return sessions_found if sessions_found.num_rows else None
        back *= FURTHER_BACK
