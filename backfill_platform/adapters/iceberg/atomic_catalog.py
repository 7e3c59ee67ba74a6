"""A SQL catalog that commits to several tables at once: all of them change, or none does.

Iceberg commits table by table. The catalog is one SQL table that names the newest metadata of each, so the names of several can
change in one transaction of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from sqlalchemy import update
from sqlalchemy.orm import Session

Held = tuple[Table, StagedTable]


class AtomicCatalog(SqlCatalog):
    """pyiceberg's catalog in SQL; what is committed inside of `together` becomes visible at its end, in one transaction."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._here = threading.local()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hold the commits of this thread back, one for each table, and make them at the end of the block.

        Raises CommitFailedException, and changes no table, when another writer has committed to one of them meanwhile.
        """
        held: list[Held] = []
        self._here.held = held
        try:
            yield
        except BaseException:
            _forget(held)
            raise
        finally:
            self._here.held = None
        try:
            self._swap(held)
        except CommitFailedException:
            # After any other error the transaction may have taken place, and the catalog name the new metadata.
            _forget(held)
            raise

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Commit at once, or hold the new metadata back for the end of the block."""
        held: list[Held] | None = getattr(self._here, "held", None)
        if held is None:
            return super().commit_table(table, requirements, updates)
        current = self.load_table(table.name())
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        if staged.metadata == current.metadata:
            return CommitTableResponse(metadata=current.metadata, metadata_location=current.metadata_location)
        self._write_metadata(metadata=staged.metadata, io=staged.io, metadata_path=staged.metadata_location)
        held.append((current, staged))
        return CommitTableResponse(metadata=staged.metadata, metadata_location=staged.metadata_location)

    def _swap(self, held: list[Held]) -> None:
        with Session(self.engine) as session, session.begin():
            # In one order, so that two writers of the same tables do not wait for each other.
            for current, staged in sorted(held, key=lambda one: one[0].name()):
                namespace = Catalog.namespace_to_string(Catalog.namespace_from(current.name()))
                done: Any = session.execute(
                    update(IcebergTables)
                    .where(
                        IcebergTables.catalog_name == self.name,
                        IcebergTables.table_namespace == namespace,
                        IcebergTables.table_name == Catalog.table_name_from(current.name()),
                        IcebergTables.metadata_location == current.metadata_location,
                    )
                    .values(metadata_location=staged.metadata_location, previous_metadata_location=current.metadata_location)
                )
                if done.rowcount != 1:
                    raise CommitFailedException(f"{'.'.join(current.name())} has been changed by another writer")


def _forget(held: list[Held]) -> None:
    """Delete metadata that no table names."""
    for _, staged in held:
        staged.io.delete(staged.metadata_location)
