"""Staging tables of one attempt: `desired` has the rows that the hours should hold, `delta` the change that is needed.

`desired` is a plain MergeTree without partitions, not a copy of the target: a collapsing table would merge duplicates away
before they are counted, and a TTL copied from the target would drop rows. `delta` is created `AS` the target, because its
parts are attached to it; where the target does not collapse, it has a sign besides, and what is published is made from it
(`rows`).

An attempt starts by taking the lease of its hours, settling what attempts without a lease have published (`leftovers`), and
dropping their staging tables. `DROP ...
SYNC` waits for the statements that still use them, and an older attempt that wakes up finds its delta gone and can no longer
publish. Therefore no table is ever created twice, and each has a random part in its name: a repair that is resumed under its
old name must not offer a half-written delta to the process it replaces.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from enum import StrEnum
from types import TracebackType
from typing import Any

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.column_types import converted, file_structure, needs_conversion
from backfill_platform.adapters.clickhouse.preconditions import check_target
from backfill_platform.adapters.clickhouse.publishing.leases import LEASE_SECONDS, Lease, live_holders
from backfill_platform.adapters.clickhouse.publishing.leftovers import began_to_publish, settle
from backfill_platform.adapters.clickhouse.publishing.pull import pull_files
from backfill_platform.adapters.clickhouse.publishing.push import push_files
from backfill_platform.adapters.clickhouse.schema import (
    PATCHES_DATABASE,
    STAGING_DATABASE,
    column_definitions,
    database_statement,
)
from backfill_platform.adapters.clickhouse.sql import (
    EVERY_HOUR,
    hour_from,
    hour_number,
    literal,
    names,
    of_tenants,
    qualified,
    sign_of,
    sorting_key,
    target_name,
    within,
)
from backfill_platform.adapters.clickhouse.target import Mode, Target
from backfill_platform.domain.hours import HourRange, format_hour
from backfill_platform.domain.tables import Table
from backfill_platform.errors import BackfillError, CheckFailed, UsageError

logger = logging.getLogger(__name__)

_ATTEMPT = re.compile(r"[a-z0-9_]{1,64}\Z")
OWNER = "owner"  # of the table of differing rows: the time by which a row belongs to its hour
_ROWS_PER_INSERT = 50_000
# async_insert would answer before the rows are there; the rest keeps one statement from being cut by partitions.
INSERT_SETTINGS = {"async_insert": 0, "optimize_on_insert": 0, "max_partitions_per_insert_block": 0}
# clickhouse-connect sends rows again when the answer is lost: the desired table remembers their tokens.
REMEMBERED_INSERTS = 1000

OnStep = Callable[[str], None]


def no_step(step: str) -> None:
    """The default of every `on_step`: do nothing."""


class Loading(StrEnum):
    """How rows come from the lake into the warehouse."""

    PULL = "pull"  # the server itself reads the lake's files, with one statement
    PUSH = "push"  # we read them and send Arrow, for a server that cannot reach the lake


class Staging:
    """The staging tables of one attempt at hours of a target; `with Staging(...) as staging:` creates and drops them.

    `exclusive` attempts may publish: there is one at a time for each hour. Dry runs (`exclusive=False`) wait for nobody.
    With `rewrites_partitions`, or where every publish replaces partitions, the attempt also leases the other hours of its
    partitions; where it is unknown which these are, all hours.
    `keep()` leaves the tables for inspection; the next attempt at the target drops them.
    """

    target: Target  # set by `open`
    lease: Lease  # the same

    def __init__(
        self,
        warehouse: Warehouse,
        table: Table,
        attempt: str,
        hours: Collection[datetime],
        *,
        exclusive: bool = True,
        rewrites_partitions: bool = False,
        lease_seconds: int = LEASE_SECONDS,
        on_step: OnStep = no_step,
    ) -> None:
        if not _ATTEMPT.match(attempt):
            raise UsageError(f"'{attempt}' cannot name an attempt; use up to 64 lower case letters, digits and _")
        self.warehouse = warehouse
        self.table = table
        self.attempt = attempt
        self.hours = tuple(sorted(set(hours)))
        self.exclusive = exclusive
        # Of two processes of one attempt, the later one has the greater token: their patches are undone in that order.
        self.token = f"{time.time_ns() // 1_000_000:011x}{uuid.uuid4().hex[:4]}"
        self.patch_name = f"{table.layer}_{table.name}_{attempt}_{self.token}"
        self._rewrites_partitions = rewrites_partitions
        self._lease_seconds = lease_seconds
        self._prefix = f"__bf_{self.patch_name}"
        self.delta_name = f"{self._prefix}_delta"
        self.rewritten_name = f"{self._prefix}_rewritten"
        self._on_step = on_step
        self._keeps_tables = False
        self._renewing = ExitStack()

    @property
    def desired(self) -> str:
        """The quoted table of the rows that should be stored; declared columns, no sign."""
        return qualified(STAGING_DATABASE, f"{self._prefix}_desired")

    @property
    def _sent(self) -> str:
        """The quoted table of rows that were sent, in the types of the lake, where they are not those of the target."""
        return qualified(STAGING_DATABASE, f"{self._prefix}_sent")

    @property
    def delta(self) -> str:
        """The quoted table of cancels and states."""
        return qualified(STAGING_DATABASE, self.delta_name)

    @property
    def differing(self) -> str:
        """The quoted table of the rows that are only stored or only desired: their hour and both hashes."""
        return qualified(STAGING_DATABASE, f"{self._prefix}_differing")

    @property
    def earlier(self) -> str:
        """The quoted table of the delta as it was before a live writer made a second comparison necessary."""
        return qualified(STAGING_DATABASE, f"{self._prefix}_earlier")

    @property
    def rewritten(self) -> str:
        """The quoted table, structured like the target, of what replaces its partitions or is added to it besides a delta."""
        return qualified(STAGING_DATABASE, self.rewritten_name)

    @property
    def inconsistent(self) -> str:
        """The quoted table that keeps the old parts of rewritten partitions."""
        return qualified(PATCHES_DATABASE, f"{self.patch_name}_replaced")

    @property
    def patch(self) -> str:
        """The quoted table that keeps the delta once it is published."""
        return qualified(PATCHES_DATABASE, self.patch_name)

    @property
    def pending_patch(self) -> str:
        """The quoted table of the delta that is about to be published."""
        return qualified(PATCHES_DATABASE, f"{self.patch_name}_pending")

    def __enter__(self) -> "Staging":
        self.open()
        self._renewing.enter_context(self.lease.renewed())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._renewing.close()
        try:
            if self._keeps_tables:
                logger.warning("keeping %s and %s for inspection", self.desired, self.delta)
            else:
                self.drop()
            self.lease.release()
        except BackfillError as failure:  # the repair itself is done, and the next attempt drops the tables
            logger.warning("could not drop the staging tables of attempt %s: %s", self.attempt, failure)

    def open(self) -> None:
        """Check the target, take the lease, fence all attempts without one, create the staging tables.

        Raises PreconditionError when the target cannot be repaired safely, HourLeased while another attempt has the hours.
        """
        self.target = check_target(self.warehouse, self.table)
        self.lease = self._lease()
        self.lease.take()
        self._on_step("leased")
        databases = map(database_statement, (STAGING_DATABASE, PATCHES_DATABASE))
        self.warehouse.prepare(databases, doing="creating the databases of staging tables and patches")
        alive = live_holders(self.warehouse, self.table)
        if self.exclusive:
            settle(self, alive)
        else:  # what may have been published is settled by those who may publish
            alive |= began_to_publish(self.warehouse, self.table)
        fence(self.warehouse, self.table, alive=alive)
        self._on_step("fenced")
        columns = ", ".join(column_definitions(self.table))
        self.warehouse.command(
            f"CREATE TABLE {self.desired} ({columns}) ENGINE = MergeTree ORDER BY ({names(sorting_key(self.table))}) "
            f"SETTINGS non_replicated_deduplication_window = {REMEMBERED_INSERTS} COMMENT {literal(str(self.table))}",
            doing=f"creating the staging tables of {self.table}",
        )
        self.warehouse.command(
            f"CREATE TABLE {self.differing} ({OWNER} DateTime64(6, 'UTC'), city UInt64, xxh3 UInt64) "
            f"ENGINE = MergeTree ORDER BY {OWNER} COMMENT {literal(str(self.table))}",
            doing=f"creating the staging tables of {self.table}",
        )
        for name in (self.delta, self.earlier):
            self.create_delta(name)
        self.create_like_target(self.rewritten)
        self._on_step("created")

    def _lease(self) -> Lease:
        replaces = self.target.mode is Mode.REPLACE
        hours: Collection[datetime] | HourRange = self.hours
        if replaces and not self.target.rewritable:
            hours = EVERY_HOUR
        elif replaces or self._rewrites_partitions:
            hours = self.table.partition_hours(self.hours)
        return Lease(
            self.warehouse,
            self.table,
            hours,
            attempt=self.attempt,
            token=self.token,
            exclusive=self.exclusive,
            seconds=self._lease_seconds,
        )

    def create_delta(self, name: str, *, again: bool = False, if_absent: bool = False) -> None:
        """Create a table of cancels and states: like the target where that collapses, else with a sign besides its columns.

        Its partitions are those of the target, and can be attached to another such table. `again` and `if_absent` are as in
        `create_like_target`.
        """
        if self.table.collapses:
            self.create_like_target(name, again=again, if_absent=if_absent)
            return
        if again:
            self.warehouse.drop(name, doing=f"emptying a staging table of {self.table}")
        keys, doing = names(sorting_key(self.table)), f"creating the staging tables of {self.table}"
        self.warehouse.command(
            f"CREATE TABLE {'IF NOT EXISTS ' * if_absent}{name} AS {target_name(self.table)} ENGINE = MergeTree "
            f"{self.target.by_partition}ORDER BY ({keys}) SETTINGS allow_nullable_key = 1 COMMENT {literal(str(self.table))}",
            doing=doing,
        )
        self.warehouse.command(f"ALTER TABLE {name} ADD COLUMN IF NOT EXISTS {sign_of(self.table)} Int8", doing=doing)

    def create_like_target(self, name: str, *, again: bool = False, if_absent: bool = False) -> None:
        """Create a table whose partitions can be attached to the target, or inserted into it; never a replicated one.

        With `again`, an existing table of the name is dropped first; with `if_absent`, it is left as it is.
        """
        engine = f" ENGINE = {self.target.plain_engine}" if self.target.replicated else ""
        if again:
            self.warehouse.drop(name, doing=f"emptying a staging table of {self.table}")
        self.warehouse.command(
            f"CREATE TABLE {'IF NOT EXISTS ' * if_absent}{name} AS {target_name(self.table)}{engine} "
            f"COMMENT {literal(str(self.table))}",
            doing=f"creating the staging tables of {self.table}",
        )

    def query_id(self, step: str) -> str:
        """The name of a long statement in `system.processes` and `system.query_log`."""
        return f"{self.attempt}:{self.table}:{step}"

    def keep(self) -> None:
        """Do not drop the tables at the end of the `with`."""
        self._keeps_tables = True

    def drop(self) -> None:
        """Drop all staging tables, once the statements that use them are done."""
        for name in (self.desired, self._sent, self.differing, self.delta, self.earlier, self.rewritten):
            self.warehouse.drop(name, doing=f"dropping {name}")

    def load_files(self, paths: Sequence[str], expected: Mapping[datetime, int], loading: Loading = Loading.PULL) -> int:
        """Load the lake's Parquet files, check the rows of each hour against `expected`, return their sum.

        Without files, the desired state is empty. Raises PreconditionError for unreadable paths, WarehouseError or CheckFailed
        for a value that does not fit its column, CheckFailed when the counts differ.
        """
        if paths and loading is Loading.PULL:
            query_id = self.query_id("load")
            pull_files(self.warehouse, self.desired, self.table, paths, settings=INSERT_SETTINGS, query_id=query_id)
        elif paths:
            self._push(paths)
        loaded = self._count_rows(expected)
        self._on_step("loaded")
        return loaded

    def _push(self, paths: Sequence[str]) -> None:
        destination = self._sent if needs_conversion(self.table) else self.desired
        if destination == self._sent:
            self.warehouse.command(
                f"CREATE TABLE {self._sent} ({file_structure(self.table)}) ENGINE = MergeTree ORDER BY tuple() "
                f"SETTINGS non_replicated_deduplication_window = {REMEMBERED_INSERTS} COMMENT {literal(str(self.table))}",
                doing=f"creating the staging tables of {self.table}",
            )
        push_files(self.warehouse, destination, self.table, paths, token=self.lease.holder, settings=INSERT_SETTINGS)
        if destination == self._sent:
            self.warehouse.command(
                f"INSERT INTO {self.desired} ({names(self.table.stored_names)}) {converted(self.table, self._sent)}",
                settings={**INSERT_SETTINGS, "insert_deduplicate": 0},
                query_id=self.query_id("convert"),
                doing=f"converting what was sent for {self.table}",
            )

    def keep_others(self, tenants: Collection[str]) -> None:
        """Keep only the tenants' rows of the loaded ones, and add the stored rows of all other tenants.

        So only rows of the given tenants can differ from what is stored. Raises UsageError for a table without tenants.
        """
        where, whose, columns = within(self.table, self.hours), of_tenants(self.table, tenants), names(self.table.stored_names)
        self.warehouse.command(
            f"ALTER TABLE {self.desired} DELETE WHERE NOT {whose.sql}",
            parameters=whose.parameters,
            settings={"mutations_sync": 2},
            doing=f"leaving out rows of other tenants for {self.table}",
        )
        self.warehouse.command(
            f"INSERT INTO {self.desired} ({columns}) "
            f"SELECT {columns} FROM ({self.target.stored(where.sql)}) WHERE NOT {whose.sql}",
            parameters=whose.parameters | where.parameters,
            settings={**INSERT_SETTINGS, "insert_deduplicate": 0},
            query_id=self.query_id("others"),
            doing=f"keeping the rows of other tenants of {self.table}",
        )
        self._on_step("others")

    def load_rows(self, rows: Iterable[Mapping[str, Any]], expected: Mapping[datetime, int]) -> int:
        """Load Python rows, check the rows of each hour against `expected`, return their sum.

        Raises UsageError when a row has other columns than declared, CheckFailed when the counts differ.
        """
        columns = self.table.column_names
        batch: list[list[Any]] = []
        number = 0
        for row in rows:
            if row.keys() != set(columns):
                wrong = ", ".join(sorted(row.keys() ^ set(columns)))
                raise UsageError(f"{self.table}: a row has other columns than declared: {wrong}")
            batch.append([row[name] for name in self.table.stored_names])
            if len(batch) == _ROWS_PER_INSERT:
                self._insert(batch, number)
                batch, number = [], number + 1
        self._insert(batch, number)
        loaded = self._count_rows(expected)
        self._on_step("loaded")
        return loaded

    def _insert(self, batch: Sequence[Sequence[Any]], number: int) -> None:
        self.warehouse.insert_rows(
            STAGING_DATABASE,
            f"{self._prefix}_desired",
            self.table.stored_names,
            batch,
            settings={**INSERT_SETTINGS, "insert_deduplication_token": f"{self.lease.holder}:rows:{number}"},
            doing=f"loading {len(batch)} rows for {self.table}",
        )

    def _count_rows(self, expected: Mapping[datetime, int]) -> int:
        counts = self.warehouse.rows(
            f"SELECT {hour_number(self.table)} AS __hour, count() FROM {self.desired} GROUP BY __hour",
            doing=f"counting the desired rows of {self.table}",
        )
        loaded = {hour_from(number): rows for number, rows in counts}
        wrong = sorted(hour for hour in loaded.keys() | expected.keys() if loaded.get(hour, 0) != expected.get(hour, 0))
        if wrong:
            differences = ", ".join(
                f"{format_hour(hour)} {loaded.get(hour, 0)} instead of {expected.get(hour, 0)}" for hour in wrong[:10]
            )
            more = f" and {len(wrong) - 10} more hours" if len(wrong) > 10 else ""
            raise CheckFailed(
                f"{self.table}: the loaded row counts differ from those of the lake: {differences}{more}; "
                "nothing was published, load again"
            )
        return sum(loaded.values())


def fence(warehouse: Warehouse, table: Table, *, alive: Collection[str] = ()) -> int:
    """Drop the staging tables of all attempts at the target except those of the holders `alive`; return how many.

    It waits for the statements that use them. Tables are found by their comment, not by their prefix alone: the name of one
    target may begin with that of another.
    """
    prefix = f"__bf_{table.layer}_{table.name}_"
    rows = warehouse.rows(
        "SELECT name FROM system.tables WHERE database = {database:String} AND comment = {target:String} "
        "AND startsWith(name, {prefix:String})",
        parameters={"database": STAGING_DATABASE, "target": str(table), "prefix": prefix},
        doing=f"looking for earlier attempts at {table}",
    )
    dead = [name for (name,) in rows if name.removeprefix(prefix).rpartition("_")[0] not in alive]
    for name in dead:
        warehouse.drop(qualified(STAGING_DATABASE, name), doing=f"fencing an earlier attempt at {table}")
    return len(dead)
