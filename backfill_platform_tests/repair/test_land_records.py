"""Random records of each format, landed: the same rows and rejects as plain Python makes of them, each once."""

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark.sql.types as T
import pytest
from pandera.pyspark import DataFrameModel, Field

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.files.formats import Avro, Csv, FileFormat, JsonLines, Orc, Parquet
from backfill_platform.adapters.files.hourly import ArchiveFile, FileSource, HourlyFiles
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.domain.hours import HOUR, HourRange, hour_of
from backfill_platform.domain.uris import local_uri
from backfill_platform.pipelines.spec import Pipeline, RawTable
from backfill_platform.reports.facts import facts_of
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.oracles import records as oracle
from backfill_platform_tests.repair import record_files as files
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = HourRange(T0, T0 + 3 * HOUR)
KINDS = files.KINDS
ORC_TYPES = [one for one, _ in files.STORED if one not in (pa.uint64(), files.STORED[7][0])]


class Events(DataFrameModel):
    """An event with a column of each type."""

    ingestion_hour: T.TimestampType = Field()
    number: T.LongType = Field()
    at: T.TimestampType = Field()
    user: T.StringType = Field()
    small: T.IntegerType = Field(nullable=True)
    large: T.LongType = Field(nullable=True)
    ratio: T.DoubleType = Field(nullable=True)
    fine: T.BooleanType = Field(nullable=True)
    raw: T.BinaryType = Field(nullable=True)


Rows = Counter[tuple[Any, ...]]


class Expected:
    """What plain Python makes of records: rows and rejects of each hour."""

    def __init__(self) -> None:
        self.rows: Rows = Counter()
        self.rejects: Rows = Counter()

    def add(self, hour: datetime, record: Mapping[str, Any]) -> None:
        values, unfit = oracle.row_of(record, KINDS)
        self.judge(hour, values, [f"{name}: does not fit {KINDS[name]}" for name in unfit], record["number"])

    def judge(self, hour: datetime, values: Mapping[str, Any], reasons: list[str], number: Any) -> None:
        reasons = reasons or [f"{name}: missing" for name in ("number", "at", "user") if values[name] is None]
        if reasons:
            self.rejects[hour, "; ".join(reasons), number] += 1
        else:
            self.rows[(hour, *(comparable(values[name]) for name in KINDS))] += 1


def comparable(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


Write = Callable[[random.Random, Path, str, datetime, Expected], None]


def write_json(chance: random.Random, path: Path, ending: str, hour: datetime, expected: Expected) -> None:
    records = files.random_records(chance, 60, hour.hour * 1000 + chance.randrange(10) * 100)
    broken = ['{"number": 1', "[]", "null", "", '{"number": 1} {"number": 2}', '{"user": "a", "user": "b"}', '{"ratio": NaN}']
    lines = files.json_lines(records) + "\n".join(broken).encode() + b'\n{"user": "\xff"}\n'
    path.write_bytes(files.packed(lines, ending))
    for record in records:
        expected.add(hour, record)
    for line in broken:
        expected.rejects[hour, "record: cannot be read", line] += 1
    expected.rejects[hour, "line: not in the encoding of its file", '{"user": "ÿ"}'] += 1


def write_csv(chance: random.Random, path: Path, ending: str, hour: datetime, expected: Expected) -> None:
    rows = []
    for record in files.random_records(chance, 60, hour.hour * 1000 + chance.randrange(10) * 100):
        row = {
            name: "" if value is None else value if isinstance(value, str) else json.dumps(value)
            for name, value in record.items()
        }
        values, unfit = {}, []
        for name, kind in KINDS.items():
            try:
                values[name] = oracle.field_of(row.get(name, ""), kind)
            except oracle.Unfit:
                unfit.append(f"{name}: does not fit {kind}")
        rows.append(row)
        expected.judge(hour, values if not unfit else {}, unfit, record["number"])
    names = chance.sample(list(KINDS), len(KINDS))
    names.remove("number")
    names.insert(0, "number")  # so that the number of a reject is found in its text
    path.write_bytes(files.packed(files.csv_text(chance, rows, names, ";").encode(), ending))


def write_avro(chance: random.Random, path: Path, ending: str, hour: datetime, expected: Expected) -> None:
    first = hour.hour * 1000 + chance.randrange(10) * 100
    records = [
        {name: files.avro_value(chance, kind) if name != "number" else number for name, kind in KINDS.items()}
        for number in range(first, first + 60)
    ]
    path.write_bytes(files.avro(records, chance.choice(["null", "deflate", "bzip2", "xz", "zstandard"])))
    for record in records:
        expected.add(hour, record)


def write_table(chance: random.Random, path: Path, ending: str, hour: datetime, expected: Expected) -> None:
    allowed = ORC_TYPES if ending == "orc" else [one for one, _ in files.STORED]
    # Arrow reads the times of ORC in nanoseconds, and refuses others.
    allowed = [one for one in allowed if ending != "orc" or one != pa.timestamp("us", "UTC")]
    table = files.random_table(chance, 60, hour.hour * 1000 + chance.randrange(10) * 100, allowed)
    path.write_bytes(files.orc(table) if ending == "orc" else files.parquet(chance, table))
    for record in table.to_pylist():
        expected.add(hour, record)


FORMATS: dict[str, tuple[FileFormat, Write]] = {
    "jsonl": (JsonLines(), write_json),
    "jsonl.gz": (JsonLines(), write_json),
    "jsonl.zst": (JsonLines(), write_json),
    "jsonl.bz2": (JsonLines(), write_json),
    "jsonl.lz4": (JsonLines(), write_json),
    "csv": (Csv(";"), write_csv),
    "csv.gz": (Csv(";"), write_csv),
    "csv.zst": (Csv(";"), write_csv),
    "csv.lz4": (Csv(";"), write_csv),
    "csv.bz2": (Csv(";"), write_csv),
    "avro": (Avro(), write_avro),
    "orc": (Orc(), write_table),
    "parquet": (Parquet(), write_table),
}


@pytest.fixture
def warehouse(warehouse_url: str) -> Iterator[Warehouse]:
    with closing(Warehouse(warehouse_url)) as opened:
        yield opened


def pipeline_of(source: FileSource) -> Pipeline:
    raw = RawTable("events", Events, event_time="at")
    return Pipeline("events", "Events.", HOURS.start, HOURS.end, source, raw, derived=())


def landed(world: World) -> tuple[Rows, Rows]:
    raw = world.pipeline.raw.table
    rows: Rows = Counter()
    for row in world.lake.read(raw, ("ingestion_hour", *KINDS), "number >= 0").to_pylist():
        row["at"] = oracle.micros(row["at"])
        rows[(row["ingestion_hour"], *(comparable(row[name]) for name in KINDS))] += 1
    rejects: Rows = Counter()
    hour = quarantine_of(raw).hour
    for row in world.lake.read(quarantine_of(raw), (hour, "reason", "payload"), "reason != ''").to_pylist():
        rejects[row[hour], row["reason"], number_of(row["payload"])] += 1
    return rows, rejects


def number_of(payload: str) -> Any:
    """The number of a record, of CSV where it stands first; the whole text where it has none."""
    if payload.replace('"', "").partition(";")[0].isdigit():
        return int(payload.replace('"', "").partition(";")[0])
    try:
        return json.loads(payload)["number"] if payload.count('"number"') == 1 else payload
    except (ValueError, KeyError):
        return payload


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.whole), pytest.param(3, marks=pytest.mark.whole)])
@pytest.mark.parametrize(
    "ending", [ending if "." not in ending else pytest.param(ending, marks=pytest.mark.whole) for ending in FORMATS]
)
def test_records_land_as_plain_python_reads_them(
    spark: "SparkSession", warehouse: Warehouse, tmp_path: Path, ending: str, seed: int
) -> None:
    chance, expected = random.Random(f"{ending} {seed}"), Expected()
    format_, write = FORMATS[ending]
    for hour in HOURS:
        (tmp_path / f"{hour:%H}").mkdir()
        for part in range(4):
            write(chance, tmp_path / f"{hour:%H}" / f"{part}.{ending}", ending.rpartition(".")[2], hour, expected)
    source = HourlyFiles(local_uri(tmp_path) + f"/%H/*.{ending}", format=format_)
    world = World(tmp_path, spark, warehouse, pipeline_of(source), open_lake(tmp_path))
    outcomes = world.run([world.pipeline.raw.table.path])[world.pipeline.raw.table.path]
    assert {hour: outcome.error for hour, outcome in outcomes.items()} == dict.fromkeys(HOURS, "")
    rows, rejects = landed(world)
    assert rejects == expected.rejects
    assert rows == expected.rows
    assert min(len(rows), len(rejects)) > 20
    for hour, outcome in outcomes.items():
        facts = facts_of(outcome)
        assert facts["rows"] == sum(count for row, count in rows.items() if row[0] == hour)
        assert facts["quarantined"] == sum(count for row, count in rejects.items() if row[0] == hour)


@pytest.mark.whole
@pytest.mark.parametrize("ending", ["jsonl", "csv", "avro", "orc", "parquet"])
def test_an_archive_places_records_by_their_time(
    spark: "SparkSession", warehouse: Warehouse, tmp_path: Path, ending: str
) -> None:
    chance, by_file = random.Random(ending), Expected()
    format_, write = FORMATS[ending]
    write(chance, tmp_path / f"all.{ending}", ending, T0, by_file)
    source = ArchiveFile(local_uri(tmp_path / f"all.{ending}"), HOURS, format=format_)
    world = World(tmp_path, spark, warehouse, pipeline_of(source), open_lake(tmp_path))
    for hour in HOURS:
        world.run([world.pipeline.raw.table.path], HourRange(hour, hour + HOUR))
    rows, rejects = landed(world)
    inside = {
        row: count for row, count in by_file.rows.items() if hour_of(oracle.EPOCH + row[2] * timedelta(microseconds=1)) in HOURS
    }
    assert {row[1:]: count for row, count in rows.items()} == {row[1:]: count for row, count in inside.items()}
    assert sum(rejects.values()) == by_file.rejects.total() + by_file.rows.total() - sum(inside.values())
