"""Entities by their newest change, with one shuffle by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def newest(changes: DataFrame, *, key: Sequence[str], modified: str, arrived: Sequence[str]) -> DataFrame:
    """One row for each entity: the change with the greatest `modified`; of several, the one that arrived last.

    `arrived` names the columns that order arrival, such as the ingestion hour and the offset in it. Rows that are equal in all
    of these are ordered by their other columns: the result never depends on the order of the rows. `modified` and `arrived`
    must not be NULL, and no column may be a map, which has no order. The columns are those given, in their order.

    A delete stays as a row; leave it out where the state is used, not before. Changes may be processed in parts:
    `newest(state.unionByName(changes), ...)` brings a state up to date, in any order and any number of times.
    """
    first = (modified, *arrived)
    others = [name for name in changes.columns if name not in (*key, *first)]
    latest = changes.groupBy(*key).agg(F.max(F.struct(*first, *others)).alias("_latest"))
    return latest.select(*(F.col(name) if name in key else F.col("_latest")[name].alias(name) for name in changes.columns))
