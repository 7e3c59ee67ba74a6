"""The lake on a real Iceberg catalog; files are written by pyarrow, as an engine other than ours."""

import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestEntry, ManifestFile

from backfill_platform.adapters.iceberg.atomic_catalog import AtomicCatalog
from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.tables import Column, Layer, Table
from backfill_platform.domain.uris import local_uri
from backfill_platform.errors import LakeConflict, PreconditionError
from backfill_platform_tests.events import hour

TABLE = Table(
    Layer.RAW,
    "events",
    (
        Column("ingestion_hour", ColumnType.TIMESTAMP),
        Column("event_time", ColumnType.TIMESTAMP),
        Column("n", ColumnType.INT64, nullable=True),
    ),
    hour="ingestion_hour",
)


class Writer:
    """Writes one Parquet file of so many rows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def __call__(self, ingestion: datetime, rows: int, *, late: timedelta = timedelta(0)) -> list[str]:
        self.count += 1
        stamp = pa.timestamp("us", "UTC")
        table = pa.table(
            {
                "ingestion_hour": pa.array([ingestion] * rows, stamp),
                "event_time": pa.array([ingestion - late + timedelta(seconds=n) for n in range(rows)], stamp),
                "n": pa.array(range(rows), pa.int64()),
            }
        )
        path = self.folder / f"{self.count}.parquet"
        pq.write_table(table, path, compression="zstd")
        return [local_uri(path)]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


@pytest.fixture
def table(lake: Lake) -> Table:
    lake.ensure(TABLE)
    return TABLE


def put(lake: Lake, table: Table, files: dict[datetime, list[str]]) -> None:
    lake.stage(table, "setup", list(files), files)
    lake.promote(table, "setup", list(files))


def test_a_commit_of_two_tables_whose_answer_is_lost_has_taken_place(
    lake: Lake, table: Table, write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog may name the new metadata when an error comes: deleting it would lose both tables."""
    rejects = quarantine_of(table)
    lake.ensure(rejects)
    lake.stage(table, "r", [hour(0)], {hour(0): write(hour(0), 3)})
    lake.stage(rejects, "r", [hour(0)], {})
    swap = AtomicCatalog._swap

    def swap_without_an_answer(catalog: AtomicCatalog, held: Any) -> None:
        swap(catalog, held)
        raise ConnectionError("the connection to the catalog is gone")

    monkeypatch.setattr(AtomicCatalog, "_swap", swap_without_an_answer)
    with pytest.raises(ConnectionError):
        lake.promote(table, "r", [hour(0)], beside=rejects)
    monkeypatch.undo()
    assert lake.rows_by_hour(table) == {hour(0): 3}
    assert lake.rows_by_hour(rejects) == {}
    lake.promote(table, "r", [hour(0)], beside=rejects)
    assert lake.rows_by_hour(table) == {hour(0): 3}


def test_a_new_table_is_empty_and_asking_for_it_again_changes_nothing(lake: Lake, table: Table) -> None:
    first = lake.snapshot(table)
    lake.ensure(table)
    assert lake.snapshot(table) == first
    assert (lake.files(table), lake.rows_by_hour(table), lake.built_hours(table)) == ([], {}, set())


def test_a_table_with_other_columns_is_refused_by_name(lake: Lake, table: Table) -> None:
    changed = Table(table.layer, table.name, (*table.columns[:2], Column("n", ColumnType.STRING)), hour=table.hour)
    with pytest.raises(PreconditionError, match=r"in n (long, n string|string, n long)"):
        lake.ensure(changed)


def test_staged_files_are_on_their_branch_only_until_promoted(lake: Lake, table: Table, write: Writer) -> None:
    put(lake, table, {hour(0): write(hour(0), 5), hour(1): write(hour(1), 5)})
    before = lake.snapshot(table)
    lake.stage(table, "r1", [hour(1), hour(2)], {hour(1): write(hour(1), 7), hour(2): write(hour(2), 2)})
    assert lake.rows_by_hour(table) == {hour(0): 5, hour(1): 5}
    assert lake.snapshot(table) == before
    assert lake.rows_by_hour(table, branch="r1") == {hour(0): 5, hour(1): 7, hour(2): 2}
    lake.promote(table, "r1", [hour(1)])
    assert lake.rows_by_hour(table) == {hour(0): 5, hour(1): 7}
    assert lake.snapshot(table, branch="r1") is None


def test_an_hour_without_new_rows_becomes_empty(lake: Lake, table: Table, write: Writer) -> None:
    put(lake, table, {hour(0): write(hour(0), 5), hour(1): write(hour(1), 5)})
    lake.stage(table, "r1", [hour(0)], {})
    lake.promote(table, "r1", [hour(0)])
    assert lake.rows_by_hour(table) == {hour(1): 5}
    assert lake.built_hours(table) == {hour(0), hour(1)}
    lake.remove_hours(table, [hour(1)])
    assert lake.rows_by_hour(table) == {}
    assert lake.built_hours(table) == {hour(0)}, "a lost hour does not count as empty"
    put(lake, table, {hour(0): write(hour(0), 1)})
    lake.remove_hours(table, [hour(0)])
    assert lake.built_hours(table) == set()


def test_hours_need_not_be_contiguous(lake: Lake, table: Table, write: Writer) -> None:
    put(lake, table, {hour(n): write(hour(n), 3) for n in range(6)})
    again = [hour(0), hour(2), hour(5)]
    lake.stage(table, "r1", again, {hour_: write(hour_, 1) for hour_ in again})
    lake.promote(table, "r1", again)
    assert lake.rows_by_hour(table) == {hour(n): 1 if hour(n) in again else 3 for n in range(6)}
    assert [file.hour for file in lake.files(table, again)] == again
    assert lake.rows_by_hour(table, HourRange(hour(1), hour(3))) == {hour(1): 3, hour(2): 1}
    assert lake.files(table, []) == []


def test_the_inventory_has_the_files_of_a_scan_with_the_spans_of_their_events(lake: Lake, table: Table, write: Writer) -> None:
    assert lake.inventory(table).files == ()
    put(lake, table, {hour(n): write(hour(n), 3, late=n * timedelta(minutes=20)) for n in range(4)})
    put(lake, table, {hour(1): write(hour(1), 5), hour(2): []})
    inventory = lake.inventory(table, "event_time")
    assert list(inventory.files) == lake.files(table)
    assert [(file.hour, file.rows) for file in inventory.files] == [(hour(0), 3), (hour(1), 5), (hour(3), 3)]
    assert inventory.empty == {hour(2)}
    spans = [inventory.spans[file.uri] for file in inventory.files]
    starts = [hour(0), hour(1), hour(2)]
    assert spans == [(at, at + timedelta(seconds=rows - 1)) for at, rows in zip(starts, (3, 5, 3), strict=True)]
    assert lake.inventory(table).spans == {}


def test_the_inventory_reads_a_manifest_once_and_sees_every_change(
    lake: Lake, table: Table, write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    fetch = ManifestFile.fetch_manifest_entry

    def counted(manifest: ManifestFile, *args: Any, **options: Any) -> list[ManifestEntry]:
        read.append(manifest.manifest_path)
        return fetch(manifest, *args, **options)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", counted)

    def look() -> list[tuple[datetime, int]]:
        read.clear()
        return [(file.hour, file.rows) for file in lake.inventory(table, "event_time").files]

    put(lake, table, {hour(0): write(hour(0), 3)})
    put(lake, table, {hour(1): write(hour(1), 3)})
    assert look() == [(hour(0), 3), (hour(1), 3)]
    assert len(read) == 2
    assert look() == [(hour(0), 3), (hour(1), 3)]
    assert read == []
    put(lake, table, {hour(2): write(hour(2), 4)})
    assert look() == [(hour(0), 3), (hour(1), 3), (hour(2), 4)]
    assert len(read) == 1
    lake.remove_hours(table, [hour(0)])
    assert look() == [(hour(1), 3), (hour(2), 4)]


@pytest.mark.whole
def test_many_commits_leave_few_manifests(lake: Lake, table: Table, write: Writer, tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake/catalog.db", warehouse=lake.root_uri)
    with catalog.load_table(table.path).transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "3"})
    for n in range(8):
        put(lake, table, {hour(n): write(hour(n), 2)})
        put(lake, table, {hour(0): write(hour(0), n + 1)})
    loaded = catalog.load_table(table.path)
    snapshot = loaded.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(loaded.io)) <= 4
    assert lake.rows_by_hour(table) == {hour(n): 8 if n == 0 else 2 for n in range(8)}
    assert list(lake.inventory(table).files) == lake.files(table)


def test_a_reader_sees_the_old_hour_or_the_new_one_but_no_mixture(lake: Lake, table: Table, write: Writer) -> None:
    put(lake, table, {hour(n): write(hour(n), 1) for n in range(3)})
    seen: list[tuple[int, ...]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.append(tuple(sorted(lake.rows_by_hour(table).values())))

    recipient = threading.Thread(target=watch)
    recipient.start()
    for rows in range(2, 8):
        put(lake, table, {hour(n): write(hour(n), rows) for n in range(3)})
    stop.set()
    recipient.join()
    assert set(seen) <= {(rows,) * 3 for rows in range(1, 8)}
    assert len(set(seen)) > 1


def test_late_events_are_found_by_their_time_in_later_files(lake: Lake, table: Table, write: Writer) -> None:
    put(
        lake,
        table,
        {
            hour(0): write(hour(0), 5),
            hour(1): write(hour(1), 5),
            hour(4): write(hour(4), 5, late=timedelta(hours=3, minutes=30)),
        },
    )
    files = lake.files_between(table, "event_time", hour(0), hour(1))
    assert [file.hour for file in files] == [hour(0), hour(4)]


@pytest.mark.whole
def test_two_writers_of_an_hour_never_leave_it_doubled(lake: Lake, table: Table, write: Writer, tmp_path: Path) -> None:
    put(lake, table, {hour(0): write(hour(0), 5)})
    other = Lake(f"sqlite:///{tmp_path}/lake/catalog.db", local_uri(tmp_path / "lake"))
    files = {1: write(hour(0), 100), 2: write(hour(0), 200)}
    failures: list[Exception] = []

    def replace(writer_lake: Lake, branch: str, uris: list[str]) -> None:
        try:
            writer_lake.stage(table, branch, [hour(0)], {hour(0): uris})
            writer_lake.promote(table, branch, [hour(0)])
        except LakeConflict as error:
            failures.append(error)

    for turn in range(5):
        threads = [
            threading.Thread(target=replace, args=(writer_lake, f"w{number}_{turn}", files[number]))
            for number, writer_lake in ((1, lake), (2, other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert lake.rows_by_hour(table)[hour(0)] in (100, 200)
    assert failures == []


def test_a_discarded_attempt_leaves_neither_branch_nor_files(lake: Lake, table: Table, tmp_path: Path) -> None:
    uri = lake.data_uri(table, "r1")
    folder = tmp_path / "lake" / "data" / "raw" / "events" / "r1"
    assert local_uri(folder) == uri
    folder.mkdir(parents=True)
    write = Writer(folder)
    lake.stage(table, "r1", [hour(0)], {hour(0): write(hour(0), 3)})
    lake.discard(table, "r1", "r1")
    assert not folder.exists()
    assert lake.snapshot(table, branch="r1") is None
    lake.discard(table, "r1", "r1")


def test_a_sweep_deletes_what_a_dead_attempt_has_staged_and_not_what_it_has_promoted(
    lake: Lake, table: Table, tmp_path: Path
) -> None:
    folder = tmp_path / "lake" / "data" / "raw" / "events" / "dead"
    folder.mkdir(parents=True)
    write = Writer(folder)
    promoted, staged = write(hour(0), 3), write(hour(1), 4)
    lake.stage(table, "dead", [hour(0)], {hour(0): promoted})
    lake.promote(table, "dead", [hour(0)])
    lake.stage(table, "dead", [hour(1)], {hour(1): staged})
    lake.sweep(table)
    assert [local_uri(path) for path in folder.iterdir()] == promoted
    assert lake.gone(lake.files(table, [hour(0)])) == set()


def test_branches_and_files_of_dead_attempts_are_swept(lake: Lake, table: Table, tmp_path: Path) -> None:
    folder = tmp_path / "lake" / "data" / "raw" / "events" / "dead"
    folder.mkdir(parents=True)
    lake.stage(table, "dead", [hour(0)], {hour(0): Writer(folder)(hour(0), 3)})
    lake.sweep(table)
    assert not folder.exists()
    assert lake.snapshot(table, branch="dead") is None


def test_branches_and_files_of_live_attempts_are_not_swept(lake: Lake, table: Table, tmp_path: Path) -> None:
    for attempt in ("dead", "alive"):
        folder = tmp_path / "lake" / "data" / "raw" / "events" / attempt
        folder.mkdir(parents=True)
        lake.stage(table, attempt, [hour(0)], {hour(0): Writer(folder)(hour(0), 3)})
    lake.sweep(table, lambda: {"alive"})
    assert lake.snapshot(table, branch="dead") is None
    assert [file.rows for file in lake.files(table, [hour(0)], branch="alive")] == [3]
    assert folder.exists()


def test_rejects_have_a_table_of_their_own(lake: Lake) -> None:
    rejects = quarantine_of(TABLE)
    lake.ensure(rejects)
    assert (str(rejects), rejects.column_names) == ("quarantine/raw_events", ("hour", "reason", "payload"))
