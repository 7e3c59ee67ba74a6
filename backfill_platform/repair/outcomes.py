"""What a repair tells while it runs: plain values that Dagster and the command line show in their own ways."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.plan import AssetPath, Step

Fact = int | float | str | bool

# Checks of hours that hold nothing back: what the detector finds, and what waits for a person.
NO_GAP = "no_gap"
NO_PENDING_APPROVAL = "no_pending_approval"

OFFSETS = "offsets"  # the fact of a landed hour that holds the offsets of a topic it was made from


@dataclass(frozen=True)
class Rows:
    """A small table for people: a title, column names and rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Fact, ...], ...]


@dataclass(frozen=True)
class CheckResult:
    """One check of one hour. Only a blocking check keeps the hour from being written."""

    name: str
    passed: bool
    blocking: bool
    description: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    tables: tuple[Rows, ...] = ()


@dataclass(frozen=True)
class HourOutcome:
    """What a step did to one hour. `error` is empty when the hour is done and verified; nothing was written otherwise.

    With `due`, the hour did not fail: it cannot be done before that moment, because its window is not over. `asks` says that
    nothing is broken: the repair refused the hour, and a person may allow it. `content` is a fingerprint of the rows that a
    lake step has written.
    """

    asset: AssetPath
    hour: datetime
    error: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    checks: tuple[CheckResult, ...] = ()
    tables: tuple[Rows, ...] = ()
    due: datetime | None = None
    content: Fingerprint | None = None
    asks: bool = False

    @property
    def failed(self) -> bool:
        """Whether something has to be done about the hour, other than to wait."""
        return bool(self.error) and self.due is None


@dataclass(frozen=True)
class StepStarted:
    """A step begins: number `number` of `total`, over `hours` hours."""

    step: Step
    number: int
    total: int


@dataclass(frozen=True)
class StepFinished:
    """A step is over: facts and tables about the whole range, such as how far reading went and the proof of closure."""

    step: Step
    facts: Mapping[str, Fact]
    outcomes: Sequence[HourOutcome]
    tables: tuple[Rows, ...] = ()


Event = StepStarted | HourOutcome | StepFinished
Listener = Callable[[Event], None]
