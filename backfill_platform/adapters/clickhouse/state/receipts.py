"""Messages that drains have handled: one row for each, written before its offset is committed.

A batch that comes again after a crash replaces its own rows, so counts are exact.
"""

from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.sql import qualified
from backfill_platform.adapters.clickhouse.state.ledger import BOOKKEEPING_DATABASE

_RECEIPTS = qualified(BOOKKEEPING_DATABASE, "drained")
_CREATE = f"""
CREATE TABLE IF NOT EXISTS {_RECEIPTS} (
    drain LowCardinality(String) COMMENT 'Names the drain', topic LowCardinality(String), partition Int32, offset Int64,
    repair LowCardinality(String) COMMENT 'The replay that sent it; empty for other messages',
    hour DateTime('UTC') COMMENT 'Event hour as the replay says it, else of the timestamp',
    moment DateTime64(3, 'UTC') COMMENT 'Timestamp of the message',
    key String, payload String COMMENT 'Empty unless the drain persists'
) ENGINE = ReplacingMergeTree ORDER BY (drain, topic, partition, offset)
"""


@dataclass(frozen=True)
class Receipt:
    """One message that a drain has handled."""

    drain: str
    topic: str
    partition: int
    offset: int
    repair: str
    hour: datetime
    moment: datetime
    key: bytes = b""
    payload: bytes = b""


class Receipts:
    """The receipts of a warehouse; creates their table when it is absent."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        warehouse.prepare(
            (f"CREATE DATABASE IF NOT EXISTS {BOOKKEEPING_DATABASE}", _CREATE), doing="creating the table of drains"
        )

    def add(self, receipts: Sequence[Receipt]) -> None:
        """Write receipts; those of the same message replace each other."""
        self._warehouse.insert_rows(
            BOOKKEEPING_DATABASE,
            "drained",
            [field.name for field in fields(Receipt)],
            [list(astuple(receipt)) for receipt in receipts],
            settings={"async_insert": 0},
            doing="writing what was drained",
        )

    def count(self, drain: str, repairs: Collection[str] = ()) -> dict[tuple[str, str, datetime], int]:
        """How many messages a drain has handled, by replay, topic and hour."""
        only = " AND repair IN {repairs:Array(String)}" if repairs else ""
        rows = self._warehouse.rows(
            f"SELECT repair, topic, toUnixTimestamp(hour), count() FROM (SELECT * FROM {_RECEIPTS} FINAL) "
            f"WHERE drain = {{drain:String}}{only} GROUP BY repair, topic, hour",
            parameters={"drain": drain, "repairs": list(repairs)},
            doing="counting what was drained",
        )
        return {(repair, topic, datetime.fromtimestamp(hour, UTC)): count for repair, topic, hour, count in rows}
