"""The counts of a replay at its three points, by hour: rows selected, messages acknowledged, messages persisted.

The replay leaves the first two in the ledger, drains leave the third.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from backfill_platform.adapters.clickhouse.state.ledger import Ledger, LedgerEntry
from backfill_platform.adapters.clickhouse.state.receipts import Receipts

REPLAY = "replay"
DRAIN = "drain"
DELIVERY_COUNTS = "delivery_counts"  # the check of raw tables
_ALL = 1_000_000


@dataclass(frozen=True)
class DeliveryCounts:
    """An hour of a replay at its three points.

    Messages that no replay has sent have no first two counts; what no drain has looked at has no third.
    """

    replay: str
    hour: datetime
    selected: int | None
    acknowledged: int | None
    persisted: int | None

    @property
    def agree(self) -> bool:
        """Whether nothing was lost or added on the way, as far as it was counted."""
        if self.selected is None:
            return True
        return self.selected == self.acknowledged and self.persisted in (None, self.selected)

    def __str__(self) -> str:
        persisted = "not drained yet" if self.persisted is None else f"{self.persisted} persisted"
        return f"{self.selected} selected, {self.acknowledged} acknowledged, {persisted}"


def delivery_counts_of_drain(receipts: Receipts, ledger: Ledger, name: str, topic: str) -> tuple[DeliveryCounts, ...]:
    """The counts of each replay and hour that a drain has found in the topic; hours of these replays that it lacks, too."""
    persisted = {(repair, hour): n for (repair, of, hour), n in receipts.count(name).items() if of == topic}
    replays = {repair for repair, _ in persisted if repair}
    sent: dict[tuple[str, datetime], LedgerEntry] = {}
    for entry in ledger.read(target=f"kafka/{topic}", modes=[REPLAY], limit=_ALL):  # the newest first
        if entry.repair_id in replays:
            sent.setdefault((entry.repair_id, entry.hour), entry)
    found = []
    for replay, hour in sorted(persisted.keys() | sent.keys()):
        known = sent.get((replay, hour))
        selected, acknowledged = (None, None) if known is None else (known.rows_read, known.rows_kept)
        found.append(DeliveryCounts(replay, hour, selected, acknowledged, persisted.get((replay, hour), 0)))
    return tuple(found)


def newest_delivery_counts(ledger: Ledger, pipeline: str, hours: Collection[datetime]) -> dict[datetime, DeliveryCounts]:
    """The counts of the newest replay of each hour, with what the newest drain found of it; other hours are absent."""
    entries = ledger.read(pipeline=pipeline, hours=hours, modes=[REPLAY, DRAIN], limit=_ALL)  # the newest first
    drained: dict[tuple[str, str, datetime], int | None] = {}
    for entry in entries:
        if entry.mode == DRAIN:
            drained.setdefault((entry.target, entry.repair_id, entry.hour), entry.rows_kept)
    found: dict[datetime, DeliveryCounts] = {}
    for entry in entries:
        if entry.mode == REPLAY:
            persisted = drained.get((entry.target, entry.repair_id, entry.hour))
            counts = DeliveryCounts(entry.repair_id, entry.hour, entry.rows_read, entry.rows_kept, persisted)
            found.setdefault(entry.hour, counts)
    return found
