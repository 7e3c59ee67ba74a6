"""Hourly files of each format, landed, beside a bare Spark job: `python -m benchmarks.formats [--files 720 --records 100]`.

The bare job reads the same files with Spark's own reader, takes the same columns and writes one folder of Parquet: it counts
and checks nothing, and puts no row into its hour. Both run twice in a session; the second time counts.
"""

import argparse
import gzip
import io
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.files.formats import Avro, Csv, FileFormat, JsonLines, Orc, Parquet, Text
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.spark.session import session_options, use_this_interpreter
from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.uris import local_uri
from backfill_platform.examples import clickstream
from backfill_platform.repair.outcomes import StepFinished
from benchmarks.repairs import repair, services

START = datetime(2025, 1, 1, tzinfo=UTC)
TYPES = {"event_time": "timestamp", "client_id": "bigint", "url": "string", "status": "int", "bytes": "bigint"}
DDL = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
AVRO = {
    "type": "record",
    "name": "Request",
    "fields": [
        {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "client_id", "type": "long"},
        {"name": "url", "type": "string"},
        {"name": "status", "type": "int"},
        {"name": "bytes", "type": "long"},
    ],
}


def _text(table: pa.Table) -> bytes:
    rows = table.to_pylist()
    lines = (f"{r['client_id']},{r['event_time']:%d/%b/%Y,%H:%M:%S},{r['url']},{r['status']},{r['bytes']}\n" for r in rows)
    return gzip.compress("".join(lines).encode(), 1)


def _json(table: pa.Table) -> bytes:
    lines = (json.dumps({**row, "event_time": row["event_time"].isoformat()}) + "\n" for row in table.to_pylist())
    return gzip.compress("".join(lines).encode(), 1)


def _csv(table: pa.Table) -> bytes:
    lines = [",".join(TYPES)]
    lines += [",".join([row["event_time"].isoformat(), *map(str, list(row.values())[1:])]) for row in table.to_pylist()]
    return gzip.compress(("\n".join(lines) + "\n").encode(), 1)


def _avro(table: pa.Table) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(AVRO), table.to_pylist(), codec="deflate")
    return out.getvalue()


def _arrow(write: Callable[..., None]) -> Callable[[pa.Table], bytes]:
    def written(table: pa.Table) -> bytes:
        out = io.BytesIO()
        write(table, out)
        return out.getvalue()

    return written


def _bare_json(spark: SparkSession, files: str) -> DataFrame:
    return spark.read.schema(DDL).json(files)


FORMATS: dict[str, tuple[FileFormat, str, Callable[[pa.Table], bytes], Callable[[SparkSession, str], DataFrame] | None]] = {
    "text": (Text(), "csv.gz", _text, lambda spark, files: clickstream.parse(spark.read.text(files).toDF("line")).drop("line")),
    "JSON lines": (JsonLines(), "jsonl.gz", _json, _bare_json),
    "CSV": (
        Csv(),
        "csv.gz",
        _csv,
        lambda spark, files: spark.read.schema(DDL).option("multiLine", True).csv(files, header=True),
    ),
    "Parquet": (Parquet(), "parquet", _arrow(pyarrow.parquet.write_table), lambda spark, files: spark.read.parquet(files)),
    "ORC": (Orc(), "orc", _arrow(pyarrow.orc.write_table), lambda spark, files: spark.read.orc(files)),
    "Avro": (Avro(), "avro", _avro, None),
}


def table_of(hour: datetime, records: int) -> pa.Table:
    """The requests of an hour, in the order of their times."""
    chance = random.Random(7)
    seconds = sorted(chance.randrange(3_600_000_000) for _ in range(records))
    base = int(hour.timestamp()) * 1_000_000
    columns: dict[str, Any] = {
        "event_time": pa.array([base + one for one in seconds], pa.timestamp("us", "UTC")),
        "client_id": pa.array([chance.randrange(100_000) for _ in range(records)], pa.int64()),
        "url": [f"/page/{chance.randrange(500)}" for _ in range(records)],
        "status": pa.array([chance.choice([200, 200, 200, 404]) for _ in range(records)], pa.int32()),
        "bytes": pa.array([chance.randrange(50_000) for _ in range(records)], pa.int64()),
    }
    return pa.table(columns)


def write_files(folder: Path, name: str, files: int, records: int) -> None:
    """One file for each hour."""
    _, ending, write, _ = FORMATS[name]
    table = table_of(START, records)
    for number in range(files):
        start = START + number * HOUR
        moved = pa.compute.add(table.column("event_time"), pa.scalar(number * HOUR))
        path = folder / f"{start:%Y-%m-%d}" / f"{start:%H}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(write(table.set_column(0, "event_time", moved)))


def land(spark: SparkSession, folder: Path, name: str, files: int, records: int) -> float:
    """Land all files in one run; the seconds it took."""
    format_, ending, _, _ = FORMATS[name]
    span = HourRange(START, START + files * HOUR)
    source = HourlyFiles(f"{local_uri(folder)}/files/%Y-%m-%d/%H.{ending}", format=format_)
    raw = clickstream.pipeline.raw if name == "text" else replace(clickstream.pipeline.raw, parse=None)
    pipeline = replace(clickstream.pipeline, start=span.start, end=span.end, source=source, raw=raw)
    lake = Lake(f"sqlite:///{folder}/catalog.db", local_uri(folder / "lake"))
    with embedded.start(folder / "warehouse") as server, closing(Warehouse(server.url)) as warehouse:
        began, landed = time.perf_counter(), 0
        for event in repair(pipeline, services(lake, spark, warehouse), span, [pipeline.raw.table.path], "bench"):
            if isinstance(event, StepFinished):
                landed += sum(outcome.lake.rows for outcome in event.outcomes if outcome.lake and not outcome.error)
        taken = time.perf_counter() - began
    if landed != files * records:
        raise SystemExit(f"{name}: {landed:,} rows landed of {files * records:,}")
    for used in ("lake", "warehouse"):
        shutil.rmtree(folder / used)
    (folder / "catalog.db").unlink()
    return taken


def bare(spark: SparkSession, folder: Path, name: str) -> float | None:
    """The seconds of the bare job; None where Spark's wheel has no reader."""
    _, ending, _, read = FORMATS[name]
    if read is None:
        return None
    began = time.perf_counter()
    read(spark, f"{local_uri(folder)}/files/*/*.{ending}").write.parquet(local_uri(folder / "bare"))
    taken = time.perf_counter() - began
    shutil.rmtree(folder / "bare")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=720)
    parser.add_argument("--records", type=int, default=100, help="in each file")
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    use_this_interpreter()
    builder = SparkSession.builder
    for option, value in session_options(master="local[2]", remote=None, driver_memory="3g").items():
        builder = builder.config(option, value)
    spark = builder.getOrCreate()
    rows = arguments.files * arguments.records
    sys.stdout.write("| format | files | records | seconds | records in a second | bare job, seconds | share of its speed |\n")
    sys.stdout.write("|---|---|---|---|---|---|---|\n")
    for name in arguments.formats:
        folder = Path(tempfile.mkdtemp())
        try:
            write_files(folder / "files", name, arguments.files, arguments.records)
            for _ in range(arguments.turns):
                plain, taken = bare(spark, folder, name), land(spark, folder, name, arguments.files, arguments.records)
        finally:
            shutil.rmtree(folder)
        beside = f"{plain:.1f} | {plain / taken:.2f}" if plain else "none | "
        sys.stdout.write(f"| {name} | {arguments.files} | {rows:,} | {taken:.1f} | {rows / taken:,.0f} | {beside} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
