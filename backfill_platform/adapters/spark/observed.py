"""What Spark has seen while it did something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from backfill_platform.domain.hours import HOUR, HourRange

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import Column, Observation


def observed(observation: Observation) -> dict[str, Any] | None:
    """The metrics of an observation after an action over its rows; None where Spark found that it need not read them."""
    try:
        return observation.get or None
    except Py4JJavaError:
        # Spark left the rows out of its plan, for example because what they were joined with is empty.
        return None


def hour_number(time: str, hours: HourRange) -> Column:
    """How many hours after the first of `hours` a moment is, rounded down; NULL for NULL."""
    return F.floor((F.unix_seconds(time) - int(hours.start.timestamp())) / 3600)


def counted_by_hour(number: Column, hours: HourRange) -> Column:
    """An aggregate that counts rows by the number of their hour, of those within `hours`; rows with NULL are left out."""
    # The histogram is exact: with a bin to spare for the hours there are, it only ever merges bins of one hour.
    return F.histogram_numeric(number.cast("double"), F.lit(len(hours) + 1))


def by_hour(counted: Iterable[Any] | None, hours: HourRange) -> Counter[datetime]:
    """The counts that `counted_by_hour` has found."""
    counts: Counter[datetime] = Counter()
    for one in counted or ():
        # The middle of merged bins is off by a rounding error, so the hours are told apart by whole numbers.
        counts[hours.start + round(one["x"]) * HOUR] += int(one["y"])
    return counts
