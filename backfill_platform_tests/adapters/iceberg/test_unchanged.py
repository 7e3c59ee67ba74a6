"""Hours that are written again as they are make no new files."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.tables import Table
from backfill_platform.domain.uris import local_path
from backfill_platform_tests.adapters.iceberg.test_lake import TABLE, Writer, put
from backfill_platform_tests.events import hour


@pytest.fixture
def table(lake: Lake) -> Table:
    lake.ensure(TABLE)
    return TABLE


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def path(uri: str) -> Path:
    return Path(local_path(uri) or "")


def test_only_changed_hours_are_replaced_and_the_other_new_files_go(lake: Lake, table: Table, write: Writer) -> None:
    first = {hour(n): write(hour(n), 10) for n in range(3)}
    put(lake, table, first)
    again = {hour(0): write(hour(0), 10), hour(1): write(hour(1), 11), hour(2): write(hour(2), 10)}
    put(lake, table, again)
    assert {file.hour: file.uri for file in lake.files(table)} == {
        hour(0): first[hour(0)][0],
        hour(1): again[hour(1)][0],
        hour(2): first[hour(2)][0],
    }
    assert [path(again[hour(n)][0]).exists() for n in range(3)] == [False, True, False]


def test_a_repair_that_changes_nothing_makes_no_snapshot_of_main(lake: Lake, table: Table, write: Writer) -> None:
    put(lake, table, {hour(0): write(hour(0), 10)})
    before = lake.snapshot(table)
    put(lake, table, {hour(0): write(hour(0), 10)})
    assert lake.snapshot(table) == before


def test_files_of_one_size_with_other_rows_are_replaced(lake: Lake, table: Table, write: Writer) -> None:
    put(lake, table, {hour(0): write(hour(0), 10)})
    (uri,) = write(hour(0), 10)
    rows = pq.read_table(path(uri))
    other = rows.set_column(2, "n", pq.read_table(path(uri)).column("n").take([9, 8, 7, 6, 5, 4, 3, 2, 1, 0]))
    pq.write_table(other, path(uri), compression="zstd")
    put(lake, table, {hour(0): [uri]})
    assert [file.uri for file in lake.files(table)] == [uri]


def test_a_file_that_is_gone_or_damaged_is_replaced(lake: Lake, table: Table, write: Writer) -> None:
    first = {hour(n): write(hour(n), 10) for n in range(2)}
    put(lake, table, first)
    path(first[hour(0)][0]).unlink()
    damaged = path(first[hour(1)][0])
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    again = {hour(n): write(hour(n), 10) for n in range(2)}
    put(lake, table, again)
    assert {file.uri for file in lake.files(table)} == {uri for uris in again.values() for uri in uris}


def test_a_second_promotion_of_the_same_files_keeps_them(lake: Lake, table: Table, write: Writer) -> None:
    """A repair that died between the commit and the end of its branch does it again."""
    files = {hour(0): write(hour(0), 10)}
    put(lake, table, files)
    put(lake, table, files)
    assert [file.uri for file in lake.files(table)] == files[hour(0)]
    assert path(files[hour(0)][0]).exists()
