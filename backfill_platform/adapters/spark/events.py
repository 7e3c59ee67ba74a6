"""Events as a transform gets them: each once, and for tables of sessions with the start of its session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backfill_platform.adapters.spark.dedupe import Deduplicated, without_duplicates
from backfill_platform.adapters.spark.sessions import with_session_start, within_cap
from backfill_platform.domain.windows import UntilClosed

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from pyspark.sql import DataFrame

    from backfill_platform.domain.windows import Window


def events_for(
    window: Window, rows: DataFrame, same_event: tuple[str, ...], time: str, hours: Collection[datetime]
) -> tuple[DataFrame, Deduplicated | None]:
    """The rows for a transform with this window, and what counts the duplicates among them (None without `same_event`).

    With `same_event` each event comes once. Where sessions are read until they are closed, every event has
    `session_started_at`, and those beyond the cap of their session are left out.
    """
    sessions = window.lookahead if isinstance(window.lookahead, UntilClosed) else None
    deduplicated = None
    if same_event:
        deduplicated = without_duplicates(rows, same_event, time, hours, sessions=sessions)
        events = deduplicated.rows
    else:
        events = with_session_start(rows, sessions, time) if sessions else rows
    if sessions:
        events = events.where(within_cap(time, sessions.cap))
    return events, deduplicated
