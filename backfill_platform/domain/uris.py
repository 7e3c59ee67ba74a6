"""URIs of files that Spark, Iceberg and ClickHouse all read in the same way.

A file on a local disk is `file://` and its absolute path as it is, not percent-encoded: Hadoop and pyiceberg take the text
after `file://` literally, so `%20` would name another folder than a space.
"""

from pathlib import Path

_LOCAL = "file://"


def local_uri(path: Path) -> str:
    """The URI of an absolute local path."""
    return f"{_LOCAL}{path.absolute()}"


def local_path(uri: str) -> str | None:
    """The path of a local URI (or of a bare path), None for a URI of another kind, such as object storage."""
    if uri.startswith(_LOCAL):
        return uri.removeprefix(_LOCAL)
    return None if "://" in uri else uri


def without_password(uri: str) -> str:
    """The URI for people: without user, password and options, which may hold secrets, however badly it is written."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return "(no URI)"
    _, at, place = rest.rpartition("@")
    return f"{scheme}://{'***@' if at else ''}{place.partition('?')[0].partition('#')[0]}"
