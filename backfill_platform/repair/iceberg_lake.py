"""The runner's view of the lake: hours of tables on `main` and on the branch that is named after the repair."""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime

from backfill_platform.adapters.iceberg.changes import MAIN
from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import Branch
from backfill_platform.domain.tables import Table
from backfill_platform.repair.ports import LakeContents, MadeOf


class IcebergLake:
    """Tables of a lake with their quarantines.

    `live_repairs` names the other repairs that may be under way; without it nothing that repairs have staged is touched.
    """

    def __init__(self, lake: Lake, repair_id: str, live_repairs: Callable[[], Collection[str]] | None = None) -> None:
        self._lake = lake
        self._repair_id = repair_id
        self._live_repairs = live_repairs

    def prepare(self, tables: Iterable[Table]) -> None:
        """Create what is missing, and discard the branches of repairs that died."""
        for table in tables:
            for stored in (table, quarantine_of(table)):
                self._lake.ensure(stored)
                if self._live_repairs is not None:
                    self._lake.sweep(stored, self._live_repairs)

    def contents(self, table: Table, hours: Collection[datetime], branch: Branch = Branch.MAIN) -> LakeContents:
        """What the branch has of the hours; `built` are those of `main`."""
        if not hours:
            return LakeContents()
        name = self.branch_name(branch)
        files = self._lake.files(table, hours, branch=name)
        missing = self._lake.gone(files)
        rejects = self._lake.rows_by_hour(quarantine_of(table), HourRange.covering(hours), branch=name)
        return LakeContents(
            tuple(files),
            frozenset(self._lake.built_hours(table, HourRange.covering(hours)).intersection(hours)),
            frozenset(file.hour for file in files if file.uri in missing),
            {hour: rejects.get(hour, 0) for hour in hours},
            self._lake.snapshot(table, branch=name),
        )

    def row_counts(self, table: Table, hours: HourRange) -> dict[datetime, int]:
        """The rows of the hours on `main`, without a look at the storage; hours without rows are left out."""
        return self._lake.rows_by_hour(table, hours)

    def promote(self, table: Table, hours: Collection[datetime], made_of: MadeOf | None = None) -> None:
        """Commit the hours of the repair's branch to `main`, rows and rejects in one commit."""
        rejects = quarantine_of(table)
        files = None if made_of is None else {table: made_of.rows, rejects: made_of.rejects}
        self._lake.promote(table, self._repair_id, hours, beside=rejects, made_of=files)

    def discard(self, table: Table) -> None:
        """Forget the repair's branch and delete its files; what was committed to `main` stays."""
        for stored in (table, quarantine_of(table)):
            self._lake.discard(stored, self._repair_id, self._repair_id)

    def version(self, table: Table, branch: Branch) -> tuple[str, int | None]:
        """The id of a table, and that of the newest snapshot of its branch, None where there is none."""
        return self._lake.table_id(table), self._lake.snapshot(table, branch=self.branch_name(branch))

    def branch_name(self, branch: Branch) -> str:
        """The branch's name in Iceberg."""
        return MAIN if branch is Branch.MAIN else self._repair_id
