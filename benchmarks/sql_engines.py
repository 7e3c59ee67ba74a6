"""DuckDB and ClickHouse as contenders that do the same work to disk: deduplicate, sessionize, ten columns, replace the range.

DuckDB has a folder of its own in `.bench/`, from the package index, and a process for each turn: it starts in no time. It
writes Parquet, which is read and inserted as the script inserts. ClickHouse is the server of the target: it reads the raw files
and inserts what it finds with one statement, after the same `DELETE FROM`. Both have two threads.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from backfill_platform.adapters.clickhouse.sql import FILE_SETTINGS, literal
from benchmarks.contenders import LIGHT, Contender, replace_range, verified
from benchmarks.contest import Ground, Took, load
from benchmarks.end_to_end import GAP

DUCKDB = "DuckDB, two threads, `DELETE FROM`, insert"
CLICKHOUSE = "ClickHouse, two threads: `DELETE FROM`, `INSERT ... SELECT` from the files"
VERSION = "2.0.1"
ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / ".bench" / f"duckdb-{VERSION}"
THREADS = 2
MEMORY = "4GB"  # as Spark's driver has
PATIENCE = 1200  # seconds for the installation, and for one job


def install() -> None:
    """Put DuckDB into its folder where it is missing. Raises CalledProcessError."""
    if not (PACKAGES / "duckdb").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(PACKAGES), f"duckdb=={VERSION}"]
        subprocess.run(command, check=True, timeout=PATIENCE)


def duckdb_on(folder: Path) -> Contender:
    """DuckDB on a ground; the folder takes what it writes, and what it cannot keep in memory."""

    def run(ground: Ground) -> Iterator[Took]:
        folder.mkdir(parents=True, exist_ok=True)
        sink = folder / "sessions.parquet"
        order = {
            "sql": duckdb_sql(ground, sink),
            "settings": {"threads": THREADS, "memory_limit": MEMORY, "temp_directory": str(folder / "spilled")},
            "packages": str(PACKAGES),
        }
        with ground.watched() as memory:
            began = time.perf_counter()
            found = _job(order)
            computed = time.perf_counter()
            rows = pq.read_table(sink)
            parts = {"compute": computed - began, "read its rows": time.perf_counter() - computed}
            took = replace_range(ground, DUCKDB, LIGHT, rows, parts)
            yield replace(took, memory={**memory(), "DuckDB": found["gigabytes"]}, load=load())

    return run


def clickhouse(ground: Ground) -> Iterator[Took]:
    """The server deletes the range and inserts what its own statement finds in the raw files."""
    ground.reset(ground.plain)
    with ground.watched() as memory:
        began = time.perf_counter()
        ground.delete_by(LIGHT.format(ground.plain))
        deleted = time.perf_counter()
        ground.warehouse.command(
            clickhouse_sql(ground),
            settings={**FILE_SETTINGS, "max_threads": THREADS, "max_insert_threads": 1, "async_insert": 0},
            doing="repairing by one statement",
        )
        parts = {"delete": deleted - began, "compute and insert": time.perf_counter() - deleted}
        took = verified(ground, Took(CLICKHOUSE, sum(parts.values()), parts, ground.sessions), ground.plain)
        yield replace(took, memory=memory(), load=load())


def duckdb_sql(ground: Ground, sink: Path) -> str:
    """One statement: events each once, numbered by session, summed up, written as Parquet."""
    start, end, landed_to = _seconds(ground)
    files = ", ".join(f"'{path}'" for path in _paths(ground))
    return f"""
        COPY (
            SELECT date_trunc('hour', min(event_time)) AS hour, client_id, min(event_time) AS started_at,
                max(event_time) AS ended_at, (epoch_us(max(event_time)) - epoch_us(min(event_time))) // 1000000
                AS duration_seconds, count(*) AS requests, count(*) FILTER (status >= 400) AS errors,
                coalesce(sum(bytes), 0)::BIGINT AS bytes, arg_min(url, (event_time, url)) AS entry_url,
                epoch_us(max(event_time)) + {_micros(GAP.total_seconds())} > {_micros(landed_to)} AS is_open
            FROM (
                SELECT *, count(*) FILTER (starts) OVER (PARTITION BY client_id ORDER BY event_time) AS session FROM (
                    SELECT *, coalesce(epoch_us(event_time) - epoch_us(lag(event_time) OVER
                        (PARTITION BY client_id ORDER BY event_time)) >= {_micros(GAP.total_seconds())}, true) AS starts
                    FROM (SELECT DISTINCT client_id, event_time, url, status, bytes FROM read_parquet([{files}]))))
            GROUP BY client_id, session
            HAVING epoch_us(min(event_time)) >= {_micros(start)} AND epoch_us(min(event_time)) < {_micros(end)}
        ) TO '{sink}' (FORMAT parquet, COMPRESSION zstd)"""


def clickhouse_sql(ground: Ground) -> str:
    """The same for ClickHouse, into the target."""
    start, end, landed_to = _seconds(ground)
    files = ", ".join(literal(path) for path in _paths(ground))
    gap = int(GAP.total_seconds())
    names = (*ground.table.column_names,)
    return f"""
        INSERT INTO {ground.plain} ({", ".join(names)})
        SELECT toStartOfHour(toDateTime(began, 'UTC')), client_id, toDateTime64(began, 6, 'UTC'), toDateTime64(ended, 6, 'UTC'),
            ended - began, requests, errors, sent, entry, ended + {gap} > {landed_to}
        FROM (
            SELECT client_id, session, min(second) AS began, max(second) AS ended, count() AS requests,
                countIf(status >= 400) AS errors, ifNull(sum(bytes), 0) AS sent, argMin(url, (second, url)) AS entry
            FROM (
                SELECT *, sum(starts) OVER (PARTITION BY client_id ORDER BY second) AS session FROM (
                    SELECT *, second - lagInFrame(second, 1, toInt64(-1000000)) OVER (PARTITION BY client_id ORDER BY second
                        ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) >= {gap} AS starts
                    FROM (SELECT DISTINCT assumeNotNull(client_id) AS client_id, assumeNotNull(url) AS url, status, bytes,
                              toInt64(toUnixTimestamp(assumeNotNull(event_time))) AS second
                          FROM file([{files}], Parquet))))
            GROUP BY client_id, session)
        WHERE began >= {start} AND began < {end}"""


def _job(order: dict[str, object]) -> dict[str, float]:
    command = [sys.executable, str(ROOT / "benchmarks" / "duckdb_job.py")]
    done = subprocess.run(command, input=json.dumps(order), stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _paths(ground: Ground) -> list[str]:
    return [uri.removeprefix("file://") for uri in ground.files(1, len(ground.hours))]


def _seconds(ground: Ground) -> tuple[int, int, int]:
    return tuple(int(moment.timestamp()) for moment in (ground.span.start, ground.span.end, ground.hours.end))  # type: ignore[return-value]


def _micros(seconds: float) -> int:
    return int(seconds) * 1_000_000
