"""The append-only record of what each repair did to each hour, and why.

One row for each attempt, target, hour and mode. A row is written after the hour was verified (or refused), never before; a
repair that died in between finds the hour unchanged on its next attempt and records that. Only where views read a target, a row
`publishing` is written before the inserts: if no other row follows it, the views may lack rows that the target has.

The same row may be appended twice, by a caller that tries again or by the driver that sends an insert again: both stay in the
table, and `read` returns only the row that finished last.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from backfill_platform.adapters.clickhouse.client import Row, Warehouse
from backfill_platform.adapters.clickhouse.sql import qualified, range_rows
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.gaps import Written
from backfill_platform.domain.offsets import Spans, decode

BOOKKEEPING_DATABASE = "backfill"
_LEDGER = qualified(BOOKKEEPING_DATABASE, "ledger")

_REPAIRS = qualified(BOOKKEEPING_DATABASE, "repairs")

_COLUMNS = {
    "repair_id": "String COMMENT 'Names the repair; all its attempts and targets share it'",
    "attempt_id": "String COMMENT 'Names one process at one target'",
    "pipeline": "LowCardinality(String)",
    "target": "LowCardinality(String) COMMENT 'Layer and table, such as transformed/sessions'",
    "hour": "DateTime64(6, 'UTC') COMMENT 'The hour that was repaired: [hour, hour + 1 h)'",
    "mode": "LowCardinality(String) COMMENT 'land, requeue, build, dry-run, publish or undo'",
    "status": "LowCardinality(String) COMMENT 'What became of the hour'",
    "rows_before": "Nullable(Int64)",
    "hash_before": "Nullable(UInt64)",
    "rows_desired": "Nullable(Int64)",
    "hash_desired": "Nullable(UInt64)",
    "rows_after": "Nullable(Int64)",
    "hash_after": "Nullable(UInt64)",
    "cancels": "Int64 COMMENT 'Stored rows that were cancelled'",
    "states": "Int64 COMMENT 'Rows that were written to the warehouse'",
    "untouched": "Int64 COMMENT 'Stored rows that stayed as they were'",
    "rows_read": "Nullable(Int64) COMMENT 'Lines or rows that the hour was made from'",
    "rows_deduplicated": "Nullable(Int64) COMMENT 'Of these, further deliveries of an event'",
    "rows_kept": "Nullable(Int64) COMMENT 'Rows that the lake has for the hour'",
    "rows_quarantined": "Nullable(Int64) COMMENT 'Rows that failed a check and were set aside'",
    "rows_staged": "Nullable(Int64) COMMENT 'Rows that arrived in the warehouse to be compared'",
    "publish_mode": "LowCardinality(String) COMMENT 'attach or insert'",
    "input_digest": "String COMMENT 'Of the names and sizes of the lake files staged; of a landing, the files it read'",
    "snapshot_id": "Nullable(Int64) COMMENT 'Of the lake table, when the hour was written or staged'",
    "lake_table": "String COMMENT 'UUID of that lake table: snapshots expire, and other lakes may use this ledger'",
    "offsets": "String COMMENT 'Of the topic that the hour was landed from: [start, end) by partition'",
    "reason": "String COMMENT 'Why the repair was asked for, or why the hour was refused'",
    "note": "String COMMENT 'What else to know, such as views that may lack rows'",
    "requester": "String",
    "code_version": "String COMMENT 'Version of the transform'",
    "server_version": "String COMMENT 'Fingerprints of other versions cannot be compared'",
    "schema_hash": "String COMMENT 'Fingerprints of other schemas cannot be compared'",
    "started_at": "DateTime64(6, 'UTC')",
    "finished_at": "DateTime64(6, 'UTC')",
}
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {_LEDGER} ({', '.join(f'{name} {kind}' for name, kind in _COLUMNS.items())}) "
    "ENGINE = MergeTree ORDER BY (pipeline, target, hour, finished_at)"
)
# A ledger of an earlier version gets the columns it lacks; nothing in it is rewritten.
_EXTEND = f"ALTER TABLE {_LEDGER} " + ", ".join(f"ADD COLUMN IF NOT EXISTS {name} {kind}" for name, kind in _COLUMNS.items())
_CREATE_REPAIRS = f"""
CREATE TABLE IF NOT EXISTS {_REPAIRS} (
    repair_id String, pipeline LowCardinality(String), first_hour DateTime64(6, 'UTC'), end_hour DateTime64(6, 'UTC'),
    assets Array(String) COMMENT 'In the order of the plan', reason String, requester String,
    change_limits String COMMENT 'What it was allowed to change', plan String COMMENT 'Its steps, as JSON',
    code_version String, started_at DateTime64(6, 'UTC')
) ENGINE = MergeTree ORDER BY (pipeline, started_at)
"""
# For a table that an earlier version created.
_EXTEND_REPAIRS = (
    f"ALTER TABLE {_REPAIRS} RENAME COLUMN IF EXISTS contract TO change_limits",
    f"ALTER TABLE {_REPAIRS} ADD COLUMN IF NOT EXISTS plan String AFTER change_limits",
)
_ALL = 1_000_000
PUBLISHING = "publishing"  # the status of an hour between the first insert and the proof, where views read the target


@dataclass(frozen=True)
class LedgerEntry:
    """What one attempt did to one hour of one table; times are aware. Unknown counts and fingerprints are None."""

    repair_id: str
    attempt_id: str
    pipeline: str
    target: str
    hour: datetime
    mode: str
    status: str
    requester: str
    code_version: str
    server_version: str
    schema_hash: str
    started_at: datetime
    finished_at: datetime
    before: Fingerprint | None = None
    desired: Fingerprint | None = None
    after: Fingerprint | None = None
    cancels: int = 0
    states: int = 0
    untouched: int = 0
    rows_read: int | None = None
    rows_deduplicated: int | None = None
    rows_kept: int | None = None
    rows_quarantined: int | None = None
    rows_staged: int | None = None
    publish_mode: str = ""
    input_digest: str = ""
    snapshot_id: int | None = None
    lake_table: str = ""
    offsets: str = ""
    reason: str = ""
    note: str = ""


@dataclass(frozen=True)
class Repair:
    """A repair as requested: the range `[first_hour, end_hour)`, the assets in the order of the plan, by whom and why."""

    repair_id: str
    pipeline: str
    first_hour: datetime
    end_hour: datetime
    assets: tuple[str, ...]
    reason: str
    requester: str
    change_limits: str
    plan: str
    code_version: str
    started_at: datetime


_FINGERPRINTS = ("before", "desired", "after")


class Ledger:
    """The ledger of a warehouse; creates its tables when they are absent."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        database = f"CREATE DATABASE IF NOT EXISTS {BOOKKEEPING_DATABASE}"
        warehouse.prepare((database, _CREATE, _EXTEND, _CREATE_REPAIRS, *_EXTEND_REPAIRS), doing="creating the ledger")

    def begin(self, repair: Repair) -> None:
        """Record a repair before anything is done for it."""
        self._warehouse.insert_rows(
            BOOKKEEPING_DATABASE,
            "repairs",
            [field.name for field in fields(Repair)],
            [[getattr(repair, field.name) for field in fields(Repair)]],
            settings={"async_insert": 0},
            doing="writing to the ledger",
        )

    def append(self, entries: Iterable[LedgerEntry]) -> None:
        """Add entries; never changes or removes one."""
        self._warehouse.insert_rows(
            BOOKKEEPING_DATABASE,
            "ledger",
            list(_COLUMNS),
            [_to_row(entry) for entry in entries],
            settings={"async_insert": 0},
            doing="writing to the ledger",
        )

    def read(
        self,
        *,
        pipeline: str | None = None,
        target: str | None = None,
        hours: Collection[datetime] | None = None,
        modes: Collection[str] | None = None,
        limit: int = 1000,
        each: int | None = None,
    ) -> list[LedgerEntry]:
        """Entries, the newest first, at most `limit`, filtered by pipeline, target, hours and modes where these are given.

        `each` is the most entries for one hour of one target.
        """
        conditions = ["true"]
        bound: dict[str, Any] = {}
        if pipeline is not None:
            conditions.append("pipeline = {pipeline:String}")
            bound["pipeline"] = pipeline
        if target is not None:
            conditions.append("target = {target:String}")
            bound["target"] = target
        if hours is not None:
            conditions.append(_within(hours))
        if modes is not None:
            conditions.append("mode IN {modes:Array(String)}")
            bound["modes"] = list(modes)
        return self._newest(conditions, bound, limit=limit, each=each)

    def _newest(
        self, conditions: Iterable[str], bound: Mapping[str, Any], *, limit: int, each: int | None
    ) -> list[LedgerEntry]:
        order = "ORDER BY finished_at DESC, hour DESC, target, attempt_id, mode"
        rows = self._warehouse.rows(
            f"SELECT * FROM (SELECT {', '.join(_COLUMNS)} FROM {_LEDGER} WHERE {' AND '.join(conditions)} {order} "
            f"LIMIT 1 BY repair_id, attempt_id, target, hour, mode) {order} "
            f"{'' if each is None else f'LIMIT {each} BY target, hour'} LIMIT {limit}",
            parameters=bound,
            doing="reading the ledger",
        )
        return [_from_row(row) for row in rows]

    def unfinished(self, target: str, hours: Collection[datetime]) -> dict[datetime, str]:
        """The hours that an attempt began to insert and never verified, with its name: views may lack some of its rows."""
        if not hours:
            return {}
        rows = self._warehouse.rows(
            f"SELECT toUnixTimestamp(hour) AS h, attempt_id FROM {_LEDGER} WHERE target = {{target:String}} "
            f"AND {_within(hours)} AND mode IN ('publish', 'undo') GROUP BY hour, attempt_id "
            "HAVING countIf(status = {publishing:String}) > 0 AND countIf(status != {publishing:String}) = 0",
            parameters={"target": target, "publishing": PUBLISHING},
            doing="looking for attempts that died",
        )
        return {datetime.fromtimestamp(number, UTC): attempt for number, attempt in rows}

    def abandon(self, target: str, hours: Collection[datetime], now: datetime) -> None:
        """Add an entry `abandoned` for the hours of attempts that died, so that they are reported only once."""
        dead = self.unfinished(target, hours)
        unfinished_entries = [entry for entry in self.read(target=target, hours=dead, limit=_ALL) if entry.status == PUBLISHING]
        self.append(
            replace(entry, status="abandoned", finished_at=now)
            for entry in unfinished_entries
            if dead.get(entry.hour) == entry.attempt_id
        )

    def lake_history(self, target: str) -> dict[datetime, list[Written]]:
        """Everything that was promoted of each hour of a lake table, the oldest first."""
        rows = self._warehouse.rows(
            "SELECT toUnixTimestamp(hour), repair_id, started_at, finished_at, rows_kept, rows_desired, hash_desired, "
            f"code_version, snapshot_id, lake_table, input_digest FROM {_LEDGER} WHERE target = {{target:String}} "
            "AND mode IN ('land', 'requeue', 'build') AND status = 'done' ORDER BY hour, finished_at",
            parameters={"target": target},
            doing="reading the ledger",
        )
        history: dict[datetime, list[Written]] = {}
        for number, repair, started, finished, kept, count, content, version, snapshot, lake_table, source in rows:
            desired = None if count is None else Fingerprint(count, content)
            written = Written(repair, started, finished, kept, desired, version, snapshot, lake_table, source)
            history.setdefault(datetime.fromtimestamp(number, UTC), []).append(written)
        return history

    def snapshots_without_table(self, target: str) -> set[int]:
        """Snapshots that entries of earlier versions name without their lake table: these entries need them to be known."""
        rows = self._warehouse.rows(
            f"SELECT DISTINCT snapshot_id FROM {_LEDGER} WHERE target = {{target:String}} AND lake_table = '' "
            "AND snapshot_id IS NOT NULL AND mode IN ('land', 'requeue', 'build') AND status = 'done'",
            parameters={"target": target},
            doing="reading the ledger",
        )
        return {snapshot for (snapshot,) in rows}

    def offsets(self, target: str, hours: Collection[datetime]) -> dict[datetime, Spans]:
        """The offsets that each hour of a raw table was last landed from; hours that came from files are absent."""
        rows = self._warehouse.rows(
            f"SELECT toUnixTimestamp(hour), argMax(offsets, finished_at) FROM {_LEDGER} WHERE target = {{target:String}} "
            f"AND {_within(hours)} AND mode IN ('land', 'requeue') AND status = 'done' GROUP BY hour",
            parameters={"target": target},
            doing="reading the ledger",
        )
        return {datetime.fromtimestamp(number, UTC): decode(text) for number, text in rows if text}

    def last_published(self, target: str, hours: Collection[datetime]) -> dict[datetime, LedgerEntry]:
        """The newest verified publish or undo of each hour."""
        conditions = ["target = {target:String}", _within(hours), "mode IN ('publish', 'undo')", "rows_after IS NOT NULL"]
        entries = self._newest(conditions, {"target": target}, limit=_ALL, each=1)
        return {entry.hour: entry for entry in entries}

    def published_from(
        self, target: str, hours: Collection[datetime], *, server_version: str, schema_hash: str
    ) -> dict[datetime, tuple[str, Fingerprint]]:
        """The input digest and the desired fingerprint of the last publish of each hour, where they can be compared.

        Hours are absent whose newest verified entry is of another server version or schema, or has no input digest.
        """
        rows = self._warehouse.rows(
            "SELECT toUnixTimestamp(hour), input_digest, rows_desired, hash_desired FROM (SELECT hour, input_digest, "
            f"rows_desired, hash_desired, server_version, schema_hash FROM {_LEDGER} WHERE target = {{target:String}} "
            f"AND {_within(hours)} AND mode IN ('publish', 'undo') AND rows_after IS NOT NULL "
            "ORDER BY finished_at DESC, attempt_id, mode LIMIT 1 BY hour) WHERE server_version = {server:String} "
            "AND schema_hash = {schema:String} AND rows_desired IS NOT NULL AND input_digest != ''",
            parameters={"target": target, "server": server_version, "schema": schema_hash},
            doing="reading the ledger",
        )
        return {datetime.fromtimestamp(number, UTC): (digest, Fingerprint(*desired)) for number, digest, *desired in rows}


def _within(hours: Collection[datetime]) -> str:
    if not hours:
        return "false"
    return f"toUnixTimestamp(hour) IN (SELECT arrayJoin(range(first, last, 3600)) FROM ({range_rows(hours)}))"


def _to_row(entry: LedgerEntry) -> list[Any]:
    fingerprints = {name: getattr(entry, name) for name in _FINGERPRINTS}
    values = {
        f"{part}_{name}": getattr(fingerprint, part, None)
        for name, fingerprint in fingerprints.items()
        for part in ("rows", "hash")
    }
    return [values[name] if name in values else getattr(entry, name) for name in _COLUMNS]


def _from_row(row: Row) -> LedgerEntry:
    values = dict(zip(_COLUMNS, row, strict=True))
    for name in _FINGERPRINTS:
        rows, hash_ = values.pop(f"rows_{name}"), values.pop(f"hash_{name}")
        values[name] = None if rows is None else Fingerprint(rows, hash_)
    return LedgerEntry(**values)
