"""Marked rows, split into good rows and rejects by the first action that uses them.

The action over the good rows also counts all rows and returns the rejects, so that nothing is computed twice or cached. Only
where rejects are many or large, they are computed once more.
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
    """The good rows, for one action; after it, the number of rows and the rejects.

    A context manager: at its end it frees the rejects that had to be cached.
    """

    def __init__(self, marked: DataFrame, hour: str, payload: Column, *, most: int = 10_000, letters: int = 2_000) -> None:
        """`payload` is the text of a reject. The action returns at most `most` rejects, of up to `letters` characters each."""
        self._marked, self._hour, self._seen = marked, hour, Observation()
        self._cached_rejects: DataFrame | None = None
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
    def _metrics(self) -> dict[str, Any] | None:
        return observed(self._seen)

    @property
    def rows(self) -> int | None:
        """How many rows the action has seen, with and without an hour; None where Spark did not need them."""
        return None if self._metrics is None else self._metrics["rows"]

    def count_anew(self) -> tuple[Counter[datetime], int]:
        """How many rows each hour has, and how many rows have no hour, by an extra pass.

        Discards what the action observed, with its rejects: a task that Spark ran twice was observed twice.
        """
        self._metrics = None
        # Collected as numbers: PySpark turns timestamps into the machine's local time.
        counts = self._marked.groupBy(F.unix_seconds(self._hour).alias(EPOCH)).count().collect()
        rows = {row[EPOCH]: row["count"] for row in counts}
        without_hour = rows.pop(None, 0)
        return Counter({datetime.fromtimestamp(epoch, UTC): count for epoch, count in rows.items()}), without_hour

    def rejects(self) -> DataFrame | None:
        """The rejects with `epoch` (seconds of their hour), `_failed` and `payload`; None where the action saw none."""
        metrics = self._metrics
        if metrics is not None and not metrics["rejected"]:
            return None
        if metrics is not None and len(metrics["rejects"] or ()) == metrics["rejected"]:
            return self._marked.sparkSession.createDataFrame([tuple(reject) for reject in metrics["rejects"]], _REJECTS)
        if self._cached_rejects is None:
            rejects = self._marked.where(~is_good()).select(self._reject.alias(_REJECT)).select(f"{_REJECT}.*")
            self._cached_rejects = rejects.persist()
        return self._cached_rejects

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._cached_rejects is not None:
            self._cached_rejects.unpersist()
