"""Leases: at most one publisher for each hour of a target; the lease of a dead publisher expires.

A lease is a row in `backfill.leases`, renewed while its holder lives. ClickHouse has no compare and swap, so a holder first
writes its row and then reads the rows of others. Of two that write at the same time at least one sees the other, and whoever
sees another one gives its lease back and tries again. Both may give up, but never do both hold the lease.

Leases keep live attempts from disturbing each other. They do not make a publish safe: a holder that slept too long finds its
staging tables dropped (`staging.fence`), and the diff of its successor is made from what is stored.

Only the clock of the warehouse is used; it is never compared with clocks of other machines.
"""

import logging
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.sql import qualified, span_rows
from backfill_platform.adapters.clickhouse.state.ledger import BOOKKEEPING_DATABASE
from backfill_platform.domain.hours import HourRange, format_hour, merge_hours
from backfill_platform.domain.tables import Table
from backfill_platform.errors import BackfillError, HourLeased, LeaseLost

logger = logging.getLogger(__name__)

LEASE_SECONDS = 30
_LONGEST = 600  # seconds: a lease that ends later was written when the clock was ahead
_LEASES = qualified(BOOKKEEPING_DATABASE, "leases")
_CREATE = f"""
CREATE TABLE IF NOT EXISTS {_LEASES} (
    target LowCardinality(String) COMMENT 'Layer and table, such as transformed/sessions',
    first_hour DateTime64(6, 'UTC') COMMENT 'The lease covers every hour of [first_hour, end_hour)',
    end_hour DateTime64(6, 'UTC'),
    holder String COMMENT 'Attempt and a random token: one process',
    exclusive Bool COMMENT 'A publish. Dry runs only say that they are alive',
    expires_at DateTime64(6, 'UTC') COMMENT 'Of the newest row of a holder; 1970 when it was given back',
    written_at DateTime64(6, 'UTC')
) ENGINE = MergeTree ORDER BY (target, first_hour, holder) TTL toDateTime(written_at) + INTERVAL 1 DAY
"""
_LIVE = f"""
SELECT holder, toUnixTimestamp(first_hour) AS first, toUnixTimestamp(end_hour) AS last,
    argMax(exclusive, written_at) AS excludes, argMax(expires_at, written_at) AS until
FROM {_LEASES} WHERE target = {{target:String}} GROUP BY holder, first_hour, end_hour
HAVING until > now64(6, 'UTC') AND until < now64(6, 'UTC') + toIntervalSecond({_LONGEST})
"""
_NEW_ROW = f"""
INSERT INTO {_LEASES} (target, first_hour, end_hour, holder, exclusive, expires_at, written_at)
SELECT {{target:String}}, toDateTime64(first, 6, 'UTC'), toDateTime64(last, 6, 'UTC'), {{holder:String}}, {{exclusive:Bool}},
"""
# Later than all earlier rows of the holder, also when the clock was set back.
_NOW = (
    f"greatest(now64(6, 'UTC'), (SELECT max(written_at) FROM {_LEASES} WHERE target = {{target:String}} "
    "AND holder = {holder:String}) + toIntervalMicrosecond(1))"
)
_UNTIL = f"now64(6, 'UTC') + toIntervalSecond({{seconds:UInt32}}), {_NOW}"
_TAKE = f"{_NEW_ROW} {_UNTIL} FROM"
_RELEASE = f"{_NEW_ROW} toDateTime64(0, 6, 'UTC'), {_NOW} FROM"
# Only leases that are still live: a holder whose lease was released does not get it back.
_RENEW = f"{_NEW_ROW} {_UNTIL} FROM ({_LIVE}) WHERE holder = {{holder:String}}"
_SETTINGS = {"async_insert": 0, "insert_deduplicate": 0}


class Lease:
    """The hours of a target, leased by one attempt from `take` to `release`, while `renewed`.

    `holder` begins with the name of the attempt: a repair that runs again under its name takes over from itself at once. An
    exclusive lease waits up to `patience` seconds for other holders: by default longer than the lease of a dead one lasts.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        table: Table,
        hours: Collection[datetime] | HourRange,
        *,
        attempt: str,
        token: str,
        exclusive: bool,
        seconds: int = LEASE_SECONDS,
        patience: float | None = None,
    ) -> None:
        self.holder = f"{attempt}_{token}"
        self._warehouse = warehouse
        self._table = table
        self._attempt = attempt
        self._exclusive = exclusive
        self._seconds = seconds
        self._patience = seconds + 5 if patience is None else patience
        self._spans = (hours,) if isinstance(hours, HourRange) else merge_hours(hours)
        self._ranges = [(int(span.start.timestamp()), int(span.end.timestamp())) for span in self._spans]

    def take(self) -> None:
        """Take the lease. Raises HourLeased, naming the holder, when another attempt has an hour for longer than `patience`."""
        create_leases(self._warehouse)
        for attempt in Retrying(
            retry=retry_if_exception_type(HourLeased),
            stop=stop_after_delay(self._patience),
            wait=wait_random(0.05, 0.5),  # random, or two that give up would try again at the same moment
            reraise=True,
        ):
            with attempt:
                self._refuse_others()
                self._write(_TAKE)
                try:
                    self._refuse_others()
                except HourLeased:
                    self._write(_RELEASE)
                    raise

    def check(self) -> None:
        """Raise LeaseLost when the lease has run out, for example while the process was suspended."""
        if self.holder not in live_holders(self._warehouse, self._table):
            raise LeaseLost(f"{self._table}: the lease of {self.holder} has run out; nothing was published, run it again")

    def release(self) -> None:
        """End the lease."""
        self._write(_RELEASE)

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease from a background thread until the block ends; a killed process renews no more."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(self._seconds / 3):
                try:
                    self._write(_RENEW)
                except BackfillError as error:  # the next try may work; if not, `check` notices
                    logger.warning("could not renew the lease of %s: %s", self._table, error)

        thread = threading.Thread(target=renew, name=f"lease of {self._table}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _refuse_others(self) -> None:
        for holder, until, first, end in self._others():
            raise HourLeased(
                f"{self._table}: the hours from {format_hour(first)} to {format_hour(end)} are being repaired by "
                f"{holder}, until {until:%H:%M:%S} UTC at least; wait for it or stop it, then run this again"
            )

    def _others(self) -> list[tuple[str, datetime, datetime, datetime]]:
        """Other exclusive holders of one of the hours. The leases of earlier processes of this attempt are released."""
        others = []
        for holder, start, end, exclusive, until in _live(self._warehouse, self._table):
            overlaps = any(start < last and first < end for first, last in self._ranges)
            if not (self._exclusive and exclusive and overlaps) or holder == self.holder:
                continue
            if holder.rpartition("_")[0] == self._attempt:
                self._write(_RELEASE, holder=holder, spans=(HourRange(_utc(start), _utc(end)),))
            else:
                others.append((holder, until, _utc(start), _utc(end)))
        return others

    def _write(self, statement: str, *, holder: str = "", spans: Iterable[HourRange] | None = None) -> None:
        self._warehouse.command(
            statement if statement == _RENEW else f"{statement} ({span_rows(spans or self._spans)})",
            parameters={
                "target": str(self._table),
                "holder": holder or self.holder,
                "exclusive": self._exclusive,
                "seconds": self._seconds,
            },
            settings=_SETTINGS,
            doing=f"leasing hours of {self._table}",
        )


def create_leases(warehouse: Warehouse) -> None:
    """Create the table of leases when it is absent."""
    warehouse.prepare((f"CREATE DATABASE IF NOT EXISTS {BOOKKEEPING_DATABASE}", _CREATE), doing="creating the table of leases")


def live_holders(warehouse: Warehouse, table: Table) -> set[str]:
    """All holders with a live lease on the target, dry runs included."""
    return {holder for holder, *_ in _live(warehouse, table)}


def _live(warehouse: Warehouse, table: Table) -> list[tuple[str, int, int, bool, datetime]]:
    rows = warehouse.rows(_LIVE, parameters={"target": str(table)}, doing=f"looking who works on {table}")
    return [(holder, start, end, exclusive, until) for holder, start, end, exclusive, until in rows]


def _utc(number: int) -> datetime:
    return datetime.fromtimestamp(number, UTC)
