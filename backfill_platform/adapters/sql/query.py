"""A SQL query as the source of a pipeline: the rows that it gives for an ingestion hour."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from backfill_platform.adapters.records.by_hour import RecordsByHour
from backfill_platform.adapters.records.connections import Connect
from backfill_platform.adapters.records.frames import let_travel, rows_of
from backfill_platform.adapters.records.inspection import Inspection
from backfill_platform.adapters.records.taking import Taken
from backfill_platform.adapters.sql import query_rows
from backfill_platform.adapters.sql.query_rows import TIMES, QueryReading, SourceFailed
from backfill_platform.domain.hours import HourRange, format_hour
from backfill_platform.errors import PreconditionError, SettingsError, SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from sqlalchemy import CursorResult

Answer = TypeVar("Answer")
_NOTHING: Taken = {}


@dataclass(frozen=True)
class SqlQuery:
    """A query that gives the rows of the half-open hour from `:start` to `:end`, which it must use both.

    `connection` names a `url` as SQLAlchemy writes it in the setting BACKFILL_CONNECTIONS. The times have the zone UTC; for
    columns without a zone, which must hold UTC, set `zoned=False`. `version` is a query with the same times whose first row
    tells a state of the hour from others, such as `SELECT count(*), max(changed_at) FROM ...`; without it, nobody sees that
    rows have changed. An hour without rows has not landed, unless it `may_be_empty`. Raises SpecError for a query without its
    times.
    """

    connection: str
    query: str
    version: str = ""
    zoned: bool = True
    may_be_empty: bool = False

    def __post_init__(self) -> None:
        if lacking := {"start", "end"} - set(TIMES.findall(self.query)):
            names = " and ".join(f":{name}" for name in sorted(lacking))
            raise SpecError(f"the query of {self.connection} must limit its rows by :start and :end; it lacks {names}")

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """The source of the hours, as text."""
        return (f"a query of {self.connection}",)

    def open(self, connect: Connect, clock: Callable[[], datetime]) -> QueryReader:
        """A reader of the query. The database is asked when it is first needed."""
        return QueryReader(self, connect, clock)


class QueryReader(RecordsByHour):
    """A query as landing reads it: each hour by one statement."""

    def __init__(self, declared: SqlQuery, connect: Connect, clock: Callable[[], datetime]) -> None:
        self._declared, self._connect, self._clock = declared, connect, clock

    def inspect(self, hours: Iterable[datetime], taken: Taken) -> Inspection:
        """Let the database count the rows of the hours.

        Hours are absent that are not over, or that have no rows and may not be empty. Raises PreconditionError for what the
        database says, and SpecError for a column that the query does not give.
        """
        self._columns(taken)
        hours = list(hours)
        absent, rows = self._not_over(hours), {}
        for hour in [hour for hour in hours if hour not in absent]:
            count = self._run(f"SELECT count(*) FROM ({self._query}) counted", hour, lambda result: int(result.scalar_one()))
            if count or self._declared.may_be_empty:
                rows[hour] = count
            else:
                absent[hour] = f"the query gives no rows of {format_hour(hour)}; may_be_empty=True lands it"
        return Inspection(absent, rows)

    def lines(self, spark: SparkSession, hours: Collection[datetime], taken: Taken = _NOTHING) -> DataFrame:
        """The rows of the hours with the columns `taken`, or with all of the query as text, and those that records have."""
        columns = self._columns(taken)
        let_travel(query_rows)
        read = query_rows.hour_reader(self._reading(columns))
        places = [(int(hour.timestamp()),) for hour in hours]
        return rows_of(spark, places, "_epoch bigint", read, taken or dict.fromkeys(columns, "string"))

    def versions(self, hours: Iterable[datetime]) -> dict[datetime, str]:
        """What the query of the version gives; nothing without one."""
        if not self._declared.version:
            return {}
        return {hour: ", ".join(map(str, self._asked(self._declared.version, hour))) for hour in hours}

    @property
    def _query(self) -> str:
        return self._declared.query.strip().rstrip(";")

    def _reading(self, columns: Iterable[str] = ()) -> QueryReading:
        name = self._declared.connection
        url = self._connect(name).get("url", "")
        if not url:
            raise SettingsError(
                f"the connection {name} of BACKFILL_CONNECTIONS has no url, such as postgresql://user@host/name"
            )
        return QueryReading(url, self._query, self._declared.zoned, tuple(columns))

    def _columns(self, taken: Taken) -> tuple[str, ...]:
        """The columns of the query to read, those taken or all. Raises SpecError where one is missing or there twice."""
        names = self._names()
        for name in taken or names:
            if names.count(name) != 1:
                what = "several columns" if name in names else "no column"
                raise SpecError(f"the query of {self._declared.connection} gives {what} '{name}'; it gives {', '.join(names)}")
        return tuple(taken or names)

    def _names(self) -> list[str]:
        return self._run(self._query, None, lambda result: list(result.keys()))

    def _asked(self, sql: str, hour: datetime) -> tuple[object, ...]:
        return self._run(sql, hour, lambda result: tuple(result.first() or ("no row",)))

    def _run(self, sql: str, hour: datetime | None, read: Callable[[CursorResult[Any]], Answer]) -> Answer:
        reading = self._reading()
        try:
            with query_rows.connected(reading) as connection:
                return read(query_rows.execute(connection, reading, sql, hour))
        except SourceFailed as error:
            raise PreconditionError(f"the query of {self._declared.connection} failed: {error}") from None
