"""What sources have in common that are asked for the records of an hour, such as tables and queries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.adapters.records.frames import payload
from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.offsets import Spans

if TYPE_CHECKING:
    from pyspark.sql import Column


class RecordsByHour:
    """A source whose records lie in the hour that they were asked for. `_clock` tells which hours are over."""

    missing_place = "time: not within an hour"
    undecodable = "record: cannot be decoded"

    _clock: Callable[[], datetime]

    def ingestion_hour(self, event_time: Column) -> Column:
        """The hour that the record was asked for."""
        return F.col("file_hour")

    def payload(self, given: Collection[str]) -> Column:
        """The payload of a quarantine row: its columns as JSON."""
        return payload(given)

    def spans(self, hour: datetime) -> Spans:
        """There are no offsets."""
        return ()

    def _not_over(self, hours: Iterable[datetime]) -> dict[datetime, str]:
        """The hours that are not over, with the reason why they cannot be landed."""
        now = self._clock()
        why = f"the hour is not over: it is {now:%Y-%m-%dT%H:%M} UTC"
        return {hour: why for hour in hours if hour + HOUR > now}
