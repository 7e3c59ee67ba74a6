"""Writing the rows of hours as Parquet: one folder for each hour, so that no file holds two hours."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow.fs
from pyspark.sql import functions as F

from backfill_platform.domain.uris import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FOLDER = "_hour"
_FORMAT = "yyyy-MM-dd-HH"


def write_by_hour(rows: DataFrame, uri: str, *, hour: str, sort_by: tuple[str, ...] = ()) -> dict[datetime, list[str]]:
    """Write the rows below `uri`, which must be new, and return the files of each hour that has rows.

    Spark's commit protocol makes the set of files exact: a task that ran twice leaves no extra files.
    """
    (
        rows.withColumn(_FOLDER, F.date_format(hour, _FORMAT))
        .repartition(_FOLDER)
        .sortWithinPartitions(_FOLDER, *sort_by)
        .write.partitionBy(_FOLDER)
        .parquet(uri)
    )
    return _files_by_hour(uri)


def _files_by_hour(uri: str) -> dict[datetime, list[str]]:
    local = local_path(uri)
    filesystem, root = (pyarrow.fs.LocalFileSystem(), local) if local else pyarrow.fs.FileSystem.from_uri(uri)
    infos = filesystem.get_file_info(pyarrow.fs.FileSelector(root, recursive=True, allow_not_found=True))
    scheme = uri.split("://", 1)[0] + "://"
    files: dict[datetime, list[str]] = {}
    for info in infos:
        if info.type != pyarrow.fs.FileType.File or not info.path.endswith(".parquet"):
            continue
        folder = info.path.rsplit("/", 2)[1]
        value = folder.removeprefix(f"{_FOLDER}=")
        hour = datetime.strptime(value, "%Y-%m-%d-%H").replace(tzinfo=UTC)
        files.setdefault(hour, []).append(scheme + info.path)
    return files
