"""What a table of the lake holds: its files, hour by hour, from Iceberg's metadata alone.

A manifest never changes. What was read of one is kept in memory for as long as the table names it, so that a process that
looks again and again reads only what is new.
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
_READERS = 8  # of manifests at a time: an object store takes its time for each

Span = tuple[datetime, datetime]


@dataclass(frozen=True)
class LakeFile:
    """One Parquet file of a table; all its rows are owned by `hour`."""

    uri: str
    hour: datetime
    rows: int
    bytes: int


@dataclass(frozen=True)
class TableInventory:
    """What a table has: its files in the order of hours, the hours that are empty by right, and what each file spans.

    `snapshots` are the ids of all that it knows of, on `main` and on branches. `spans` are the bounds, both included, of a
    timestamp column by URI; files without bounds are absent.
    """

    files: tuple[LakeFile, ...] = ()
    empty: frozenset[datetime] = frozenset()
    snapshots: frozenset[int] = frozenset()
    spans: Mapping[str, Span] = field(default_factory=dict)


_Entry = tuple[LakeFile, Span | None]
# By table and column, the manifests that it had when it was last looked at.
_read: dict[tuple[UUID, int], Mapping[str, list[_Entry]]] = {}


def lake_file(file: DataFile) -> LakeFile:
    """A file as its manifest describes it."""
    return LakeFile(file.file_path, _EPOCH + timedelta(hours=file.partition[0]), file.record_count, file.file_size_in_bytes)


def main_files(found: IcebergTable, time: str) -> tuple[tuple[LakeFile, ...], dict[str, Span]]:
    """The files of `main` in the order of hours, and the bounds of the timestamp column `time` by URI, where it has a name.

    Without a scan's planning, which looks for delete files and filters that we do not have.
    """
    snapshot = found.current_snapshot()
    if snapshot is None:
        return (), {}
    column = found.schema().find_field(time).field_id if time else -1
    manifests = [one for one in snapshot.manifests(found.io) if one.content is ManifestContent.DATA]
    before = _read.get((found.metadata.table_uuid, column), {})
    new = [one for one in manifests if one.manifest_path not in before]
    with ThreadPoolExecutor(_READERS) as readers:
        entries = list(readers.map(lambda manifest: _entries(manifest, found.io, column), new))
    known = {**before, **dict(zip((one.manifest_path for one in new), entries, strict=True))}
    every = {one.manifest_path: known[one.manifest_path] for one in manifests}
    _read[found.metadata.table_uuid, column] = every
    listed = sorted((one for entries in every.values() for one in entries), key=lambda one: (one[0].hour, one[0].uri))
    return tuple(file for file, _ in listed), {file.uri: span for file, span in listed if span is not None}


def _entries(manifest: ManifestFile, io: FileIO, column: int) -> list[_Entry]:
    found: list[_Entry] = []
    for entry in manifest.fetch_manifest_entry(io):
        file = entry.data_file
        low, high = file.lower_bounds.get(column), file.upper_bounds.get(column)
        span = None if low is None or high is None else (_moment(low), _moment(high))
        found.append((lake_file(file), span))
    return found


def _moment(bound: bytes) -> datetime:
    """A timestamp as Iceberg keeps bounds: microseconds in eight bytes, the lowest first."""
    return _EPOCH + timedelta(microseconds=int.from_bytes(bound, "little", signed=True))
