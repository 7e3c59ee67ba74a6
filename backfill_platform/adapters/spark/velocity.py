"""Velocity: what a key did in the span of time before each of its events, as one shuffle by key."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.sessions import micros

if TYPE_CHECKING:
    from pyspark.sql import WindowSpec


def trailing(*, key: str, time: str, span: timedelta) -> WindowSpec:
    """The rows of the same key with a time in `(t - span, t]`, for aggregates `over` it; exact to the microsecond.

    Rows of one instant are in each other's window, and in their own: the result does not depend on their order. A lookback of
    `span` is exact.
    """
    # A range frame includes both its ends; times are whole microseconds, so one less leaves `t - span` out.
    reach = span // timedelta(microseconds=1) - 1
    return Window.partitionBy(key).orderBy(micros(F.col(time))).rangeBetween(-reach, Window.currentRow)
