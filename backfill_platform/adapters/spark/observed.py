"""Metrics that Spark observes while it runs another action."""

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
    """The metrics of an observation after an action over its rows; None where Spark did not need to read them."""
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
    # The histogram is exact: it has one bin more than there are hours, so it only merges bins of the same hour.
    return F.histogram_numeric(number.cast("double"), F.lit(len(hours) + 1))


def by_hour(counted: Iterable[Any] | None, hours: HourRange) -> Counter[datetime]:
    """The row counts from the result of `counted_by_hour`; None counts as no rows."""
    counts: Counter[datetime] = Counter()
    for bin_ in counted or ():
        # The centre of merged bins is off by a rounding error: round it to the whole number of the hour.
        counts[hours.start + round(bin_["x"]) * HOUR] += int(bin_["y"])
    return counts
