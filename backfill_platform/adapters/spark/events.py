"""Events as a transform gets them: each once, and for tables of sessions with the start of its session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backfill_platform.adapters.spark.dedupe import Deduplicated, without_duplicates
from backfill_platform.domain.windows import UntilClosed

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from backfill_platform.domain.windows import Window


def events_for(
    window: Window,
    rows: DataFrame,
    same_event: tuple[str, ...],
    time: str,
    hours: Collection[datetime],
    *,
    earlier: pa.Table | None = None,
) -> tuple[DataFrame, Deduplicated | None]:
    """The rows for a transform with this window, and what counts those left out (None where none can be).

    With `same_event` each event comes once. Where sessions are read until they are closed, every event has
    `session_started_at`, and those beyond the cap of their session are left out; `earlier` are the starts of sessions that
    began before the rows.
    """
    sessions = window.lookahead if isinstance(window.lookahead, UntilClosed) else None
    if not same_event and sessions is None:
        return rows, None
    starts = None if earlier is None else rows.sparkSession.createDataFrame(earlier)
    deduplicated = without_duplicates(rows, same_event, time, hours, sessions=sessions, earlier=starts)
    return deduplicated.rows, deduplicated
