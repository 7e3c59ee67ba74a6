"""What a lake table no longer needs: snapshots that nobody can be reading, and files that no snapshot has.

Iceberg keeps every snapshot until it is told otherwise, and its commits never delete a data file. A snapshot is needed while it
is the newest of a branch, and for some time after another one has replaced it: queries that began before may read its files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.fs
from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from backfill_platform.adapters.iceberg.changes import MAIN
from backfill_platform.adapters.iceberg.inventory import EXPIRED_UNTIL, expired_until
from backfill_platform.adapters.iceberg.lake import Lake, properties_of
from backfill_platform.adapters.records.storage import located, path_of
from backfill_platform.domain.tables import Table

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table as IcebergTable

_ENDINGS = (".parquet", ".avro", ".metadata.json")  # files of other kinds are somebody else's
_READERS = 8
_AT_ONCE = 1000  # pyiceberg looks each snapshot up from the first one on


# A repair that ends deletes the metadata of its branch; who reads it at that moment looks again.
_reading_again = retry(retry=retry_if_exception_type(FileNotFoundError), stop=stop_after_attempt(5), reraise=True)


@dataclass(frozen=True)
class Needed:
    """What is needed whatever its age: these snapshots, and the branches and files of the attempts `at_work`.

    Of all else, what was replaced or written before `until` is not needed. That must be longer ago than anything takes that
    reads or writes the lake.
    """

    until: datetime
    snapshots: Collection[int] = ()
    at_work: Callable[[], Collection[str]] = tuple


@dataclass(frozen=True)
class StoredFile:
    """A file of a lake table: its path on the file system of the lake, and its size in bytes."""

    path: str
    bytes: int


@dataclass(frozen=True)
class Unneeded:
    """What a lake table does not need any more, and the bytes of data and metadata that it keeps.

    `branches` are those of attempts that died.
    """

    branches: frozenset[str] = frozenset()
    snapshots: tuple[int, ...] = ()
    files: tuple[StoredFile, ...] = ()
    kept_data: int = 0
    kept_metadata: int = 0

    @property
    def bytes(self) -> int:
        """The size of the files."""
        return sum(file.bytes for file in self.files)


@_reading_again
def find_unneeded(lake: Lake, table: Table, needed: Needed) -> Unneeded:
    """What the table does not need any more; nothing where it does not exist. Changes nothing."""
    before = lake.load(table)
    if before is None:
        return Unneeded()
    filesystem, metadata = located(before.location())
    # Files and branches first, attempts second, metadata last: what is begun or committed meanwhile is seen.
    stored = _stored_files(filesystem, {metadata, _data_folder(lake, table)})
    alive = set(needed.at_work())
    now = lake.load(table) or before
    dead = frozenset(set(before.refs()) & set(now.refs()) - alive - {MAIN})
    snapshots = _expirable(now, needed, dead)
    reached = _reachable(now, snapshots)
    files = tuple(
        StoredFile(path, info.size)
        for path, info in stored.items()
        if path not in reached and _written_before(info, needed.until) and alive.isdisjoint(path.split("/"))
    )
    gone = {file.path for file in files}
    kept = {path: info.size for path, info in stored.items() if path not in gone}
    kept_data = sum(size for path, size in kept.items() if path.endswith(".parquet"))
    return Unneeded(dead, tuple(snapshots), files, kept_data, sum(kept.values()) - kept_data)


def remove_unneeded(lake: Lake, table: Table, needed: Needed) -> Unneeded:
    """Remove what the table does not need any more: branches and snapshots in one commit, then the files. Returns what it was.

    Raises LakeConflict when others keep committing. A crash between leaves files, which the next time finds.
    """
    found = find_unneeded(lake, table, needed)
    if not found.branches and not found.snapshots and not found.files:
        return found
    lake.commit(table, lambda iceberg_table: _forget(iceberg_table, table, found, needed))
    return _delete_of(lake, table, needed, found)


@_reading_again
def _delete_of(lake: Lake, table: Table, needed: Needed, found: Unneeded) -> Unneeded:
    """Delete the files that are still not needed, now that the snapshots are gone; what was done."""
    after = lake.load(table)
    if after is None:
        return found
    # A snapshot may have got a branch meanwhile, and a repair may have begun.
    reached, alive = _reachable(after), set(needed.at_work())
    unneeded = tuple(file for file in found.files if file.path not in reached and alive.isdisjoint(file.path.split("/")))
    there = {snapshot.snapshot_id for snapshot in after.metadata.snapshots}
    found = replace(
        found,
        branches=found.branches - set(after.refs()),
        snapshots=tuple(one for one in found.snapshots if one not in there),
        files=unneeded,
    )
    _delete(located(after.location())[0], found.files, _data_folder(lake, table))
    return found


def _forget(table: IcebergTable, declared: Table, found: Unneeded, needed: Needed) -> None:
    dead = found.branches & set(table.refs()) - set(needed.at_work())
    heads = {ref.snapshot_id for name, ref in table.refs().items() if name not in dead}
    there = {snapshot.snapshot_id for snapshot in table.snapshots()} - heads
    waiting = iter([one for one in found.snapshots if one in there])
    with table.transaction() as transaction:
        for branch in dead:
            ManageSnapshots(transaction).remove_branch(branch).commit()
        while some := list(islice(waiting, _AT_ONCE)):
            ExpireSnapshots(transaction).by_ids(some).commit()
        until = max(needed.until.astimezone(UTC), expired_until(table))
        transaction.set_properties({**properties_of(declared), EXPIRED_UNTIL: until.isoformat()})


def _expirable(table: IcebergTable, needed: Needed, dead: Collection[str]) -> list[int]:
    """The snapshots that were replaced before the time, the oldest first; none that is needed, or the head of a live branch."""
    limit = int(needed.until.timestamp() * 1000)
    kept = {ref.snapshot_id for name, ref in table.refs().items() if name not in dead} | set(needed.snapshots)
    replaced = {entry.snapshot_id: after.timestamp_ms for entry, after in pairwise(table.metadata.snapshot_log)}
    return [
        snapshot.snapshot_id
        for snapshot in table.metadata.snapshots
        if snapshot.snapshot_id not in kept and replaced.get(snapshot.snapshot_id, snapshot.timestamp_ms) < limit
    ]


def _stored_files(filesystem: pyarrow.fs.FileSystem, folders: Iterable[str]) -> dict[str, pyarrow.fs.FileInfo]:
    """The files below the folders, by path."""
    found = [
        info
        for folder in folders
        for info in filesystem.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True, recursive=True))
    ]
    return {info.path: info for info in found if info.type is pyarrow.fs.FileType.File and info.path.endswith(_ENDINGS)}


def _written_before(info: pyarrow.fs.FileInfo, until: datetime) -> bool:
    return info.mtime is not None and info.mtime.astimezone(UTC) < until


def _reachable(table: IcebergTable, without: Collection[int] = ()) -> set[str]:
    """The paths of all files that the metadata of a table needs, once the snapshots in `without` have expired."""
    gone = set(without)
    snapshots = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in gone]
    found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    found |= {snapshot.manifest_list for snapshot in snapshots}
    manifests: dict[str, ManifestFile] = {}
    with ThreadPoolExecutor(_READERS) as readers:
        for listed in readers.map(lambda snapshot: snapshot.manifests(table.io), snapshots):
            manifests.update((manifest.manifest_path, manifest) for manifest in listed)
        for entries in readers.map(lambda manifest: manifest.fetch_manifest_entry(table.io), manifests.values()):
            found |= {entry.data_file.file_path for entry in entries}
    return {path_of(uri) for uri in found | manifests.keys()}


def _delete(filesystem: pyarrow.fs.FileSystem, files: Collection[StoredFile], below: str) -> None:
    """Delete the files, and on a local disk the folders below `below` that become empty by that."""
    for file in files:
        with suppress(FileNotFoundError):  # a commit meanwhile has deleted it: pyiceberg removes old metadata files itself
            filesystem.delete_file(file.path)
    if not isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        return
    folders = {folder for file in files for folder in Path(file.path).parents if folder.is_relative_to(below)} - {Path(below)}
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        with suppress(OSError):  # it is not empty
            folder.rmdir()


def _data_folder(lake: Lake, table: Table) -> str:
    return path_of(lake.data_uri(table, "")).rstrip("/")
