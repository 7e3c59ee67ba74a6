"""Marked rows, parted into good ones and rejects while they are used for the first time.

The action over the good rows counts all rows by hour and takes the rejects along, so that nothing is computed twice or kept in
memory. Only where there are many rejects, or large ones, they are computed once more.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import Observation
from pyspark.sql import functions as F

from backfill_platform.core.hours import HourRange
from backfill_platform.spark.checks import FAILED, is_good
from backfill_platform.spark.observed import by_hour, counted_by_hour, hour_number, observed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EPOCH, PAYLOAD = "epoch", "payload"
_NUMBER, _REJECT, _ORDER = "_number", "_reject", "_order"
_REJECTS = f"{EPOCH} bigint, {FAILED} array<string>, {PAYLOAD} string"


class Sifted:
    """The good rows, for one action; after it, the counts of all rows, and the rejects.

    A context manager: at its end it lets go of what had to be kept after all.
    """

    def __init__(
        self,
        marked: DataFrame,
        hour: str,
        hours: Collection[datetime],
        payload: Column,
        *,
        most: int = 10_000,
        letters: int = 2_000,
    ) -> None:
        """`payload` is what a reject is known by. Rows have an hour among `hours`, or none.

        Each task takes along at most so many rejects, none with more letters than that.
        """
        self._marked, self._hour, self._hours, self._seen = marked, hour, HourRange.covering(hours), Observation()
        self._kept: DataFrame | None = None
        payload = payload.alias(PAYLOAD)
        self._reject = F.struct(F.unix_seconds(hour).alias(EPOCH), FAILED, payload)
        watched = marked.withColumn(_NUMBER, hour_number(hour, self._hours)).withColumn(
            _REJECT, F.when(~is_good(), self._reject)
        )
        small = F.length(F.col(_REJECT)[PAYLOAD]) <= letters
        watched = watched.withColumn(_ORDER, F.when(small, F.xxhash64(_REJECT))).observe(
            self._seen,
            F.count("*").alias("rows"),
            F.count(_REJECT).alias("rejected"),
            counted_by_hour(F.col(_NUMBER), self._hours).alias("by_hour"),
            F.min_by(_REJECT, _ORDER, most).alias("rejects"),
        )
        self.good = watched.where(F.col(_REJECT).isNull() & F.col(_NUMBER).isNotNull()).drop(_NUMBER, _REJECT, _ORDER)

    @cached_property
    def _found(self) -> dict[str, Any] | None:
        return observed(self._seen)

    def counts(self) -> dict[datetime | None, int]:
        """How many rows the action has seen of each hour, and with None those without one.

        They are counted anew where Spark did not need the rows.
        """
        if self._found is None:
            return self.counted_anew()
        known = by_hour(self._found["by_hour"], self._hours)
        homeless = self._found["rows"] - known.total()
        return {hour: rows for hour, rows in (*known.items(), (None, homeless)) if rows}

    def counted_anew(self) -> dict[datetime | None, int]:
        """The same by a pass of its own: a task that Spark has run twice was seen twice."""
        # Collected as numbers: PySpark turns timestamps into the machine's local time.
        found = self._marked.groupBy(F.unix_seconds(self._hour).alias(EPOCH)).count().collect()
        return {None if row[EPOCH] is None else datetime.fromtimestamp(row[EPOCH], UTC): row["count"] for row in found}

    @cached_property
    def rejects(self) -> DataFrame | None:
        """The rejects with `epoch` (seconds of their hour), `_failed` and `payload`; None where there are none."""
        found = self._found
        if found is not None and not found["rejected"]:
            return None
        if found is not None and len(found["rejects"]) == found["rejected"]:
            return self._marked.sparkSession.createDataFrame([tuple(one) for one in found["rejects"]], _REJECTS)
        self._kept = self._marked.where(~is_good()).select(self._reject.alias(_REJECT)).select(f"{_REJECT}.*").persist()
        return self._kept

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._kept is not None:
            self._kept.unpersist()
