"""The inventory of a lake table: its files by hour, from Iceberg's metadata alone.

A manifest never changes. Its entries stay in memory for as long as the table lists it, so that a process that takes the
inventory again reads only new manifests.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestContent

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table as IcebergTable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READERS = 8  # manifests read at the same time: with an object store each takes a while

TimeSpan = tuple[datetime, datetime]


@dataclass(frozen=True)
class LakeFile:
    """One Parquet file of a table; all its rows are owned by `hour`."""

    uri: str
    hour: datetime
    rows: int
    bytes: int


@dataclass(frozen=True)
class TableInventory:
    """The files of a table in the order of hours, and the hours that are recorded as empty.

    `table_id` tells the table from one of the same name in another lake. `snapshots` has the ids of all its snapshots, on
    `main` and on branches; those that were replaced before `expired_until` may have expired. `spans` has the bounds, both
    included, of a timestamp column by URI; files without bounds are absent.
    """

    files: tuple[LakeFile, ...] = ()
    empty: frozenset[datetime] = frozenset()
    table_id: str = ""
    snapshots: frozenset[int] = frozenset()
    expired_until: datetime = _EPOCH
    spans: Mapping[str, TimeSpan] = field(default_factory=dict)


EXPIRED_UNTIL = "backfill.snapshots-expired-until"  # table property: an ISO 8601 time

_Entry = tuple[LakeFile, TimeSpan | None]
# By table and column, the manifests of the last inventory.
_read: dict[tuple[UUID, int], Mapping[str, list[_Entry]]] = {}


def lake_file(file: DataFile) -> LakeFile:
    """A file as its manifest describes it."""
    return LakeFile(file.file_path, _EPOCH + timedelta(hours=file.partition[0]), file.record_count, file.file_size_in_bytes)


def expired_until(table: IcebergTable) -> datetime:
    """The time before which replaced snapshots may have expired, UTC; 1970 where nothing has."""
    noted = table.properties.get(EXPIRED_UNTIL)
    return datetime.fromisoformat(noted) if noted else _EPOCH


def main_files(table: IcebergTable, time: str) -> tuple[tuple[LakeFile, ...], dict[str, TimeSpan]]:
    """The files of `main` in the order of hours, and the bounds of the timestamp column `time` (none if empty) by URI.

    It does not plan a scan, which would look for delete files and filters that we do not have.
    """
    snapshot = table.current_snapshot()
    if snapshot is None:
        return (), {}
    column = table.schema().find_field(time).field_id if time else -1
    manifests = {m.manifest_path: m for m in snapshot.manifests(table.io) if m.content is ManifestContent.DATA}
    cached = _read.get((table.metadata.table_uuid, column), {})
    new = [path for path in manifests if path not in cached]
    with ThreadPoolExecutor(_READERS) as readers:
        entries = list(readers.map(lambda path: _entries(manifests[path], table.io, column), new))
    by_manifest = {**cached, **dict(zip(new, entries, strict=True))}
    current = {path: by_manifest[path] for path in manifests}
    _read[table.metadata.table_uuid, column] = current
    listed = sorted(
        (entry for listing in current.values() for entry in listing), key=lambda entry: (entry[0].hour, entry[0].uri)
    )
    return tuple(file for file, _ in listed), {file.uri: span for file, span in listed if span is not None}


def _entries(manifest: ManifestFile, io: FileIO, column: int) -> list[_Entry]:
    entries: list[_Entry] = []
    for entry in manifest.fetch_manifest_entry(io):
        file = entry.data_file
        low, high = file.lower_bounds.get(column), file.upper_bounds.get(column)
        span = None if low is None or high is None else (_moment(low), _moment(high))
        entries.append((lake_file(file), span))
    return entries


def _moment(bound: bytes) -> datetime:
    """A timestamp as Iceberg stores bounds: microseconds in eight bytes, little endian."""
    return _EPOCH + timedelta(microseconds=int.from_bytes(bound, "little", signed=True))
