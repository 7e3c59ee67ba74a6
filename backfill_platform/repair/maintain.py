"""Maintenance: what a pipeline's lake tables and patches no longer need is found and removed.

Nothing that an undo, a running repair or a reader that began before needs is touched: an undo has its patches in the warehouse
and recomputes the rest, a running repair is named by `at_work`, and what readers may still read is younger than `until`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.patches import drop_patches, old_patches
from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.adapters.iceberg.maintenance import Needed, Unneeded, find_unneeded, remove_unneeded
from backfill_platform.domain.tables import Table
from backfill_platform.pipelines.spec import Pipeline


@dataclass(frozen=True)
class Keep:
    """What maintenance keeps whatever its age, and for how long the rest.

    What the lake has replaced before `until` goes, and patches after `patch_days`. `at_work` names the repairs that are under
    way. A `rehearsal` removes nothing.
    """

    until: datetime
    patch_days: int
    at_work: Callable[[], Collection[str]]
    rehearsal: bool = False


@dataclass(frozen=True)
class MaintainedTable:
    """What a lake table did not need any more; `patches` counts those of its warehouse table that were too old for an undo."""

    table: str
    lake: Unneeded
    patches: int = 0


def maintain(pipeline: Pipeline, lake: Lake, warehouse: Warehouse, keep: Keep) -> Iterator[MaintainedTable]:
    """Remove from each table of the pipeline, and from its quarantine, what is not needed any more.

    Raises LakeConflict when others keep committing to a table; running it again goes on.
    """
    ledger = Ledger(warehouse)
    published = set(pipeline.published)
    for table in pipeline.tables:
        for stored in (table, quarantine_of(table)):
            needed = Needed(keep.until, ledger.snapshots_without_table(str(stored)), keep.at_work)
            found = find_unneeded(lake, stored, needed) if keep.rehearsal else remove_unneeded(lake, stored, needed)
            yield MaintainedTable(str(stored), found, _old_patches(warehouse, table, keep) if stored in published else 0)


def _old_patches(warehouse: Warehouse, table: Table, keep: Keep) -> int:
    """How many patches were too old for an undo; they are dropped unless it is a rehearsal."""
    if keep.rehearsal:
        return len(old_patches(warehouse, table, older_than_days=keep.patch_days))
    return drop_patches(warehouse, table, older_than_days=keep.patch_days)
