"""The lake in object storage: what holds for folders (`test_lake`, `test_maintenance`) holds for buckets."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.iceberg.maintenance import Needed, find_unneeded, remove_unneeded
from backfill_platform.adapters.spark.hour_files import EPOCH, write_hours
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.object_store import ObjectStore
from backfill_platform_tests.adapters.iceberg.test_lake import TABLE
from backfill_platform_tests.events import hour
from backfill_platform_tests.fixtures_object_store import Bucket

HOURS = HourRange(hour(0), hour(2))


@pytest.fixture
def lake(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    store = ObjectStore(bucket.endpoint)
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    made = Lake(f"sqlite:///{tmp_path}/catalog.db", f"s3://{bucket.name}/tables", store.catalog_properties)
    made.ensure(TABLE)
    return made


def stage(lake: Lake, attempt: str, rows: int, hours: Iterable[datetime] = HOURS) -> None:
    """Stage so many rows for each of the hours, written as a repair writes them."""
    stamp, files = pa.timestamp("us", "UTC"), dict[datetime, list[str]]()
    for one in hours:
        columns = {
            "ingestion_hour": pa.array([one] * rows, stamp),
            "event_time": pa.array([one + timedelta(seconds=n) for n in range(rows)], stamp),
            "n": pa.array(range(rows), pa.int64()),
            EPOCH: pa.array([int(one.timestamp())] * rows, pa.int64()),
        }
        (told,) = write_hours(lake.data_uri(TABLE, attempt), iter([pa.RecordBatch.from_pydict(columns)]))
        files[one] = told["uri"].to_pylist()
    lake.stage(TABLE, attempt, list(files), files)


def test_hours_are_replaced_and_what_is_gone_is_noticed(lake: Lake, bucket: Bucket) -> None:
    stage(lake, "first", 3)
    assert lake.rows_by_hour(TABLE) == {}
    lake.promote(TABLE, "first", list(HOURS))
    stage(lake, "second", 5, [hour(1)])
    lake.promote(TABLE, "second", [hour(1)])
    assert lake.rows_by_hour(TABLE) == {hour(0): 3, hour(1): 5}
    assert lake.read(TABLE, ["n"], "n >= 3")["n"].to_pylist() == [3, 4]
    files = lake.files(TABLE)
    assert lake.gone(files) == set()
    lost = files[0].uri
    bucket.client().delete_object(Bucket=bucket.name, Key=lost.removeprefix(f"s3://{bucket.name}/"))
    assert lake.gone(files) == {lost}


def test_what_an_attempt_left_is_deleted_and_nothing_else(lake: Lake, bucket: Bucket) -> None:
    stage(lake, "good", 3)
    lake.promote(TABLE, "good", list(HOURS))
    kept = bucket.keys("tables/data/")
    stage(lake, "dead", 4)
    assert len(bucket.keys("tables/data/")) == 4
    lake.discard(TABLE, "dead", "dead")
    assert [key for key in bucket.keys("tables/data/") if not key.endswith("/")] == kept
    assert lake.rows_by_hour(TABLE) == {hour(0): 3, hour(1): 3}


def test_maintenance_removes_what_was_replaced(lake: Lake, bucket: Bucket) -> None:
    for rows in (2, 3):
        stage(lake, f"of-{rows}", rows)
        lake.promote(TABLE, f"of-{rows}", list(HOURS))
    needed = Needed(datetime.now(UTC) + timedelta(days=1))
    found = find_unneeded(lake, TABLE, needed)
    removed = remove_unneeded(lake, TABLE, needed)
    assert {file.path for file in removed.files} >= {file.path for file in found.files if "/data/" in file.path}
    assert len([key for key in bucket.keys("tables/data/") if key.endswith(".parquet")]) == 2
    assert lake.rows_by_hour(TABLE) == {hour(0): 3, hour(1): 3}
    assert lake.read(TABLE, ["n"], "n >= 0").num_rows == 6
