"""Ranges of hours and moments as Spark conditions."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.domain.hours import HourRange

if TYPE_CHECKING:
    from pyspark.sql import Column


def within(column: str, hours: HourRange) -> Column:
    """Whether a timestamp column lies in the half-open range."""
    return between(column, hours.start, hours.end)


def between(column: str, start: datetime, end: datetime) -> Column:
    """Whether a timestamp column lies in `[start, end)`."""
    return (F.col(column) >= F.lit(start)) & (F.col(column) < F.lit(end))
