"""Ways to repair a range of hours in ClickHouse from the raw files of the lake, and what none can be faster than.

All but the floor make the same rows with all ten columns, duplicates left out, sessions that start in the range, read with an
hour before it and all hours that have landed after it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.adapters.spark.hours import within
from backfill_platform.adapters.spark.reader import spark_schema
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import AssetPath
from benchmarks.contest import Ground, Took, load
from benchmarks.end_to_end import GAP, bare_job, numbered, sessions_by_sql

if TYPE_CHECKING:
    import pyarrow as pa

BARE = "bare Spark job, no-op sink"
SQL = "one SQL statement of ClickHouse, rows only counted"
OURS = "ours, one repair of the range"
SCRIPT_ALTER = "script: PySpark, `ALTER TABLE ... DELETE`, insert"
SCRIPT_LIGHT = "script: PySpark, `DELETE FROM`, insert"
BY_HOUR = "ours, hour by hour"

ALTER, LIGHT = "ALTER TABLE {} DELETE", "DELETE FROM {}"
BATCH = 500_000  # rows of an insert
_numbers = count(1)

Contender = Callable[[Ground], Iterator[Took]]


@dataclass(frozen=True)
class Entry:
    """A contender and in how many turns it takes part."""

    run: Contender
    turns: int


def bare(ground: Ground) -> Iterator[Took]:
    with ground.watched() as memory:
        seconds = bare_job(ground.spark, ground.files(1, 1), ground.pipeline)
        yield Took(BARE, seconds, memory=memory(), load=load())


def one_sql(ground: Ground) -> Iterator[Took]:
    with ground.watched() as memory:
        began = time.perf_counter()
        found, _ = sessions_by_sql(ground.warehouse, ground.files(1, len(ground.hours)), ground.span)
        seconds = time.perf_counter() - began
        if found != ground.sessions:
            raise SystemExit(
                f"SQL finds {found} sessions in the files of the range, not {ground.sessions}: nothing is reported"
            )
        yield Took(SQL, seconds, memory=memory(), load=load())


def assets(ground: Ground) -> list[AssetPath]:
    return [ground.table.path, ("warehouse", ground.table.name)]


def ours(ground: Ground) -> Iterator[Took]:
    ground.reset(ground.collapsing)
    with ground.watched() as memory:
        took = ground.engine(ground.span, assets(ground), f"bench{next(_numbers)}")
        yield replace(verified(ground, took, ground.collapsing), contender=OURS, memory=memory(), load=load())


def by_hour(ground: Ground) -> Iterator[Took]:
    """The same plan for one hour after the other, in the session that is warm; `parts` has the seconds of every hour."""
    ground.reset(ground.collapsing)
    parts: dict[str, float] = {}
    rows = 0
    with ground.watched() as memory:
        began = time.perf_counter()
        for hour in ground.span:
            took = ground.engine(HourRange.covering([hour]), assets(ground), f"bench{next(_numbers)}")
            parts[f"{hour:%dT%H}"] = took.seconds
            rows += took.rows or 0
        took = Took(BY_HOUR, time.perf_counter() - began, parts, rows)
        yield replace(verified(ground, took, ground.collapsing), memory=memory(), load=load())


def script(ground: Ground) -> Iterator[Took]:
    """The rows are computed once; then both ways to delete take their turns, each with the seconds of computing."""
    with ground.watched() as memory:
        began = time.perf_counter()
        rows = sessions_by_script(ground)
        computed = time.perf_counter() - began
        for name, statement in ((SCRIPT_ALTER, ALTER), (SCRIPT_LIGHT, LIGHT)):
            took = replace_range(ground, name, statement, rows, {"compute": computed})
            yield replace(took, memory=memory(), load=load())


def sessions_by_script(ground: Ground) -> "pa.Table":
    """What a careful person writes in an afternoon, brought to the driver."""
    raw, paths = ground.pipeline.raw, ground.files(1, len(ground.hours))
    events = ground.spark.read.schema(spark_schema(raw.table)).parquet(*paths).dropDuplicates(list(raw.same_event))
    sessions = (
        numbered(events)
        .groupBy("client_id", "session")
        .agg(
            F.min("event_time").alias("started_at"),
            F.max("event_time").alias("ended_at"),
            F.count("*").alias("requests"),
            F.count_if(F.col("status") >= 400).alias("errors"),
            F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
            F.min(F.struct("event_time", "url")).alias("entry"),
        )
        .where(within("started_at", ground.span))
    )
    began, ended = F.unix_seconds("started_at"), F.unix_seconds("ended_at")
    landed_to = int(ground.hours.end.timestamp())
    return sessions.select(
        F.date_trunc("hour", "started_at").alias("hour"),
        "client_id",
        "started_at",
        "ended_at",
        (ended - began).alias("duration_seconds"),
        "requests",
        "errors",
        "bytes",
        F.col("entry.url").alias("entry_url"),
        (ended + int(GAP.total_seconds()) > landed_to).alias("is_open"),
    ).toArrow()


def replace_range(ground: Ground, name: str, statement: str, rows: "pa.Table", before: dict[str, float]) -> Took:
    """Delete the range from the plain target and insert the rows; `before` is what computing them took."""
    ground.reset(ground.plain)
    began = time.perf_counter()
    ground.delete_by(statement.format(ground.plain))
    deleted = time.perf_counter()
    for first in range(0, rows.num_rows, BATCH):
        part = rows.slice(first, BATCH)
        ground.warehouse.insert_arrow(ground.plain, part, settings={"async_insert": 0}, doing="inserting the range")
    parts = {**before, "delete": deleted - began, "insert": time.perf_counter() - deleted}
    return verified(ground, Took(name, sum(parts.values()), parts, rows.num_rows), ground.plain)


def verified(ground: Ground, took: Took, target: str) -> Took:
    ground.verify(target, took.contender)
    return took
