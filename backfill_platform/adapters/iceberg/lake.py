"""The lake: one Iceberg table per table of a pipeline, partitioned by hour.

Hours are written to a branch named after the repair, audited there, and promoted to `main` in one commit. A branch that was
never promoted changes nothing for readers of `main`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow.fs
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import HourTransform
from pyiceberg.types import NestedField
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from backfill_platform.adapters.iceberg.atomic_catalog import AtomicCatalog
from backfill_platform.adapters.iceberg.branches import drop_branch, restart_branch
from backfill_platform.adapters.iceberg.changes import MAIN, Change, between, empty_hours, if_made_of, replacing, within
from backfill_platform.adapters.iceberg.column_types import fields_of
from backfill_platform.adapters.iceberg.evolution import column_changes, differences, evolve
from backfill_platform.adapters.iceberg.inventory import LakeFile, TableInventory, expired_until, lake_file, main_files
from backfill_platform.adapters.iceberg.unchanged import delete_files, unchanged_hours
from backfill_platform.adapters.records.storage import located, path_of
from backfill_platform.domain.column_changes import ColumnChange
from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.hours import HourRange, merge_hours
from backfill_platform.domain.tables import Column, Layer, Table
from backfill_platform.errors import LakeConflict, PreconditionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table as IcebergTable

_ATTEMPTS = 20
# Manifests are merged by the hundred: with one for each commit, listing a year that was landed hour by hour takes minutes. They
# stay small, because each merge and each repair writes those that it touches anew.
# Each commit writes the metadata anew. pyiceberg keeps a hundred old files of it, and deletes none that it lists no longer.
_PROPERTIES = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.target-size-bytes": "131072",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "5",
}
# Bounds of other columns would tell nothing: each file has all rows of its hour, and they are a fifth of the metadata.
_BOUNDED = (ColumnType.TIMESTAMP, ColumnType.BOOLEAN)


def quarantine_of(table: Table) -> Table:
    """The lake table beside `table` for the rows that its checks rejected, with the reason and the raw payload."""
    columns = (
        Column("hour", ColumnType.TIMESTAMP, description="the hour the row would have belonged to"),
        Column("reason", ColumnType.STRING, description="the checks that failed, separated by '; '"),
        Column("payload", ColumnType.STRING, description="the line as it came, or the rejected row as JSON"),
    )
    return Table(Layer.QUARANTINE, f"{table.layer}_{table.name}", columns)


def properties_of(table: Table) -> dict[str, str]:
    """The properties of a lake table: how its metadata is kept, and of which columns files have bounds."""
    bounded = {f"write.metadata.metrics.column.{one.name}": "full" for one in table.columns if one.type in _BOUNDED}
    return {**_PROPERTIES, "write.metadata.metrics.default": "none", **bounded}


@dataclass(frozen=True)
class _Move:
    """How the hours of a branch get to `main`; None where they are there. `unneeded` are files that `main` has already."""

    table: Table
    change: Change | None
    unneeded: list[str]


class Lake:
    """Tables below one root URI, in one SQL catalog. Safe to share between threads: each call loads what it needs."""

    def __init__(self, catalog_uri: str, root_uri: str, properties: Mapping[str, str] | None = None) -> None:
        """`catalog_uri` is an SQLAlchemy URI, `root_uri` the folder or bucket prefix of data and metadata.

        `properties` are pyiceberg's, such as where an object store is.
        """
        self.root_uri = root_uri.rstrip("/")
        # Another process may create the same tables of the catalog at the same time, one after the other.
        made_by_others = (OperationalError, IntegrityError, ProgrammingError)
        for attempt in Retrying(retry=retry_if_exception_type(made_by_others), stop=stop_after_attempt(4), reraise=True):
            with attempt:
                self._catalog = AtomicCatalog("lake", uri=catalog_uri, warehouse=self.root_uri, **(properties or {}))

    def ensure(self, table: Table) -> None:
        """Create the table if it is absent, with an empty first snapshot, which branches need.

        Raises PreconditionError when it exists with other columns.
        """
        with suppress(IntegrityError):  # another process was faster
            self._catalog.create_namespace_if_not_exists(str(table.layer))
        fields = fields_of(table.columns)
        hour_id = next(field.field_id for field in fields if field.name == table.hour)
        spec = PartitionSpec(PartitionField(hour_id, 1000, HourTransform(), f"{table.hour}_hour"))
        try:
            iceberg_table = self._catalog.load_table(table.path)
        except NoSuchTableError:
            try:
                iceberg_table = self._catalog.create_table(
                    table.path, Schema(*fields), partition_spec=spec, properties=properties_of(table)
                )
            except TableAlreadyExistsError:
                iceberg_table = self._catalog.load_table(table.path)
        _check_columns(iceberg_table, table)
        self.commit(table, _first_snapshot)

    def column_changes(self, table: Table, drops: Collection[str] = ()) -> list[ColumnChange]:
        """What would make an existing table as it is declared, refusals included; `drops` are columns that may be dropped."""
        iceberg_table = self.load(table)
        if iceberg_table is None:
            return []
        return column_changes(iceberg_table, table, drops, empty=not self.built_hours(table))

    def evolve(self, changes: Mapping[Table, Collection[ColumnChange]]) -> None:
        """Make changes of columns, of all the tables in one commit. No file is written; made again, they change nothing."""
        self.commit_together([(table, evolve(table, of, properties_of(table))) for table, of in changes.items()])

    def load(self, table: Table) -> IcebergTable | None:
        """The table as Iceberg has it now, None where there is none."""
        try:
            return self._catalog.load_table(table.path)
        except NoSuchTableError:
            return None

    def snapshot(self, table: Table, *, branch: str = MAIN) -> int | None:
        """The id of the newest snapshot of a branch, None where there is none."""
        iceberg_table = self.load(table)
        newest = None if iceberg_table is None else iceberg_table.snapshot_by_name(branch)
        return None if newest is None else newest.snapshot_id

    def table_id(self, table: Table) -> str:
        """What tells the table from one of the same name in another lake."""
        return str(self._catalog.load_table(table.path).metadata.table_uuid)

    def files(self, table: Table, hours: Iterable[datetime] | None = None, *, branch: str = MAIN) -> list[LakeFile]:
        """The files of the given owning hours (for `raw`: ingestion hours), or of all, in the order of hours."""
        ranges = None if hours is None else merge_hours(hours)
        if ranges == ():
            return []
        return self._plan(table, None if ranges is None else within(table.hour, ranges), branch)

    def files_between(self, table: Table, column: str, start: datetime, end: datetime, *, branch: str = MAIN) -> list[LakeFile]:
        """The files that may hold rows with `column` in `[start, end)`, by their column bounds: late rows are found too."""
        return self._plan(table, between(column, start, end), branch)

    def read(self, table: Table, columns: Collection[str], where: str) -> pa.Table:
        """Columns of the rows on `main` that meet an Iceberg filter expression, such as `amount > 3 and is_open = true`.

        For few rows: they are read in this process. A table that does not exist has none.
        """
        try:
            return self._catalog.load_table(table.path).scan(row_filter=where, selected_fields=tuple(columns)).to_arrow()
        except NoSuchTableError:
            fields: list[NestedField] = fields_of([table.column(name) for name in columns])
            return Schema(*fields).as_arrow().empty_table()

    def rows_by_hour(self, table: Table, hours: HourRange | None = None, *, branch: str = MAIN) -> dict[datetime, int]:
        """The row counts of hours, from Iceberg metadata; hours without rows are absent."""
        counts: dict[datetime, int] = {}
        for file in self._plan(table, None if hours is None else within(table.hour, (hours,)), branch):
            counts[file.hour] = counts.get(file.hour, 0) + file.rows
        return counts

    def built_hours(self, table: Table, hours: HourRange | None = None) -> set[datetime]:
        """The hours, of those given or of all, that were promoted: those with rows, and those that are recorded as empty.

        Any other hour was never built, or has been lost.
        """
        iceberg_table = self.load(table)
        if iceberg_table is None:
            return set()
        empty = empty_hours(iceberg_table)
        return set(self.rows_by_hour(table, hours)) | (empty if hours is None else empty.intersection(hours))

    def inventory(self, table: Table, time: str = "") -> TableInventory:
        """The inventory of `main`, from the metadata alone; with the spans of the timestamp column `time`.

        Raises PreconditionError when it has other columns than declared: nobody could compare its rows.
        """
        iceberg_table = self.load(table)
        if iceberg_table is None:
            return TableInventory()
        _check_columns(iceberg_table, table)
        files, spans = main_files(iceberg_table, time)
        snapshots = frozenset(snapshot.snapshot_id for snapshot in iceberg_table.snapshots())
        return TableInventory(
            files,
            frozenset(empty_hours(iceberg_table)),
            str(iceberg_table.metadata.table_uuid),
            snapshots,
            expired_until(iceberg_table),
            spans,
        )

    def gone(self, files: Collection[LakeFile]) -> set[str]:
        """The URIs of files that the metadata lists, but the storage has no longer, or with another size."""
        if not files:
            return set()
        filesystem, _ = located(next(iter(files)).uri)
        infos = filesystem.get_file_info([path_of(file.uri) for file in files])
        # The size of a missing file is None.
        return {file.uri for file, info in zip(files, infos, strict=True) if info.size != file.bytes}

    def stage(self, table: Table, branch: str, hours: Collection[datetime], files: Mapping[datetime, list[str]]) -> None:
        """Replace the hours by the given files, on a new branch of `main`. `main` itself does not change."""
        self.commit(table, lambda iceberg_table: restart_branch(iceberg_table, table, branch))
        uris = [uri for hour in hours for uri in files.get(hour, [])]
        self._replace(table, hours, uris, branch)

    def promote(
        self,
        table: Table,
        branch: str,
        hours: Collection[datetime],
        *,
        beside: Table | None = None,
        made_of: Mapping[Table, Collection[LakeFile]] | None = None,
    ) -> None:
        """Move the branch's files of the given hours to `main`, in one commit, and remove the branch.

        With `beside`, the same hours of both tables: readers see both change, or neither. Other hours stay as they are on
        `main`, and so do hours that were written again as they are: their new files are deleted. `made_of` are the files of
        `main` that the hours were computed from, by table. Raises LakeConflict when other writers were faster on every try, and
        HourLeased when `main` has other files by now than the hours were made of.
        """
        moves = [
            self._move(one, branch, hours, None if made_of is None else made_of[one])
            for one in (table, beside)
            if one is not None
        ]
        self.commit_together([(move.table, move.change) for move in moves if move.change])
        for move in moves:
            self.drop_branch(move.table, branch)
            delete_files(move.unneeded)

    def _move(self, table: Table, branch: str, hours: Collection[datetime], made_of: Collection[LakeFile] | None) -> _Move:
        staged = self.files(table, hours, branch=branch) if hours else []
        stored = self.files(table, hours) if staged else []
        same = unchanged_hours(stored, staged)
        change = None
        if changed := set(hours) - same:
            moved = [file for file in staged if file.hour in changed]
            empty = changed - {file.hour for file in moved}
            change = replacing(table, changed, [file.uri for file in moved], MAIN, empty)
            if made_of is not None:
                change = if_made_of(table, changed, [file.uri for file in made_of if file.hour in changed], change)
        # Those that are on `main` already were moved there before: this promotion is a second one.
        on_main = {file.uri for file in stored}
        return _Move(table, change, [file.uri for file in staged if file.hour in same and file.uri not in on_main])

    def drop_branch(self, table: Table, branch: str) -> None:
        """Remove a branch if it exists, with the metadata that only it has."""
        unneeded: list[str] = []

        def change(iceberg_table: IcebergTable) -> None:
            unneeded[:] = drop_branch(iceberg_table, branch)

        self.commit(table, change)
        delete_files(unneeded)

    def sweep(self, table: Table, at_work: Callable[[], Collection[str]] = tuple) -> None:
        """Discard the branches of attempts that died. `at_work` names the live attempts; it is called after the listing."""
        branches = set(self._catalog.load_table(table.path).refs()) - {MAIN}
        for branch in branches - set(at_work() if branches else ()):
            self.discard(table, branch, branch)

    def discard(self, table: Table, branch: str, attempt: str) -> None:
        """Forget a branch and delete the files that the attempt wrote for it; those that it has promoted stay."""
        self.drop_branch(table, branch)
        filesystem, folder = located(self.data_uri(table, attempt))
        written = filesystem.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True, recursive=True))
        promoted = {path_of(file.uri) for file in self._plan(table, None, MAIN)} if written else set()
        if promoted.isdisjoint(file.path for file in written):
            if written:
                filesystem.delete_dir(folder)
            return
        for file in written:
            if file.type is pyarrow.fs.FileType.File and file.path not in promoted:
                filesystem.delete_file(file.path)

    def remove_hours(self, table: Table, hours: Collection[datetime]) -> None:
        """Remove the files of the hours from `main`, as an accident would: the hours count as lost, not as empty."""
        self._replace(table, hours, [], MAIN)

    def data_uri(self, table: Table, attempt: str) -> str:
        """The folder for the files that an attempt writes."""
        return f"{self.root_uri}/data/{table.layer}/{table.name}/{attempt}"

    def _replace(self, table: Table, hours: Collection[datetime], uris: list[str], branch: str) -> None:
        """Replace the hours by files in one commit."""
        if hours:
            self.commit(table, replacing(table, hours, uris, branch))

    def commit(self, table: Table, change: Change) -> None:
        """Apply a change to the newest metadata; start over when another writer was faster, LakeConflict after twenty times."""
        self.commit_together([(table, change)])

    def commit_together(self, changes: Sequence[tuple[Table, Change]]) -> None:
        """Apply a change to each of some tables: all of them change, or none does. As `commit` where others were faster.

        pyiceberg's own retry would commit a plan made for the older state, and an hour would get the rows of both writers.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(LakeConflict),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.02, max=1),
            reraise=True,
        )
        for attempt in retrying:
            with attempt:
                loaded = [self._catalog.load_table(table.path) for table, _ in changes]
                try:
                    if len(changes) == 1:
                        changes[0][1](loaded[0])
                    else:
                        with self._catalog.together():
                            for (_, change), iceberg_table in zip(changes, loaded, strict=True):
                                change(iceberg_table)
                except (CommitFailedException, ValueError) as error:
                    newest = [self._catalog.load_table(table.path).metadata_location for table, _ in changes]
                    if newest == [one.metadata_location for one in loaded]:
                        raise
                    names = ", ".join(str(table) for table, _ in changes)
                    raise LakeConflict(
                        f"another writer keeps committing to lake table {names} ({error}); run it again"
                    ) from error

    def _plan(self, table: Table, row_filter: str | None, branch: str) -> list[LakeFile]:
        iceberg_table = self.load(table)
        if iceberg_table is None:
            return []
        scan = iceberg_table.scan() if row_filter is None else iceberg_table.scan(row_filter=row_filter)
        if branch != MAIN:
            scan = scan.use_ref(branch)
        elif iceberg_table.current_snapshot() is None:
            return []
        return sorted(
            (lake_file(task.file) for task in scan.plan_files()),
            key=lambda file: (file.hour, file.uri),
        )


def _check_columns(iceberg_table: IcebergTable, table: Table) -> None:
    if differing := differences(iceberg_table, table):
        raise PreconditionError(
            f"lake table {table} differs from its declaration in {', '.join(differing)}; `backfill migrate --plan` shows how "
            "both can agree again"
        )


def _first_snapshot(iceberg_table: IcebergTable) -> None:
    if iceberg_table.current_snapshot() is None:
        iceberg_table.append(iceberg_table.schema().as_arrow().empty_table())
