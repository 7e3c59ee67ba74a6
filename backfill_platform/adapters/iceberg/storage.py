"""Where the files of the lake are."""

import pyarrow.fs

from backfill_platform.domain.uris import local_path


def located(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a URI, and the path in it."""
    local = local_path(uri)
    if local:
        return pyarrow.fs.LocalFileSystem(), local
    filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    return filesystem, path
