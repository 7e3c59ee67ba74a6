"""Attribution to the last touch: which impression an event belongs to, with one shuffle by key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.sessions import micros

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TOUCH = "touch"


def with_last_touch(
    events: DataFrame, *, key: Sequence[str], time: str, name: str, is_touch: Column, within: timedelta
) -> DataFrame:
    """The events with `touch`, a struct of time and name: the latest touch of their key at or before them.

    An event belongs to a touch at `t` when it lies in `[t, t + within)` and no later touch lies between; touches at the same
    instant are ordered by `name`. `touch` is NULL for an event without one, and a touch belongs to itself.

    For rows that are owned by the touch, no lookback and a lookahead of `within` are exact: both the events of a touch and the
    later touches that could take them over lie in `[t, t + within)`.
    """
    own = F.when(is_touch, F.struct(time, name))
    # The greatest so far is the latest one. The range frame takes in all rows of the instant, whichever comes first.
    in_order = Window.partitionBy(*key).orderBy(micros(F.col(time)))
    latest = F.max(own).over(in_order.rangeBetween(Window.unboundedPreceding, Window.currentRow))
    age = micros(F.col(time)) - micros(latest[time])
    in_time = F.when(age < within // timedelta(microseconds=1), latest)
    return events.withColumn(TOUCH, F.coalesce(own, in_time))
