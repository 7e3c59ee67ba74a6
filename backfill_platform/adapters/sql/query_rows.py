"""The rows of a query for an hour. It runs in Spark's Python workers, without this package."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, CursorResult, DateTime, bindparam, create_engine, text
from sqlalchemy.pool import NullPool

from backfill_platform.adapters.records.taking import ROWS, Piece

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = re.compile(r"(?<![:\w\\]):(start|end)\b")


class SourceFailed(Exception):
    """What a database says about a query, without secrets."""


@dataclass(frozen=True)
class QueryReading:
    """The query, the address of the database, which is a secret, and the columns.

    `zoned` says whether the query gets its times with a zone. The columns are those of the query where none are given.
    """

    url: str
    query: str
    zoned: bool
    columns: tuple[str, ...] = ()


@contextmanager
def connected(reading: QueryReading) -> Iterator[Connection]:
    """A connection that changes nothing: what it did is rolled back. Raises SourceFailed."""
    try:
        with create_engine(reading.url, poolclass=NullPool).connect() as connection:
            yield connection
            connection.rollback()
    except Exception as error:  # noqa: BLE001 - each driver raises its own
        told = str(getattr(error, "orig", None) or error).strip().partition("\n")[0] or type(error).__name__
        raise SourceFailed(without_secrets(told, reading.url)) from None


def without_secrets(told: str, url: str) -> str:
    """A text of a driver without the address and what stands before its host."""
    secret = url.partition("://")[2].rpartition("@")[0]
    for hidden in (url, secret, secret.partition(":")[2]):
        told = told.replace(hidden, "***") if hidden else told
    return told


def execute(connection: Connection, reading: QueryReading, sql: str, hour: datetime | None) -> CursorResult[Any]:
    """The result of a statement with the times of an hour, each where it is used; of a span without length for None."""
    start, end = (_EPOCH, _EPOCH) if hour is None else (hour, hour + timedelta(hours=1))
    values = {name: one if reading.zoned else one.replace(tzinfo=None) for name, one in (("start", start), ("end", end))}
    used = set(TIMES.findall(sql))
    kind = DateTime(timezone=reading.zoned)
    bound = text(sql).bindparams(*(bindparam(name, type_=kind) for name in used))
    return connection.execute(bound, {name: values[name] for name in used})


def hour_reader(reading: QueryReading) -> Callable[[dict[str, Any]], Iterator[Piece]]:
    """Reads what the query gives for the hour that a row has in `_epoch`."""

    def read(row: dict[str, Any]) -> Iterator[Piece]:
        hour = datetime.fromtimestamp(row["_epoch"], UTC)
        with connected(reading) as connection:
            streamed = connection.execution_options(stream_results=True, max_row_buffer=ROWS)
            result = execute(streamed, reading, reading.query, hour)
            names = list(result.keys())
            places = [names.index(name) for name in reading.columns]
            for rows in result.partitions(ROWS):
                yield Piece([[_plain(one[place]) for one in rows] for place in places], len(rows))

    return read


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview | bytearray) else value
