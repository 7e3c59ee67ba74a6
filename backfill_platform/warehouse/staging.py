"""Staging tables of one attempt: `desired`, what the hours should hold, and `delta`, what would make it so.

`desired` is a plain MergeTree without partitions, not a copy of the target: a collapsing table would merge duplicates away
before they are counted, and a TTL copied from the target would drop rows. `delta` is created `AS` the target, because its
parts are attached to it.

An attempt starts by dropping the staging tables of all earlier attempts at the same target. `DROP ... SYNC` waits for the
statements that still use them, and an older attempt that is still alive finds its delta gone and cannot publish any more.
Therefore no table is ever created for a second time, and each has a random part in its name: a repair that is resumed under
its old name must not lend a half-written delta to the process it replaces.
"""

import logging
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

from backfill_platform.core.hours import format_hour
from backfill_platform.core.tables import Table
from backfill_platform.errors import BackfillError, CheckFailed, UsageError
from backfill_platform.warehouse.client import Warehouse
from backfill_platform.warehouse.ddl import column_definitions, database_statement
from backfill_platform.warehouse.preconditions import check_target
from backfill_platform.warehouse.sql import (
    FILE_SETTINGS,
    files_source,
    hour_from,
    hour_number,
    identifier,
    literal,
    names,
    qualified,
    sorting_key,
    target_name,
    within,
)

logger = logging.getLogger(__name__)

STAGING_DATABASE = "backfill_staging"
PATCHES_DATABASE = "backfill_patches"
_ATTEMPT = re.compile(r"[a-z0-9_]{1,64}\Z")
_ROWS_PER_INSERT = 50_000
# async_insert would answer before the rows are there; the rest keeps one statement from being cut by partitions.
_INSERT_SETTINGS = {"async_insert": 0, "optimize_on_insert": 0, "max_partitions_per_insert_block": 0}

OnStep = Callable[[str], None]


def no_step(step: str) -> None:
    """The default of every `on_step`: nobody listens."""


class Staging:
    """The staging tables of one attempt at one target; `with Staging(...) as staging:` creates and drops them.

    `keep()` leaves them for inspection; the next attempt at the target drops them. Only one attempt at a target may be alive
    at a time, a dry run included: a new one fences the older.
    """

    def __init__(self, warehouse: Warehouse, table: Table, attempt: str, *, on_step: OnStep = no_step) -> None:
        if not _ATTEMPT.match(attempt):
            raise UsageError(f"'{attempt}' cannot name an attempt; use up to 64 lower case letters, digits and _")
        self.warehouse = warehouse
        self.table = table
        self.attempt = attempt
        prefix = f"__bf_{table.layer}_{table.name}_{attempt}_{uuid.uuid4().hex[:8]}"
        self.desired_name = f"{prefix}_desired"
        self.delta_name = f"{prefix}_delta"
        self.patch_name = prefix.removeprefix("__bf_")
        self._on_step = on_step
        self._kept = False

    @property
    def desired(self) -> str:
        """The quoted table of the rows that should be stored; declared columns, no sign."""
        return qualified(STAGING_DATABASE, self.desired_name)

    @property
    def delta(self) -> str:
        """The quoted table of cancels and states, structured like the target."""
        return qualified(STAGING_DATABASE, self.delta_name)

    @property
    def patch(self) -> str:
        """The quoted table under which the delta is kept when it is published."""
        return qualified(PATCHES_DATABASE, self.patch_name)

    def __enter__(self) -> "Staging":
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._kept:
            logger.warning("keeping %s and %s for inspection", self.desired, self.delta)
            return
        try:
            self.drop()
        except BackfillError as failure:  # what was done stays done, and the next attempt drops them
            logger.warning("could not drop the staging tables of attempt %s: %s", self.attempt, failure)

    def open(self) -> None:
        """Check the target, fence all earlier attempts at it, create both tables.

        Raises PreconditionError when the target cannot be repaired safely.
        """
        check_target(self.warehouse, self.table)
        fence(self.warehouse, self.table)
        self._on_step("fenced")
        comment = literal(str(self.table))
        columns = ", ".join(column_definitions(self.table))
        create_desired = (
            f"CREATE TABLE {self.desired} ({columns}) ENGINE = MergeTree ORDER BY ({names(sorting_key(self.table))}) "
            f"COMMENT {comment}"
        )
        create_delta = f"CREATE TABLE {self.delta} AS {target_name(self.table)} COMMENT {comment}"
        for statement in (database_statement(STAGING_DATABASE), create_desired, create_delta):
            self.warehouse.command(statement, doing=f"creating the staging tables of {self.table}")
        self._on_step("created")

    def query_id(self, step: str) -> str:
        """Names a long statement in `system.processes` and `system.query_log`."""
        return f"{self.attempt}:{self.table}:{step}"

    def keep(self) -> None:
        """Do not drop the tables at the end of the `with`."""
        self._kept = True

    def drop(self) -> None:
        """Drop both tables, once the statements that use them are done."""
        for name in (self.desired, self.delta):
            self.warehouse.command(f"DROP TABLE IF EXISTS {name} SYNC", doing=f"dropping {name}")

    def load_files(self, paths: Sequence[str], expected: Mapping[datetime, int]) -> int:
        """Load the lake's Parquet files with one statement, check the rows of each hour against `expected`, return their sum.

        No files are an empty desired state. Raises PreconditionError for unreadable paths, WarehouseError for a value that
        does not fit its column, CheckFailed when the counts differ.
        """
        if paths:
            self.warehouse.command(
                f"INSERT INTO {self.desired} ({names(self.table.column_names)}) {files_source(self.table, paths)}",
                settings={**FILE_SETTINGS, **_INSERT_SETTINGS},
                query_id=self.query_id("load"),
                doing=f"loading {len(paths)} files of the lake for {self.table}",
            )
        loaded = self._count_rows(expected)
        self._on_step("loaded")
        return loaded

    def load_rows(self, rows: Iterable[Mapping[str, Any]], expected: Mapping[datetime, int]) -> int:
        """Load Python rows, check the rows of each hour against `expected`, return their sum.

        Raises UsageError when a row has other columns than declared, CheckFailed when the counts differ.
        """
        columns = self.table.column_names
        batch: list[list[Any]] = []
        for row in rows:
            if row.keys() != set(columns):
                wrong = ", ".join(sorted(row.keys() ^ set(columns)))
                raise UsageError(f"{self.table}: a row has other columns than declared: {wrong}")
            batch.append([row[name] for name in columns])
            if len(batch) == _ROWS_PER_INSERT:
                self._insert(batch)
                batch = []
        self._insert(batch)
        loaded = self._count_rows(expected)
        self._on_step("loaded")
        return loaded

    def validate(self, hours: Collection[datetime]) -> dict[datetime, CheckFailed]:
        """The hours whose desired rows cannot be published, because two of them have the same key.

        Raises CheckFailed when rows lie outside the hours or beside the full hour: then the whole load is not what was asked
        for.
        """
        hour = identifier(self.table.hour)
        where = within(self.table, hours)
        ((outside, beside, first, last),) = self.warehouse.rows(
            f"SELECT countIf(NOT {where.sql}), countIf({hour} != toStartOfHour({hour})), toString(min({hour})), "
            f"toString(max({hour})) FROM {self.desired}",
            parameters=where.parameters,
            doing=f"checking the hours of the desired rows of {self.table}",
        )
        if outside or beside:
            problem = (
                f"{outside} desired rows lie outside the hours asked for" if outside else f"{beside} lie beside the full hour"
            )
            raise CheckFailed(
                f"{self.table}: {problem} (the column {self.table.hour} runs from {first} to {last}); nothing was published. "
                "Rows must be owned by the hours that are repaired"
            )
        repeated = self.warehouse.rows(
            f"SELECT {hour_number(self.table)} AS __hour, sum(__rows - 1) FROM (SELECT {hour}, count() AS __rows "
            f"FROM {self.desired} GROUP BY {names(sorting_key(self.table))} HAVING __rows > 1) GROUP BY __hour",
            settings={"optimize_aggregation_in_order": 1},  # the rows are sorted by it: memory does not grow with them
            doing=f"looking for repeated keys in the desired rows of {self.table}",
        )
        return {
            hour_from(number): CheckFailed(
                f"{self.table} {format_hour(hour_from(number))}: {rows} desired rows repeat a key "
                f"({', '.join(sorting_key(self.table))}); the transform must give one row for each key"
            )
            for number, rows in repeated
        }

    def _insert(self, batch: Sequence[Sequence[Any]]) -> None:
        self.warehouse.insert_rows(
            STAGING_DATABASE,
            self.desired_name,
            self.table.column_names,
            batch,
            settings=_INSERT_SETTINGS,
            doing=f"loading {len(batch)} rows for {self.table}",
        )

    def _count_rows(self, expected: Mapping[datetime, int]) -> int:
        found = self.warehouse.rows(
            f"SELECT {hour_number(self.table)} AS __hour, count() FROM {self.desired} GROUP BY __hour",
            doing=f"counting the desired rows of {self.table}",
        )
        loaded = {hour_from(number): rows for number, rows in found}
        wrong = sorted(hour for hour in loaded.keys() | expected.keys() if loaded.get(hour, 0) != expected.get(hour, 0))
        if wrong:
            counts = ", ".join(
                f"{format_hour(hour)} {loaded.get(hour, 0)} instead of {expected.get(hour, 0)}" for hour in wrong[:10]
            )
            more = f" and {len(wrong) - 10} more hours" if len(wrong) > 10 else ""
            raise CheckFailed(
                f"{self.table}: other row counts were loaded than the lake has: {counts}{more}; "
                "nothing was published, load again"
            )
        return sum(loaded.values())


def fence(warehouse: Warehouse, table: Table) -> int:
    """Drop the staging tables of every earlier attempt at the target, waiting for statements that use them; return how many.

    They are known by their comment, not by their prefix: one table's name may begin with another's.
    """
    found = warehouse.rows(
        "SELECT name FROM system.tables WHERE database = {database:String} AND comment = {target:String} "
        "AND startsWith(name, '__bf_')",
        parameters={"database": STAGING_DATABASE, "target": str(table)},
        doing=f"looking for earlier attempts at {table}",
    )
    for (name,) in found:
        warehouse.command(
            f"DROP TABLE IF EXISTS {qualified(STAGING_DATABASE, name)} SYNC",
            doing=f"fencing an earlier attempt at {table}",
        )
    return len(found)
