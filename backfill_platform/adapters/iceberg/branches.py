"""Branches of an Iceberg table: beginning one, and removing one with all that only it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots

from backfill_platform.domain.tables import Table
from backfill_platform.errors import PreconditionError

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable


def restart_branch(iceberg_table: IcebergTable, table: Table, branch: str) -> None:
    """Begin a branch anew at the newest snapshot. Raises PreconditionError for a table without one."""
    current = iceberg_table.current_snapshot()
    if current is None:
        raise PreconditionError(f"lake table {table} has no snapshot; call ensure first")
    changes = iceberg_table.manage_snapshots()
    if iceberg_table.snapshot_by_name(branch) is not None:
        changes = changes.remove_branch(branch)
    changes.create_branch(current.snapshot_id, branch).commit()


def drop_branch(iceberg_table: IcebergTable, branch: str) -> list[str]:
    """Remove a branch with the snapshots that only it has; the metadata files that nothing names any more then."""
    snapshot = iceberg_table.snapshot_by_name(branch)
    if snapshot is None:
        return []
    of_main = {entry.snapshot_id for entry in iceberg_table.metadata.snapshot_log}
    own, files = [], []
    while snapshot is not None and snapshot.snapshot_id not in of_main:
        own.append(snapshot.snapshot_id)
        files += [one.manifest_path for one in snapshot.manifests(iceberg_table.io) if one.added_snapshot_id in own]
        files.append(snapshot.manifest_list)
        snapshot = iceberg_table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None
    with iceberg_table.transaction() as transaction:
        ManageSnapshots(transaction).remove_branch(branch).commit()
        if own:
            ExpireSnapshots(transaction).by_ids(own).commit()
    return files
