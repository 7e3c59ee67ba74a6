"""Velocity: what a key did in the time span before each of its events, with one shuffle by key."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.sessions import micros

if TYPE_CHECKING:
    from pyspark.sql import WindowSpec


def trailing(*, key: str, time: str, span: timedelta) -> WindowSpec:
    """A window of the rows of the same key with a time in `(t - span, t]`, exact to the microsecond.

    Rows of one instant are in each other's windows, and in their own, so the result does not depend on their order. A lookback
    of `span` is exact.
    """
    # A range frame includes both its ends; times are whole microseconds, so one less leaves `t - span` out.
    reach = span // timedelta(microseconds=1) - 1
    return Window.partitionBy(key).orderBy(micros(F.col(time))).rangeBetween(-reach, Window.currentRow)
