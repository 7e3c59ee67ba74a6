"""What a repair reports while it runs, as typed values.

How they are shown is decided elsewhere (`reports`, `orchestration`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from backfill_platform.adapters.clickhouse.publishing.diff import HourDiff
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish
from backfill_platform.adapters.clickhouse.state.ledger import LedgerEntry
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.offsets import Spans
from backfill_platform.domain.plan import AssetPath, Step

Fact = int | float | str | bool

# Checks of hours that block nothing: what the detector finds, and what waits for a person's approval.
NO_GAP = "no_gap"
NO_PENDING_APPROVAL = "no_pending_approval"
NEEDS = "it needs"  # begins the error of an hour that waits for an hour of another table; after a colon comes the cause


@dataclass(frozen=True)
class Rows:
    """A small table for people: a title, column names and rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Fact, ...], ...]


@dataclass(frozen=True)
class CheckResult:
    """One check of one hour, with what it counted as evidence. Only a blocking check keeps the hour from being written."""

    name: str
    passed: bool
    blocking: bool
    description: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    tables: tuple[Rows, ...] = ()


@dataclass(frozen=True)
class LakeHour:
    """What landing or building wrote of an hour: counts at every boundary, and a fingerprint of the rows.

    `rows_read` are lines or rows that it was made from, `deduplicated` of these further deliveries of an event; None where
    they were not counted. `measures` are the table's own counts, such as open sessions. `offsets` are those of a topic,
    `source_version` is that of files.
    """

    rows: int
    quarantined: int
    content: Fingerprint
    rows_read: int | None = None
    deduplicated: int | None = None
    measures: Mapping[str, int] = field(default_factory=dict)
    offsets: Spans = ()
    source_version: str = ""


@dataclass(frozen=True)
class TargetHour:
    """What comparing or publishing found and did to an hour of a warehouse table.

    `difference` is None where the hour was not compared. `views_to_rebuild` says which views may lack or double rows of it.
    `other_tenants` are the fingerprints before and after of the rows that a repair of some tenants must leave alone. `history`
    is what the ledger has of the hour, newest first.
    """

    result: HourPublish
    difference: HourDiff | None = None
    views_to_rebuild: str = ""
    other_tenants: tuple[Fingerprint, Fingerprint] | None = None
    history: tuple[LedgerEntry, ...] = ()

    @property
    def changes_rows(self) -> bool:
        """Whether rows were, or would be, cancelled or written."""
        return bool(self.result.cancels or self.result.states)


@dataclass(frozen=True)
class HourOutcome:
    """What a step did to one hour. `error` is empty when the hour is done and verified; nothing was written otherwise.

    With `due`, the hour did not fail: it cannot be done before that moment, because its window is not over. `refused` says that
    nothing is broken: the repair refused the hour, and a person may allow it. `lake` is what a lake step wrote, `target` what a
    step at the warehouse found or did.
    """

    asset: AssetPath
    hour: datetime
    error: str = ""
    checks: tuple[CheckResult, ...] = ()
    lake: LakeHour | None = None
    target: TargetHour | None = None
    due: datetime | None = None
    refused: bool = False

    @property
    def failed(self) -> bool:
        """Whether something has to be done about the hour, other than to wait."""
        return bool(self.error) and self.due is None

    @property
    def differs(self) -> bool:
        """Whether the warehouse was found to differ from the lake."""
        return self.target is not None and self.target.difference is not None and self.target.difference.differs


@dataclass(frozen=True)
class Closure:
    """The proof that sessions were read to their ends: how many were cut at first, and how far reading went on.

    `stopped_at` says what ended it: all closed, their cap, or the end of the landed hours.
    """

    cut_at_first_read_end: int
    margin: timedelta
    open_at_end: int
    stopped_at: str


@dataclass(frozen=True)
class Reading:
    """What a build has read: event times `[start, end)`, files read and files that column bounds have ruled out.

    `closed_by_margin` tells for margins beyond the range how many sessions were still open there, and the share that was not.
    """

    start: datetime
    end: datetime
    files: int
    files_pruned: int
    closure: Closure | None = None
    closed_by_margin: tuple[tuple[Fact, ...], ...] = ()


@dataclass(frozen=True)
class StepStarted:
    """A step begins: number `number` of `total`."""

    step: Step
    number: int
    total: int


@dataclass(frozen=True)
class HoursCommitted:
    """The hours of a lake table were committed to `main`, in one commit: readers see them from now on."""

    step: Step
    hours: tuple[datetime, ...]


@dataclass(frozen=True)
class StepFinished:
    """A step, or a part of a long one, is over. What is about the whole range stands beside the outcomes of its hours.

    `already_landed` counts hours that landing has left alone; `published_by` says by which statements a target is published.
    """

    step: Step
    outcomes: Sequence[HourOutcome]
    reading: Reading | None = None
    already_landed: int | None = None
    published_by: str = ""


Event = StepStarted | HoursCommitted | HourOutcome | StepFinished
Listener = Callable[[Event], None]
