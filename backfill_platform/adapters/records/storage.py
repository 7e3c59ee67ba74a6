"""Where files are, for whoever reads or writes them by Arrow.

Local paths and keys of buckets are taken as they are, not percent-encoded, so they may also be patterns.
"""

import pyarrow.fs

from backfill_platform.domain.object_store import SCHEME, is_object
from backfill_platform.domain.uris import local_path


def located(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a URI, and the path in it."""
    path = path_of(uri)
    if local_path(uri) is not None:
        return pyarrow.fs.LocalFileSystem(), path
    filesystem, _ = pyarrow.fs.FileSystem.from_uri(f"{SCHEME}{path.partition('/')[0]}" if is_object(uri) else uri)
    return filesystem, path


def path_of(uri: str) -> str:
    """The path of a URI in its file system, which is not opened for it where that can be avoided."""
    local = local_path(uri)
    if local is not None:
        return local
    return uri.removeprefix(SCHEME) if is_object(uri) else str(pyarrow.fs.FileSystem.from_uri(uri)[1])
