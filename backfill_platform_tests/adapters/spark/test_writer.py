"""Files of one hour each: exact, sorted, and none of a task that fails."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from backfill_platform.adapters.spark import hour_files
from backfill_platform.adapters.spark.writer import write_by_hour
from backfill_platform.domain.uris import local_uri
from backfill_platform_tests.events import T0, hour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_file_holds_one_hour_sorted_and_compressed(spark: "SparkSession", tmp_path: Path) -> None:
    rows = [(hour(n % 3), T0 + timedelta(seconds=n), n, None if n % 5 else f"text {n}", n % 2 == 0, n / 7) for n in range(300)]
    frame = spark.createDataFrame(rows, "hour timestamp, at timestamp, n long, s string, b boolean, d double").repartition(7)
    place = local_uri(tmp_path / "a folder with 100% out")
    files = write_by_hour(frame, place, hour="hour", sort_by=("n",))
    assert sorted(files) == [hour(0), hour(1), hour(2)]
    stored = []
    for file_hour, uris in files.items():
        assert len(uris) == 1
        assert uris[0].startswith(f"{place}/")
        table = pq.ParquetFile(uris[0].removeprefix("file://"))
        assert table.metadata.row_group(0).column(0).compression == "ZSTD"
        data = table.read().to_pylist()
        assert {row["hour"] for row in data} == {file_hour}
        assert [row["n"] for row in data] == sorted(row["n"] for row in data)
        assert table.schema_arrow.names == ["hour", "at", "n", "s", "b", "d"]
        assert str(table.schema_arrow.field("at").type) == "timestamp[us, tz=UTC]"
        stored += [tuple(row.values()) for row in data]
    assert sorted(stored, key=lambda row: row[2]) == rows
    read = spark.read.parquet(*[uri for uris in files.values() for uri in uris])
    assert (
        read.select(F.sum(F.xxhash64(*read.columns).bitwiseAND(F.lit(0xFFFF)))).first()
        == frame.select(F.sum(F.xxhash64(*frame.columns).bitwiseAND(F.lit(0xFFFF)))).first()
    )


def test_no_rows_are_no_files(spark: "SparkSession", tmp_path: Path) -> None:
    empty = spark.createDataFrame([], "hour timestamp, n long")
    assert write_by_hour(empty, local_uri(tmp_path / "a folder with 100% out"), hour="hour") == {}


def test_what_fails_leaves_no_files(spark: "SparkSession", tmp_path: Path) -> None:
    failing = F.when(F.col("id") == 25_000, F.raise_error(F.lit("a bug"))).otherwise(F.timestamp_seconds("id"))
    frame = spark.range(30_000).select(failing.alias("hour"), F.col("id").alias("n"))
    with pytest.raises(Exception, match="a bug"):
        write_by_hour(frame, local_uri(tmp_path / "rows"), hour="hour")
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_writer_that_fails_deletes_what_it_wrote(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"n": [1, 2, 3], "_epoch": [0, 0, 3600]})

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch
        assert len(list(tmp_path.iterdir())) == 2
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(hour_files.write_hours(local_uri(tmp_path), batches()))
    assert list(tmp_path.iterdir()) == []


def test_a_large_hour_is_written_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hour_files, "_MOST_WAITING", 25)
    batches = [pa.RecordBatch.from_pydict({"n": list(range(at, at + 10)), "_epoch": [0] * 10}) for at in range(0, 70, 10)]
    (told,) = hour_files.write_hours(local_uri(tmp_path), iter(batches))
    (uri,) = told.column("uri").to_pylist()
    file = pq.ParquetFile(uri.removeprefix("file://"))
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [30, 30, 10]
    assert file.read()["n"].to_pylist() == list(range(70))
