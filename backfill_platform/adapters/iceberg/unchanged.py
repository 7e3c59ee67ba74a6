"""Hours that were written again exactly as they are: their files need not be replaced."""

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from hashlib import blake2b

import pyarrow.fs

from backfill_platform.adapters.iceberg.inventory import LakeFile
from backfill_platform.adapters.records.storage import located

_CHUNK = 1 << 20


def unchanged_hours(stored: Iterable[LakeFile], written: Iterable[LakeFile]) -> set[datetime]:
    """The hours whose `written` files equal the `stored` ones byte by byte. Rows in another order count as a change."""
    before, after = _by_hour(stored), _by_hour(written)
    alike = {hour for hour, files in after.items() if _sizes(files) == _sizes(before.get(hour, []))}
    digests = _digests([file for hour in alike for file in (*before[hour], *after[hour])])
    return {
        hour
        for hour in alike
        if sorted(digests[file.uri] for file in before[hour]) == sorted(digests[file.uri] for file in after[hour])
    }


def _by_hour(files: Iterable[LakeFile]) -> dict[datetime, list[LakeFile]]:
    found: dict[datetime, list[LakeFile]] = defaultdict(list)
    for file in files:
        found[file.hour].append(file)
    return found


def _sizes(files: Iterable[LakeFile]) -> list[int]:
    return sorted(file.bytes for file in files)


def _digests(files: Iterable[LakeFile]) -> dict[str, bytes]:
    """A digest of each file, empty for one that cannot be read: no file that was just written has that."""
    uris = [file.uri for file in files]
    with ThreadPoolExecutor() as readers:
        return dict(zip(uris, readers.map(_digest, uris), strict=True))


def _digest(uri: str) -> bytes:
    filesystem, path = located(uri)
    found = blake2b(digest_size=32)
    try:
        with filesystem.open_input_stream(path) as stream:
            while chunk := stream.read(_CHUNK):
                found.update(chunk)
    except OSError:
        return b""
    return found.digest()


def delete_files(uris: Iterable[str]) -> None:
    """Delete files that nothing names; those that are gone already are no error."""
    for uri in uris:
        filesystem, path = located(uri)
        if filesystem.get_file_info(path).type is pyarrow.fs.FileType.File:
            filesystem.delete_file(path)
