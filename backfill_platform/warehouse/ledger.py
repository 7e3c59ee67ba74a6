"""The append-only record of what each repair did to each hour, and why.

One row for each attempt, target, hour and mode. A row is written after the hour was verified (or refused), never before; a
repair that died in between finds the hour unchanged on its next attempt and records that. The same row may be appended
twice, by a caller that tries again or by the driver that sends an insert again: both stay in the table, visible to whoever
selects from it, and `read` returns only the one that finished last.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backfill_platform.core.hours import merge_hours
from backfill_platform.core.identity import Fingerprint
from backfill_platform.warehouse.client import Row, Warehouse
from backfill_platform.warehouse.sql import qualified

BOOKKEEPING_DATABASE = "backfill"
_LEDGER = qualified(BOOKKEEPING_DATABASE, "ledger")

_CREATE = f"""
CREATE TABLE IF NOT EXISTS {_LEDGER} (
    repair_id String COMMENT 'Names the repair; all its attempts and targets share it',
    attempt_id String COMMENT 'Names one try at one target',
    pipeline LowCardinality(String),
    target LowCardinality(String) COMMENT 'Layer and table, such as transformed/sessions',
    hour DateTime64(6, 'UTC') COMMENT 'The hour that was repaired: [hour, hour + 1 h)',
    mode LowCardinality(String) COMMENT 'dry-run or publish',
    status LowCardinality(String) COMMENT 'What became of the hour',
    rows_before Nullable(Int64), hash_before Nullable(UInt64),
    rows_desired Nullable(Int64), hash_desired Nullable(UInt64),
    rows_after Nullable(Int64), hash_after Nullable(UInt64),
    cancels Int64 COMMENT 'Stored rows that were cancelled',
    states Int64 COMMENT 'Rows that were written',
    untouched Int64 COMMENT 'Stored rows that stayed as they were',
    rows_read Nullable(Int64) COMMENT 'Rows the lake has for this hour, as staged',
    rows_quarantined Nullable(Int64) COMMENT 'Rows that failed a check and were set aside',
    reason String COMMENT 'Why the repair was asked for, or why the hour was refused',
    requester String,
    code_version String COMMENT 'Version of the transform',
    server_version String COMMENT 'Fingerprints of other versions cannot be compared',
    schema_hash String COMMENT 'Fingerprints of other schemas cannot be compared',
    started_at DateTime64(6, 'UTC'),
    finished_at DateTime64(6, 'UTC')
) ENGINE = MergeTree ORDER BY (pipeline, target, hour, finished_at)
"""


@dataclass(frozen=True)
class LedgerEntry:
    """What one attempt did to one hour of one target; times are aware. Unknown counts and fingerprints are None."""

    repair_id: str
    attempt_id: str
    pipeline: str
    target: str
    hour: datetime
    mode: str
    status: str
    before: Fingerprint | None
    desired: Fingerprint | None
    after: Fingerprint | None
    cancels: int
    states: int
    untouched: int
    rows_read: int | None
    rows_quarantined: int | None
    reason: str
    requester: str
    code_version: str
    server_version: str
    schema_hash: str
    started_at: datetime
    finished_at: datetime


_BEFORE_FINGERPRINTS = ("repair_id", "attempt_id", "pipeline", "target", "hour", "mode", "status")
_FINGERPRINTS = ("before", "desired", "after")
_AFTER_FINGERPRINTS = (
    *("cancels", "states", "untouched", "rows_read", "rows_quarantined", "reason", "requester"),
    *("code_version", "server_version", "schema_hash", "started_at", "finished_at"),
)
_COLUMNS = (
    *_BEFORE_FINGERPRINTS,
    *(f"{part}_{name}" for name in _FINGERPRINTS for part in ("rows", "hash")),
    *_AFTER_FINGERPRINTS,
)


class Ledger:
    """The ledger of a warehouse; creates its table when it is absent."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        warehouse.command(f"CREATE DATABASE IF NOT EXISTS {BOOKKEEPING_DATABASE}", doing="creating the ledger")
        warehouse.command(_CREATE, doing="creating the ledger")

    def append(self, entries: Iterable[LedgerEntry]) -> None:
        """Add entries; never changes or removes one."""
        self._warehouse.insert_rows(
            BOOKKEEPING_DATABASE,
            "ledger",
            _COLUMNS,
            [_to_row(entry) for entry in entries],
            settings={"async_insert": 0},
            doing="writing to the ledger",
        )

    def read(
        self, *, pipeline: str | None = None, hours: Collection[datetime] | None = None, limit: int = 1000
    ) -> list[LedgerEntry]:
        """The newest entries first, at most `limit`, of one pipeline and of the given hours only if these are given."""
        conditions, parameters = ["true"], {"limit": limit}
        bound: dict[str, Any] = dict(parameters)
        if pipeline is not None:
            conditions.append("pipeline = {pipeline:String}")
            bound["pipeline"] = pipeline
        if hours is not None:
            conditions.append(
                "arrayExists(r -> toUnixTimestamp(hour) >= r.1 AND toUnixTimestamp(hour) < r.2, "
                "{ranges:Array(Tuple(UInt32, UInt32))})"
            )
            bound["ranges"] = [(int(each.start.timestamp()), int(each.end.timestamp())) for each in merge_hours(hours)]
        rows = self._warehouse.rows(
            f"SELECT {', '.join(_COLUMNS)} FROM {_LEDGER} WHERE {' AND '.join(conditions)} "
            "ORDER BY finished_at DESC, hour DESC, target, attempt_id, mode "
            "LIMIT 1 BY repair_id, attempt_id, target, hour, mode LIMIT {limit:UInt32}",
            parameters=bound,
            settings={"use_query_cache": 0},
            doing="reading the ledger",
        )
        return [_from_row(row) for row in rows]


def _to_row(entry: LedgerEntry) -> list[Any]:
    fingerprints = [getattr(entry, name) for name in _FINGERPRINTS]
    return [
        *(getattr(entry, name) for name in _BEFORE_FINGERPRINTS),
        *(part for print_ in fingerprints for part in ((print_.rows, print_.hash) if print_ else (None, None))),
        *(getattr(entry, name) for name in _AFTER_FINGERPRINTS),
    ]


def _from_row(row: Row) -> LedgerEntry:
    values = dict(zip(_COLUMNS, row, strict=True))
    for name in _FINGERPRINTS:
        rows, hash_ = values.pop(f"rows_{name}"), values.pop(f"hash_{name}")
        values[name] = None if rows is None else Fingerprint(rows, hash_)
    return LedgerEntry(**values)
