"""What reads files in Spark's Python workers comes along: workers elsewhere do not have this package."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from backfill_platform.adapters.files import json_lines
from backfill_platform.adapters.files.formats import Avro, Csv, FileFormat, JsonLines, Orc, Parquet
from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.adapters.files.reading import Reading
from backfill_platform.adapters.files.record_files import place_reader
from backfill_platform.adapters.records.taking import taken_from
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.uris import local_uri
from backfill_platform_tests.adapters.elsewhere import rows_elsewhere
from backfill_platform_tests.adapters.files.test_formats import USERS, avro, csv, orc, parquet
from backfill_platform_tests.events import hour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS: dict[str, tuple[FileFormat, bytes]] = {
    "parquet": (Parquet(), parquet()),
    "orc": (Orc(), orc()),
    "avro": (Avro(), avro()),
    "csv": (Csv(), csv()),
    "jsonl": (JsonLines(), "".join(json.dumps({"user": user}) + "\n" for user in [*USERS[1:], 7]).encode()),
}


@pytest.mark.parametrize("ending", FORMATS)
def test_workers_need_not_have_this_package(spark: "SparkSession", tmp_path: Path, ending: str) -> None:
    format_, data = FORMATS[ending]
    path = tmp_path / f"events.{ending}"
    path.write_bytes(data)
    taken = {"user": "string"}
    # Reading it here once lets the modules travel.
    archive = ArchiveFile(local_uri(path), HourRange(hour(0), hour(1)), format=format_)
    assert archive.lines(spark, [], taken).count() == len(USERS)
    if ending == "jsonl":
        read = json_lines.records_of_lines(taken)
        lines = data.decode().splitlines()
        given = pa.table({"line": lines, "undecodable": [False] * len(lines)})
    else:
        read = taken_from(place_reader(Reading(ending, ("user",))), taken)
        given = pa.table({"_uri": [local_uri(path)], "_epoch": pa.array([0], pa.int64())})
    assert rows_elsewhere(tmp_path, read, given) == len(USERS)
