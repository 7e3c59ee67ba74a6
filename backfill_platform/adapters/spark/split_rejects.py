"""Marked rows, parted into good ones and rejects while they are used for the first time.

The action over the good rows counts all rows and takes the rejects along, so that nothing is computed twice or kept in memory.
Only where there are many rejects, or large ones, they are computed once more.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import Observation
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.checks import FAILED, is_good
from backfill_platform.adapters.spark.observed import observed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EPOCH, PAYLOAD = "epoch", "payload"
_REJECT, _ORDER = "_reject", "_order"
_REJECTS = f"{EPOCH} bigint, {FAILED} array<string>, {PAYLOAD} string"


class RejectSplit:
    """The good rows, for one action; after it, how many rows there were, and the rejects.

    A context manager: at its end it lets go of what had to be kept after all.
    """

    def __init__(self, marked: DataFrame, hour: str, payload: Column, *, most: int = 10_000, letters: int = 2_000) -> None:
        """`payload` is what a reject is known by.

        The action takes along at most so many rejects, none with more letters than that.
        """
        self._marked, self._hour, self._seen = marked, hour, Observation()
        self._kept: DataFrame | None = None
        self._reject = F.struct(F.unix_seconds(hour).alias(EPOCH), FAILED, payload.alias(PAYLOAD))
        watched = marked.withColumn(_REJECT, F.when(~is_good(), self._reject))
        small = F.length(F.col(_REJECT)[PAYLOAD]) <= letters
        watched = watched.withColumn(_ORDER, F.when(small, F.xxhash64(_REJECT))).observe(
            self._seen,
            F.count("*").alias("rows"),
            F.count(_REJECT).alias("rejected"),
            F.min_by(_REJECT, _ORDER, most).alias("rejects"),
        )
        self.good = watched.where(F.col(_REJECT).isNull() & F.col(hour).isNotNull()).drop(_REJECT, _ORDER)

    @cached_property
    def _found(self) -> dict[str, Any] | None:
        return observed(self._seen)

    @property
    def rows(self) -> int | None:
        """How many rows the action has seen, with and without an hour; None where Spark did not need them."""
        return None if self._found is None else self._found["rows"]

    def count_anew(self) -> tuple[Counter[datetime], int]:
        """How many rows there are of each hour, and how many without one, by a pass of its own.

        What the action saw is forgotten, with its rejects: a task that Spark has run twice was seen twice.
        """
        self._found = None
        # Collected as numbers: PySpark turns timestamps into the machine's local time.
        found = self._marked.groupBy(F.unix_seconds(self._hour).alias(EPOCH)).count().collect()
        rows = {row[EPOCH]: row["count"] for row in found}
        homeless = rows.pop(None, 0)
        return Counter({datetime.fromtimestamp(epoch, UTC): count for epoch, count in rows.items()}), homeless

    def rejects(self) -> DataFrame | None:
        """The rejects with `epoch` (seconds of their hour), `_failed` and `payload`; None where the action saw none."""
        found = self._found
        if found is not None and not found["rejected"]:
            return None
        if found is not None and len(found["rejects"]) == found["rejected"]:
            return self._marked.sparkSession.createDataFrame([tuple(one) for one in found["rejects"]], _REJECTS)
        if self._kept is None:
            self._kept = self._marked.where(~is_good()).select(self._reject.alias(_REJECT)).select(f"{_REJECT}.*").persist()
        return self._kept

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._kept is not None:
            self._kept.unpersist()
