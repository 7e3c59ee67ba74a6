"""What the runner asks of its engines: three to five calls each, so that tests can take fakes in memory for them.

The real ones are `iceberg_lake`, `spark_builder`, `publish` and `audit_log`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from backfill_platform.adapters.iceberg.inventory import LakeFile
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.offsets import Spans
from backfill_platform.domain.plan import Branch, BuildStep, LakeStep, LandStep, Plan, RequeueHours, TargetStep
from backfill_platform.domain.tables import Table
from backfill_platform.domain.windows import ContiguousRun
from backfill_platform.repair.outcomes import HourOutcome, Reading

if TYPE_CHECKING:
    from backfill_platform.repair.write_audit_promote import HourAudit


@dataclass(frozen=True)
class LakeContents:
    """What a branch has of some hours of a table, from the lake's metadata and a look at its storage.

    `built` are hours that were promoted, with rows or known to be empty; others were never built, or are lost. `unreadable`
    are hours with files that are gone from the storage or damaged. `quarantined` counts rejected rows.
    """

    files: tuple[LakeFile, ...] = ()
    built: frozenset[datetime] = frozenset()
    unreadable: frozenset[datetime] = frozenset()
    quarantined: Mapping[datetime, int] = field(default_factory=dict)
    snapshot_id: int | None = None

    @property
    def rows(self) -> dict[datetime, int]:
        """The row counts of the hours; hours without rows are absent."""
        counts: dict[datetime, int] = {}
        for file in self.files:
            counts[file.hour] = counts.get(file.hour, 0) + file.rows
        return counts


@dataclass(frozen=True)
class MadeOf:
    """The files of `main` that hours were made of: they must still be there when the hours are committed."""

    rows: tuple[LakeFile, ...]
    rejects: tuple[LakeFile, ...]


class LakePort(Protocol):
    """The lake as the runner sees it: hours of tables on `main` and on the repair's branch."""

    def prepare(self, tables: Iterable[Table]) -> None:
        """Create what is missing, and discard the branches of repairs that died."""
        ...

    def contents(self, table: Table, hours: Collection[datetime], branch: Branch = Branch.MAIN) -> LakeContents:
        """What the branch has of the hours."""
        ...

    def row_counts(self, table: Table, hours: HourRange) -> dict[datetime, int]:
        """The rows of the hours on `main`, from metadata alone; hours without rows are left out."""
        ...

    def promote(self, table: Table, hours: Collection[datetime], made_of: MadeOf | None = None) -> None:
        """Commit the hours of the repair's branch to `main`, rows and rejects in one commit.

        Raises HourLeased where they were `made_of` files that others have replaced.
        """
        ...

    def discard(self, table: Table) -> None:
        """Forget the repair's branch and delete its files; what was committed to `main` stays."""
        ...


@dataclass(frozen=True)
class BuiltHours:
    """The audits of the hours that were written to the repair's branch, and what was read for them."""

    audits: Mapping[datetime, HourAudit]
    reading: Reading


class BuilderPort(Protocol):
    """What computes rows and writes them, audited, to the repair's branch."""

    def absent(self, hours: Collection[datetime]) -> dict[datetime, str]:
        """The raw hours that cannot be landed now, each with the reason."""
        ...

    def land(self, step: LandStep, hours: Collection[datetime]) -> dict[datetime, HourAudit]:
        """Land the hours from the source."""
        ...

    def versions(self, hours: Collection[datetime]) -> dict[datetime, str]:
        """What tells the source of each raw hour from other versions of it; empty where nothing does."""
        ...

    def offsets(self, hour: datetime) -> Spans:
        """The offsets of a topic that a raw hour is made of; none for files."""
        ...

    def build(self, step: BuildStep, runs: Collection[ContiguousRun]) -> BuiltHours:
        """Compute the hours of the runs."""
        ...


class RequeuerPort(Protocol):
    """What sends quarantined lines through the parser again, onto the repair's branch."""

    def hours(self, step: RequeueHours) -> set[datetime]:
        """The hours that have something to requeue."""
        ...

    def unreadable(self, hours: Collection[datetime]) -> set[datetime]:
        """The hours whose quarantined lines are gone from the storage."""
        ...

    def versions(self, hours: Collection[datetime]) -> dict[datetime, str]:
        """Of which version of the source each hour is; empty where nothing tells."""
        ...

    def offsets(self, hours: Collection[datetime]) -> dict[datetime, Spans]:
        """The offsets of a topic that each hour was landed from; empty for files."""
        ...

    def requeue(self, step: RequeueHours, hours: Collection[datetime]) -> tuple[dict[datetime, HourAudit], MadeOf]:
        """Write the hours anew, with the lines that pass by now; their audits, and what they were made of."""
        ...


@dataclass(frozen=True)
class TargetTask:
    """The hours to compare or publish, with the lake's files of them and the target's net states when the repair began."""

    step: TargetStep
    hours: tuple[datetime, ...]
    lake: LakeContents
    stored_before: Mapping[datetime, Fingerprint]


class PublisherPort(Protocol):
    """What compares the lake with a warehouse table and publishes the difference."""

    def stored(self, table: Table, hours: Collection[datetime]) -> Mapping[datetime, Fingerprint]:
        """The net state of the hours; empty where there is no such table yet."""
        ...

    def compare(self, task: TargetTask) -> tuple[list[HourOutcome], str]:
        """Stage, compare and prove; publish nothing. The outcomes, and how a publish would be done."""
        ...

    def publish(self, task: TargetTask) -> tuple[list[HourOutcome], str]:
        """Stage, compare, prove, publish and verify. The outcomes, and how it was published."""
        ...


class AuditLogPort(Protocol):
    """The record of what was asked for and done."""

    def begin(self, plan: Plan) -> None:
        """Note what is asked for."""
        ...

    def lake_step(self, step: LakeStep, outcomes: Iterable[HourOutcome], started: datetime) -> None:
        """Note what landing or building did to each hour."""
        ...


@dataclass(frozen=True)
class RepairServices:
    """The engines of one repair."""

    lake: LakePort
    builder: BuilderPort
    requeuer: RequeuerPort
    publisher: PublisherPort
    audit_log: AuditLogPort
