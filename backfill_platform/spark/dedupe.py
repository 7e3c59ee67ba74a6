"""Events, each once however often it was delivered, and the counts of what went in and came out.

The counts are observed on the pass that reads the events anyway; they are known when an action has run over the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Observation
from pyspark.sql import functions as F

from backfill_platform.core.hours import HOUR, HourRange
from backfill_platform.spark.reader import within

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COPIES = "_copies"


@dataclass(frozen=True)
class Counts:
    """Events read and kept, by event hour, and whether all that were read are kept or copies of those kept."""

    read: Mapping[datetime, int]
    kept: Mapping[datetime, int]
    events: int
    accounted_for: int


@dataclass(frozen=True)
class Deduplicated:
    """The events, each once, and what will know their counts."""

    rows: DataFrame
    _start: datetime
    _before: Observation
    _after: Observation

    def counts(self) -> Counts | None:
        """The counts, after an action over the rows; None where Spark found that it need not read all of them."""
        before, after = _found(self._before), _found(self._after)
        if before is None or after is None:
            return None
        return Counts(_by_hour(before, self._start), _by_hour(after, self._start), before["events"] or 0, after["events"] or 0)


def without_duplicates(rows: DataFrame, same_event: tuple[str, ...], time: str, hours: Collection[datetime]) -> Deduplicated:
    """The events, each once, counted by the hours of `time` among `hours`."""
    before, after = Observation(), Observation()
    covering = HourRange.covering(hours)
    by_hour = _rows_by_hour(time, covering)
    seen = rows.observe(before, F.count("*").alias("events"), by_hour)
    others = [F.first(name).alias(name) for name in rows.columns if name not in same_event]
    once = seen.groupBy(*same_event).agg(*others, F.count("*").alias(_COPIES))
    counted = once.observe(after, F.sum(_COPIES).alias("events"), by_hour)
    return Deduplicated(counted.select(*rows.columns), covering.start, before, after)


def _rows_by_hour(time: str, hours: HourRange) -> Column:
    """Rows per hour as one aggregate, whatever the number of hours.

    The histogram is exact: with a bin to spare for the hours there are, it only ever merges bins of one hour. Their middle is
    then off by a rounding error, so the hours are told apart by whole numbers.
    """
    number = F.floor((F.unix_seconds(time) - int(hours.start.timestamp())) / 3600).cast("double")
    return F.histogram_numeric(F.when(within(time, hours), number), F.lit(len(hours) + 1)).alias("hours")


def _by_hour(found: Mapping[str, Any], start: datetime) -> dict[datetime, int]:
    rows: Counter[datetime] = Counter()
    for one in found["hours"] or ():
        rows[start + round(one["x"]) * HOUR] += int(one["y"])
    return rows


def _found(observation: Observation) -> dict[str, Any] | None:
    try:
        return observation.get or None
    except Py4JJavaError:
        # Spark left the rows out of its plan, for example because what they were joined with is empty.
        return None
