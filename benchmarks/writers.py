"""Writing the files of hours, by rows in an hour: `python -m benchmarks.writers`.

Spark's own writer, with a folder for each hour, and the platform's take turns over the same rows; ratios are of pairs within a
turn.
"""

import logging
import platform
import shutil
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.session import session_options, use_this_interpreter
from backfill_platform.adapters.spark.writer import write_by_hour
from backfill_platform.domain.uris import local_uri

RESULTS = Path(__file__).parent / "results-writers.md"
TURNS = 3
SIZES = ((720, 100), (24, 1), (24, 20_000), (24, 100_000), (24, 400_000))


def main() -> None:
    logging.disable(logging.WARNING)
    use_this_interpreter()
    builder = SparkSession.builder
    for name, value in session_options(master="local[2]", remote=None, driver_memory="3g").items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    seconds(spark, 4, 10, ours=False)
    seconds(spark, 4, 10, ours=True)
    text = (
        "# Writing the files of hours\n\n"
        f"`python -m benchmarks.writers` on 2 cores ({platform.machine()}), PySpark {version('pyspark')}, pyarrow "
        f"{version('pyarrow')}: events of five columns, seconds with making, sorting and shuffling them, "
        f"as the median of {TURNS} turns (smallest to largest).\n\n"
        "| hours | rows in each | Spark's writer | ours, by Arrow | ratio |\n|---|---|---|---|---|\n"
    )
    for hours, rows in SIZES:
        pairs = [(seconds(spark, hours, rows, ours=False), seconds(spark, hours, rows, ours=True)) for _ in range(TURNS)]
        cells = [cell([pair[n] for pair in pairs]) for n in (0, 1)]
        ratio = statistics.median(arrow / of_spark for of_spark, arrow in pairs)
        text += f"| {hours} | {rows:,} | {cells[0]} | {cells[1]} | {ratio:.2f} |\n"
        sys.stderr.write(text.splitlines()[-1] + "\n")
    RESULTS.write_text(text)


def seconds(spark: SparkSession, hours: int, rows: int, *, ours: bool) -> float:
    """What writing takes, with making, sorting and shuffling the rows."""
    hashed, hour = F.xxhash64("id"), F.timestamp_seconds(F.lit(1_700_000_000 // 3600 * 3600) + F.col("id") % hours * 3600)
    path = F.concat(F.lit("/english/images/"), hashed % 5000)
    at = hour + F.expr("make_interval(0, 0, 0, 0, 0, 0, hash(id) % 1800 + 1800)")
    frame = spark.range(hours * rows).select(
        hour.alias("hour"), at.alias("at"), (hashed % 1000).alias("client"), path.alias("url"), hashed.alias("n")
    )
    folder = Path(tempfile.mkdtemp())
    try:
        began = time.perf_counter()
        if ours:
            found = len(write_by_hour(frame, local_uri(folder / "rows"), hour="hour", sort_by=("at",)))
        else:
            parted = frame.withColumn("_hour", F.date_format("hour", "yyyy-MM-dd-HH")).repartition("_hour")
            parted.sortWithinPartitions("_hour", "at").write.partitionBy("_hour").parquet(local_uri(folder / "rows"))
            found = len(list(folder.rglob("*.parquet")))
        taken = time.perf_counter() - began
    finally:
        shutil.rmtree(folder)
    if found != hours:
        raise SystemExit(f"{found} hours written of {hours}")
    return taken


def cell(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
