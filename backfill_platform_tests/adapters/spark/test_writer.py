from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from backfill_platform.adapters.spark.writer import write_by_hour
from backfill_platform.domain.uris import local_uri
from backfill_platform_tests.events import T0, hour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_file_holds_one_hour_sorted_and_compressed(spark: "SparkSession", tmp_path: Path) -> None:
    rows = [(hour(n % 3), T0 + timedelta(seconds=n), n) for n in range(300)]
    frame = spark.createDataFrame(rows, "hour timestamp, at timestamp, n long").repartition(7)
    files = write_by_hour(frame, local_uri(tmp_path / "a folder with 100% out"), hour="hour", sort_by=("n",))
    assert sorted(files) == [hour(0), hour(1), hour(2)]
    for file_hour, uris in files.items():
        assert len(uris) == 1
        table = pq.ParquetFile(uris[0].removeprefix("file://"))
        assert table.metadata.row_group(0).column(0).compression == "ZSTD"
        data = table.read().to_pylist()
        assert {row["hour"] for row in data} == {file_hour}
        assert [row["n"] for row in data] == sorted(row["n"] for row in data)
        assert table.schema_arrow.names == ["hour", "at", "n"]
        assert str(table.schema_arrow.field("at").type) == "timestamp[us, tz=UTC]"


def test_no_rows_are_no_files(spark: "SparkSession", tmp_path: Path) -> None:
    empty = spark.createDataFrame([], "hour timestamp, n long")
    assert write_by_hour(empty, local_uri(tmp_path / "a folder with 100% out"), hour="hour") == {}
