"""The messages that a replay sends, fixed before the first one is sent: ordered files, and a manifest that is written last.

A replay that died continues with the same files, so every message keeps its position.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from backfill_platform.adapters.records.storage import located
from backfill_platform.domain.pacing import Limits
from backfill_platform.errors import UsageError

COLUMNS = ("moment", "hour", "margin", "partition", "key", "value", "headers", "origin", "stamp")
_ROWS = 20_000


@dataclass(frozen=True)
class Manifest:
    """What was selected from one pipeline: for which replay and topic, and how many messages.

    `counts` are the rows of each event hour (`1998-04-30T22`), `margins` how many of these lie outside the requested owning
    hours. `begins` are the end offsets of the topic's partitions when the replay began.
    """

    replay: str
    pipeline: str
    topic: str
    counts: Mapping[str, int]
    margins: Mapping[str, int]
    begins: Mapping[str, int]
    files: tuple[str, ...]

    @property
    def rows(self) -> int:
        """The number of all messages."""
        return sum(self.counts.values())


class Selection:
    """The folder of a replay of one pipeline, below the root of the lake."""

    def __init__(self, root_uri: str, replay: str, pipeline: str) -> None:
        self.uri = f"{root_uri}/replay/{replay}/{pipeline}"
        self._filesystem, self._path = located(self.uri)

    @property
    def rows_uri(self) -> str:
        """Where Spark writes the rows."""
        return f"{self.uri}/rows"

    def discard_rows(self) -> None:
        """Delete rows without a manifest: the process that selected them died."""
        if self._filesystem.get_file_info(f"{self._path}/rows").type is not pyarrow.fs.FileType.NotFound:
            self._filesystem.delete_dir(f"{self._path}/rows")

    def row_files(self) -> tuple[str, ...]:
        """The files of rows, in their order."""
        selector = pyarrow.fs.FileSelector(f"{self._path}/rows", allow_not_found=True)
        return tuple(sorted(info.path for info in self._filesystem.get_file_info(selector) if info.path.endswith(".parquet")))

    def column(self, *names: str) -> pa.Table:
        """Columns of all rows, in order."""
        files = [pq.read_table(path, columns=list(names), filesystem=self._filesystem) for path in self.row_files()]
        return pa.concat_tables(files) if files else pa.table({name: [] for name in names})

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest: from now on the selection is fixed."""
        self._write("manifest.json", asdict(manifest))

    def manifest(self) -> Manifest | None:
        """The manifest, None where no selection was completed."""
        stored = self._read("manifest.json")
        return None if stored is None else Manifest(**{**stored, "files": tuple(stored["files"])})

    def batches(self, manifest: Manifest) -> Iterator[tuple[int, dict[str, list[Any]]]]:
        """The rows in order, in portions: the position of the first row, and the columns as lists."""
        position = 0
        for path in manifest.files:
            with pq.ParquetFile(path, filesystem=self._filesystem) as file:
                for batch in file.iter_batches(_ROWS, columns=list(COLUMNS)):
                    yield position, batch.to_pydict()
                    position += batch.num_rows

    def set_limits(self, limits: Limits) -> None:
        """Change the limits of the replay, even while it runs. Raises UsageError when there is no such replay."""
        if self.manifest() is None:
            raise UsageError(f"there is no replay with rows in {self.uri}")
        self._write("limits.json", asdict(limits))

    def limits(self) -> Limits | None:
        """The limits that were set last, None where there are none."""
        stored = self._read("limits.json")
        return None if stored is None else Limits(**stored)

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        self._filesystem.create_dir(self._path, recursive=True)
        with self._filesystem.open_output_stream(f"{self._path}/.{name}") as stream:
            stream.write(json.dumps(value).encode())
        self._filesystem.move(f"{self._path}/.{name}", f"{self._path}/{name}")

    def _read(self, name: str) -> Any:
        path = f"{self._path}/{name}"
        if self._filesystem.get_file_info(path).type is pyarrow.fs.FileType.NotFound:
            return None
        with self._filesystem.open_input_stream(path) as stream:
            return json.loads(stream.read())
