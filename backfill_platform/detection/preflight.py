"""What an installation needs before anything runs: routes, rights, versions, clocks, and that all see the same files.

Every check is tried with the real thing, and leaves nothing behind.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow.fs
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.preconditions import check_target, target_exists
from backfill_platform.adapters.clickhouse.publishing.staging import Loading
from backfill_platform.adapters.clickhouse.schema import PATCHES_DATABASE, STAGING_DATABASE
from backfill_platform.adapters.clickhouse.sql import identifier, literal
from backfill_platform.adapters.clickhouse.state.ledger import BOOKKEEPING_DATABASE
from backfill_platform.adapters.connections import Connections
from backfill_platform.adapters.kafka.topic import KafkaTopic
from backfill_platform.adapters.records.storage import located
from backfill_platform.adapters.spark.writer import write_by_hour
from backfill_platform.domain.notification import redact
from backfill_platform.domain.tables import Table
from backfill_platform.pipelines.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_SKEW = timedelta(seconds=30)
_OWN = ("CREATE DATABASE", "CREATE TABLE", "DROP TABLE", "SELECT", "INSERT", "ALTER TABLE", "OPTIMIZE", "TRUNCATE")
_PUBLISHED = ("SELECT", "INSERT", "ALTER DELETE", "CREATE DATABASE", "CREATE TABLE")


@dataclass(frozen=True)
class Finding:
    """What was found of one need; `text` says what is there, or what is missing and what to do."""

    part: str
    need: str
    good: bool
    text: str


def examine(pipelines: Collection[Pipeline], connections: Connections, spark: Callable[[], SparkSession]) -> Iterator[Finding]:
    """Try everything that repairs of the pipelines need; a need that fails does not end the others."""
    yield from _warehouse(pipelines, connections)
    lake = _tried("lake", "catalog", lambda: f"opened; tables are below {connections.lake().root_uri}")
    yield lake
    if lake.good:
        yield from _files(connections, spark)
    topics = sorted({pipeline.source.topic for pipeline in pipelines if isinstance(pipeline.source, KafkaTopic)})
    if topics:
        yield _tried("Kafka", "topics", _topics, topics, connections)


def _tried(part: str, need: str, check: Callable[..., str], *arguments: object) -> Finding:
    try:
        return Finding(part, need, True, check(*arguments))
    except Exception as error:  # noqa: BLE001 - whatever a client raises is what has to be told
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Finding(part, need, False, redact(lines[0]))


def _warehouse(pipelines: Collection[Pipeline], connections: Connections) -> Iterator[Finding]:
    opened: list[Warehouse] = []

    def reach() -> str:
        opened.append(connections.warehouse())
        return f"{opened[0].shown_url} answers, version {opened[0].server_version}"

    yield _tried("ClickHouse", "route", reach)
    for warehouse in opened:
        with closing(warehouse):
            yield _tried("ClickHouse", "clock", _clock, warehouse)
            tables = [table for pipeline in pipelines for table in pipeline.published]
            yield from _rights(warehouse, tables)
            for table in tables:
                yield _tried("ClickHouse", f"target {table}", _target, warehouse, table)


def _clock(warehouse: Warehouse) -> str:
    ((there,),) = warehouse.rows("SELECT now64(6, 'UTC')", doing="asking for the time")
    skew = abs(there - datetime.now(UTC))
    if skew > MOST_SKEW:
        raise ValueError(
            f"{skew.total_seconds():,.0f} s from this machine's; leases and hours that are due go by both: set both by NTP"
        )
    return f"within {MOST_SKEW.total_seconds():.0f} s of this machine's"


def _rights(warehouse: Warehouse, tables: Iterable[Table]) -> Iterator[Finding]:
    for database in (BOOKKEEPING_DATABASE, STAGING_DATABASE, PATCHES_DATABASE):
        yield _tried("ClickHouse", f"rights on {database}", _granted, warehouse, _OWN, database)
    for database in sorted({table.stored_in[0] for table in tables}):
        yield _tried("ClickHouse", f"rights on {database}", _granted, warehouse, _PUBLISHED, database)


def _granted(warehouse: Warehouse, privileges: Iterable[str], database: str) -> str:
    on = f"{identifier(database)}.*"
    missing = [
        privilege
        for privilege in privileges
        if warehouse.rows(f"CHECK GRANT {privilege} ON {on}", doing=f"asking for rights on {database}") != [(1,)]
    ]
    if missing:
        raise PermissionError(f"missing; GRANT {', '.join(missing)} ON {on} TO the user of BACKFILL_CLICKHOUSE_URL")
    return "all there"


def _target(warehouse: Warehouse, table: Table) -> str:
    if not target_exists(warehouse, table):
        return "the first repair makes it"
    target = check_target(warehouse, table)
    return f"can be repaired: {target.engine}"


def _files(connections: Connections, spark: Callable[[], SparkSession]) -> Iterator[Finding]:
    """Spark writes a file as repairs do, this process reads it, and so does the warehouse where it shall."""
    folder = f"{connections.lake().root_uri}/doctor-{uuid.uuid4().hex}"
    written: list[str] = []

    def write() -> str:
        rows = spark().range(1).select(F.timestamp_seconds(F.col("id")).alias("hour"))
        for files in write_by_hour(rows, folder, hour="hour").values():
            written.extend(files)
        return f"it writes below {folder.rpartition('/')[0]}"

    def read() -> str:
        filesystem, path = located(written[0])
        with filesystem.open_input_file(path) as file:
            if pq.read_table(file).num_rows != 1:
                raise ValueError("the file that Spark wrote has other rows here")
        return "what Spark writes is seen by this process"

    def pull() -> str:
        with closing(connections.warehouse()) as warehouse:
            path = literal(written[0].removeprefix("file://"))
            warehouse.rows(f"SELECT count() FROM file({path}, Parquet)", doing="reading a file of the lake")
        return "it reads the lake's files by their paths"

    try:
        yield _tried("Spark", "write", write)
        if written:
            yield _tried("lake", "files", read)
        if written and connections.loading is Loading.PULL:
            yield _tried("ClickHouse", "pull", pull)
    finally:
        deleted = _tried("lake", "delete", _delete, folder)
    yield deleted


def _delete(folder: str) -> str:
    filesystem, path = located(folder)
    if filesystem.get_file_info(path).type is not pyarrow.fs.FileType.NotFound:
        filesystem.delete_dir(path)
    return "what was written is deleted"


def _topics(wanted: Collection[str], connections: Connections) -> str:
    with closing(connections.cluster()) as cluster:
        there = cluster.topics()
    if missing := [topic for topic in wanted if topic not in there]:
        raise LookupError(f"the cluster has no {', '.join(missing)}; create them, or correct the pipelines")
    return f"{', '.join(wanted)}: there"
