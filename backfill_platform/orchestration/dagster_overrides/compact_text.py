"""The texts of Dagster's events, packed: what all events say alike lies once in a dictionary and not in every row.

An event is about 2,000 letters of JSON, of which two or three hundred are its own. Packed it is the deflated text with `z1:` in
front, 60 to 250 bytes: as such in SQLite, as base64 where a text column takes no bytes. Texts that are not packed are read as
they are, so a history of an older version stays readable; a plain Dagster cannot read packed ones.
"""

import base64
import zlib
from functools import cache
from importlib.resources import files
from typing import Any

import sqlalchemy as db
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable

from backfill_platform.errors import UsageError

# Names the dictionary. A changed dictionary needs a name of its own, beside the old one: without its dictionary a text is lost.
_FORMAT = b"z1:"
_MARK = "z"  # the first letter of all formats; the texts are JSON
_DICTIONARY = "event_dictionary_1.txt"
_RAW_DEFLATE = -15


class CompactText(db.types.TypeDecorator[str]):
    """A text column that is packed when it is written and unpacked when it is read."""

    impl = db.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: db.Dialect) -> Any:
        """The stored form of a text: packed, or itself where that is shorter."""
        if value is None:
            return None
        packed = pack(value)
        # SQLite stores whatever a value is, in columns of any type.
        stored = packed if dialect.name == "sqlite" else _FORMAT.decode() + base64.b64encode(packed[len(_FORMAT) :]).decode()
        return stored if len(stored) < len(value) or value.startswith(_MARK) else value

    def process_result_value(self, value: Any, dialect: db.Dialect) -> str | None:
        """The text of a stored form. Raises UsageError for one that a newer version has written."""
        if isinstance(value, bytes):
            return unpack(value)
        if value is None or not value.startswith(_MARK):
            return value  # type: ignore[no-any-return]  # a text that is not packed
        kind, _, letters = value.partition(":")
        return unpack(f"{kind}:".encode() + base64.b64decode(letters))


def store_compactly() -> None:
    """Let this process pack the texts of events and of check executions, in whatever storage it writes them to."""
    for column in (SqlEventLogStorageTable.c.event, AssetCheckExecutionsTable.c.evaluation_event):
        column.type = CompactText()


def pack(text: str) -> bytes:
    """The packed form of a text."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, _RAW_DEFLATE, 9, zlib.Z_DEFAULT_STRATEGY, _dictionary())
    return _FORMAT + deflate.compress(text.encode()) + deflate.flush()


def unpack(packed: bytes) -> str:
    """The text of a packed form. Raises UsageError for one that a newer version has written."""
    if not packed.startswith(_FORMAT):
        raise UsageError("this Dagster history was written by a newer version of the platform; use that one, or a later one")
    inflate = zlib.decompressobj(_RAW_DEFLATE, _dictionary())
    return (inflate.decompress(packed[len(_FORMAT) :]) + inflate.flush()).decode()


@cache
def _dictionary() -> bytes:
    return files(__package__).joinpath(_DICTIONARY).read_bytes()
