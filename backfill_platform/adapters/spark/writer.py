"""Writing the rows of hours as Parquet, so that no file holds two hours.

Arrow writes the files, in Spark's Python workers. Spark's own writer makes a folder for each hour, and on a local disk runs a
program to set the mode of every folder and file: 20 ms for an hour however small (`benchmarks/writers.py`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.sql import functions as F

from backfill_platform.adapters.spark import hour_files
from backfill_platform.adapters.spark.hour_files import EPOCH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_by_hour(rows: DataFrame, uri: str, *, hour: str, sort_by: tuple[str, ...] = ()) -> dict[datetime, list[str]]:
    """Write the rows below `uri`, which must be new, and return the files of each hour that has rows.

    The set of files is exact: only a task that has ended well tells its files.
    """
    # Python workers elsewhere may not have this package.
    cloudpickle.register_pickle_by_value(hour_files)  # type: ignore[no-untyped-call]
    written = (
        rows.withColumn(EPOCH, F.unix_seconds(F.date_trunc("hour", hour)))
        .repartition(EPOCH)
        .sortWithinPartitions(EPOCH, *sort_by)
        .mapInArrow(partial(hour_files.write_hours, uri), f"{EPOCH} bigint, uri string")
    )
    files: dict[datetime, list[str]] = {}
    for row in written.collect():
        files.setdefault(datetime.fromtimestamp(row[EPOCH], UTC), []).append(row["uri"])
    return files
