"""The plan of a repair: which steps, on which tables, in which order.

A plan is a frozen value. It is made once, from the declared tables and the assets that were asked for; `backfill plan` explains
it, a run is handed it as configuration (`to_document`), and the runner walks exactly these steps.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.tables import Layer, Table
from backfill_platform.domain.windows import NO_MARGIN, UntilClosed, Window
from backfill_platform.errors import UsageError

DRY_RUN = "dry_run"
WAREHOUSE = "warehouse"

AssetPath = tuple[str, str]


@dataclass(frozen=True)
class Input:
    """A table that a transform reads, and how far around an hour.

    `elsewhere` names the other pipeline that fills the table, if one does: its hours are read as they are, and never built.
    `origin` and `end` are then the bounds of that pipeline's hours; an `end` of None means that it is live.
    """

    table: Table
    window: Window = NO_MARGIN
    elsewhere: str = ""
    origin: datetime | None = None
    end: datetime | None = None

    def __str__(self) -> str:
        return f"{self.table} of {self.elsewhere}" if self.elsewhere else str(self.table)

    def bounds(self, origin: datetime, end: datetime | None) -> tuple[datetime, datetime | None]:
        """The first hour that can exist and the end of the last one; those given are of the pipeline that reads."""
        return (self.origin or origin, self.end) if self.elsewhere else (origin, end)


@dataclass(frozen=True)
class Node:
    """A table in the flow of a pipeline: what it reads, and how far around an hour.

    `beside` are the inputs besides the first one, `reads`; they have fixed margins.
    """

    table: Table
    reads: Table | None
    window: Window = NO_MARGIN
    published: bool = False
    beside: tuple[Input, ...] = ()

    @property
    def inputs(self) -> tuple[Input, ...]:
        """All that the transform reads, in the order in which it gets them; nothing for a table that is landed."""
        return () if self.reads is None else (Input(self.reads, self.window), *self.beside)

    def windows_on(self, table: Table) -> tuple[Window, ...]:
        """How far around an hour the table is read; nothing where it is not."""
        return tuple(one.window for one in self.inputs if one.table == table)

    @property
    def assets(self) -> tuple[AssetPath, ...]:
        """The assets of the table: itself in the lake, and its dry run and its warehouse copy where it is published."""
        name = self.table.name
        return (self.table.path, *(((DRY_RUN, name), (WAREHOUSE, name)) if self.published else ()))


class Landing(StrEnum):
    """What landing does with hours that have landed already."""

    SAFE = "safe"  # land them again, but never keep fewer rows than there are
    MISSING = "missing"  # leave them alone
    REPLACE = "replace"  # land them again, whatever comes of it


class Branch(StrEnum):
    """Where a step reads a lake table: `main`, or the branch of the repair that a dry run builds on."""

    MAIN = "main"
    REPAIR = "repair"


@dataclass(frozen=True)
class _TableStep:
    """One step over all hours of `[start, end)` of one table. `verb` names it for people and in documents."""

    verb: ClassVar[str]

    node: Node
    hours: HourRange

    @property
    def asset(self) -> AssetPath:
        """The asset that the step works on."""
        return self.node.table.path


@dataclass(frozen=True)
class LandMargin(_TableStep):
    """Land raw hours around the range that its windows need and that have not landed; then commit them to `main`."""

    verb: ClassVar[str] = "land-margin"


@dataclass(frozen=True)
class LandHours(_TableStep):
    """Land the lines of each hour on the repair's branch, check them, commit the sound hours to `main`."""

    verb: ClassVar[str] = "land"

    landing: Landing = Landing.SAFE


@dataclass(frozen=True)
class RequeueHours(_TableStep):
    """Parse quarantined lines of raw hours again, move those that pass to the table; both change in one commit to `main`.

    `reasons` limits it to lines that were rejected for one of these; without any, all are taken.
    """

    verb: ClassVar[str] = "requeue"

    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuildHours(_TableStep):
    """Compute the hours from `main` on the repair's branch, check them, commit the sound hours to `main`."""

    verb: ClassVar[str] = "build"


@dataclass(frozen=True)
class RehearseBuild(_TableStep):
    """Compute the hours on the repair's branch and leave them there, for a dry run; `main` stays as it is.

    `rehearsed` names the inputs that are read from that branch, because a step before has computed them there.
    """

    verb: ClassVar[str] = "rehearse"

    rehearsed: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompareHours(_TableStep):
    """Stage the lake's rows beside the warehouse table, compare, write and prove the delta, report it; publish nothing."""

    verb: ClassVar[str] = "dry-run"

    source: Branch = Branch.MAIN

    @property
    def asset(self) -> AssetPath:
        """The dry run of the table."""
        return (DRY_RUN, self.node.table.name)


@dataclass(frozen=True)
class PublishHours(_TableStep):
    """Stage, compare and prove as in a dry run; publish the delta, verify it, write the ledger."""

    verb: ClassVar[str] = "publish"

    @property
    def asset(self) -> AssetPath:
        """The table in the warehouse."""
        return (WAREHOUSE, self.node.table.name)


LandStep = LandMargin | LandHours
BuildStep = BuildHours | RehearseBuild
LakeStep = LandStep | RequeueHours | BuildStep
TargetStep = CompareHours | PublishHours
Step = LakeStep | TargetStep

_STEPS: tuple[type[Step], ...] = (LandMargin, LandHours, RequeueHours, BuildHours, RehearseBuild, CompareHours, PublishHours)
_BY_VERB: Mapping[str, type[Step]] = {kind.verb: kind for kind in _STEPS}


@dataclass(frozen=True)
class Plan:
    """The steps of a repair of the hours `[start, end)` of one pipeline, in order."""

    pipeline: str
    hours: HourRange
    steps: tuple[Step, ...]

    @property
    def assets(self) -> tuple[AssetPath, ...]:
        """The assets it materializes: those it was made for, in the order of the flow."""
        return tuple(step.asset for step in self.steps if not isinstance(step, LandMargin | RehearseBuild))

    def without(self, assets: Collection[AssetPath]) -> "Plan":
        """The plan without the steps of these assets."""
        return replace(self, steps=tuple(step for step in self.steps if step.asset not in assets))

    @property
    def only_lands(self) -> bool:
        """Whether it lands raw hours and does nothing else."""
        return all(isinstance(step, LandMargin | LandHours) for step in self.steps)

    @property
    def is_requeue(self) -> bool:
        """Whether it parses quarantined lines again."""
        return any(isinstance(step, RequeueHours) for step in self.steps)

    def to_document(self) -> dict[str, Any]:
        """The plan as plain values, such as run configuration takes; `plan_from_document` reads them."""
        return {
            "pipeline": self.pipeline,
            "from": self.hours.start.isoformat(),
            "to": self.hours.end.isoformat(),
            "steps": [_step_document(step) for step in self.steps],
        }


def plan_from_document(document: Mapping[str, Any], pipeline: str, nodes: Iterable[Node]) -> Plan:
    """The plan that `to_document` has written.

    Raises UsageError where it is of another pipeline, or no plan of this version.
    """
    by_name = {"/".join(node.table.path): node for node in nodes}
    try:
        if document["pipeline"] != pipeline:
            raise UsageError(f"the plan is of pipeline {document['pipeline']}, not of {pipeline}")
        hours = HourRange.parse(document["from"], document["to"])
        return Plan(pipeline, hours, tuple(_step_from_document(step, by_name) for step in document["steps"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the plan in the configuration of the run cannot be read ({error!r}); make it anew") from error


def make_plan(
    pipeline: str,
    nodes: tuple[Node, ...],
    hours: HourRange,
    assets: Collection[AssetPath],
    landing: Landing = Landing.SAFE,
) -> Plan:
    """The steps that materialize the given assets for the given hours.

    A dry run computes the tables it needs on the branch of the repair, unless the same repair builds them for real.
    `nodes` are in order of the flow. Raises UsageError for an asset the pipeline does not have.
    """
    known = {asset for node in nodes for asset in node.assets}
    if unknown := sorted("/".join(asset) for asset in assets if asset not in known):
        have = ", ".join("/".join(asset) for asset in sorted(known))
        raise UsageError(f"pipeline {pipeline} has no asset {', '.join(unknown)}; it has {have}")
    rehearsed = _needed_by_dry_runs(nodes, assets)
    steps: list[Step] = []
    for node in nodes:
        path = node.table.path
        if path in assets:
            steps.append(LandHours(node, hours, landing) if node.reads is None else BuildHours(node, hours))
        elif path in rehearsed:
            on_branch = tuple(one.table.name for one in node.inputs if one.table.path in rehearsed)
            steps.append(RehearseBuild(node, hours, on_branch))
        if (DRY_RUN, node.table.name) in assets:
            steps.append(CompareHours(node, hours, Branch.REPAIR if path in rehearsed else Branch.MAIN))
        if (WAREHOUSE, node.table.name) in assets:
            steps.append(PublishHours(node, hours))
    return Plan(pipeline, hours, tuple(steps))


def requeue_plan(pipeline: str, raw: Node, hours: HourRange, reasons: Iterable[str] = ()) -> Plan:
    """The plan that sends quarantined lines of raw hours through the parser again; what is computed from them is stale then."""
    return Plan(pipeline, hours, (RequeueHours(raw, hours, tuple(reasons)),))


def source_of(step: TargetStep) -> Branch:
    """Where a step reads the lake: what a repair publishes is read from `main` alone."""
    return step.source if isinstance(step, CompareHours) else Branch.MAIN


def branch_of(source: Input, step: BuildStep) -> Branch:
    """Where a step reads one of its inputs: what a repair commits is computed from `main` alone."""
    rehearsed = step.rehearsed if isinstance(step, RehearseBuild) else ()
    return Branch.REPAIR if source.table.name in rehearsed else Branch.MAIN


def explanation(step: Step) -> str:
    """What the step reads and does, for people."""
    table = step.node.table
    match step:
        case LandMargin():
            return "land raw hours around the range that its windows need; hours that have landed stay as they are"
        case LandHours():
            return "land the lines of each hour, set aside what cannot be read, commit the hours to main"
        case RequeueHours():
            whose = f"rejected for {' or '.join(step.reasons)}" if step.reasons else "in quarantine"
            return f"parse the lines {whose} again, move those that pass to {table}, commit both tables at once"
        case BuildHours():
            return f"read {_source(step)}, compute, check, commit the hours to main"
        case RehearseBuild():
            return f"read {_source(step)}, compute and check on the branch of this repair; main stays as it is"
        case CompareHours():
            source = "what this repair has built" if step.source is Branch.REPAIR else f"{table} in the lake"
            return (
                f"stage {source} beside {_in_warehouse(table)}, compare, write and prove the delta; report it, publish nothing"
            )
        case PublishHours():
            return (
                f"stage {table} in the lake beside {_in_warehouse(table)}, compare, write and prove the delta; publish it, "
                "verify, write the ledger"
            )


def _in_warehouse(table: Table) -> str:
    """The table of the warehouse, with its name where that is not the one of the lake."""
    place = ".".join(table.stored_in)
    return "the warehouse table" if table.stored_in == table.path else f"the warehouse table {place}"


def in_words(span: timedelta) -> str:
    """A span for people, in the largest unit that holds it without a rest: `30 min`."""
    seconds = int(span.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def layer_order(path: AssetPath) -> tuple[int, str]:
    """Sorts assets in the order of the flow."""
    order = (Layer.RAW, Layer.TRANSFORMED, Layer.AGGREGATED, DRY_RUN, WAREHOUSE)
    return (order.index(path[0]), path[1])


def _needed_by_dry_runs(nodes: tuple[Node, ...], assets: Collection[AssetPath]) -> set[AssetPath]:
    """The derived tables that dry runs need and that nobody asks to build for real."""
    by_table = {node.table.path: node for node in nodes}
    needed: set[AssetPath] = set()
    # Against the flow: what a table needs is declared before it.
    for node in reversed(nodes):
        wanted = (DRY_RUN, node.table.name) in assets or node.table.path in needed
        if wanted and node.reads is not None and node.table.path not in assets:
            needed.add(node.table.path)
            needed |= {
                one.table.path for one in node.inputs if not one.elsewhere and by_table[one.table.path].reads is not None
            }
    return needed - set(assets)


def _source(step: BuildStep) -> str:
    def told(source: Input) -> str:
        built = " as this repair has built it" if branch_of(source, step) is Branch.REPAIR else ""
        return f"{source}{built} ({_margin(source.window)})"

    return ", and ".join(told(source) for source in step.node.inputs)


def _margin(window: Window) -> str:
    if window == NO_MARGIN:
        return "exactly these hours"
    ahead = window.lookahead
    before = f"{in_words(window.lookback)} before"
    if not isinstance(ahead, UntilClosed):
        return f"{before}, {in_words(ahead)} after"
    return f"{before}, and after until every {ahead.key} is silent for {in_words(ahead.gap)} (at most {in_words(ahead.cap)})"


def _step_document(step: Step) -> dict[str, Any]:
    document: dict[str, Any] = {
        "do": step.verb,
        "table": str(step.node.table),
        "from": step.hours.start.isoformat(),
        "to": step.hours.end.isoformat(),
    }
    match step:
        case LandHours():
            document["landing"] = str(step.landing)
        case RehearseBuild():
            document["rehearsed"] = ",".join(step.rehearsed)
        case RequeueHours():
            document["reasons"] = list(step.reasons)
        case CompareHours():
            document["source"] = str(step.source)
        case LandMargin() | BuildHours() | PublishHours():
            pass
    return document


def _step_from_document(document: Mapping[str, Any], by_name: Mapping[str, Node]) -> Step:
    kind, node = _BY_VERB[document["do"]], by_name[document["table"]]
    hours = HourRange.parse(document["from"], document["to"])
    if kind is LandHours:
        return LandHours(node, hours, Landing(document["landing"]))
    if kind is RequeueHours:
        return RequeueHours(node, hours, tuple(map(str, document["reasons"])))
    if kind is RehearseBuild:
        return RehearseBuild(node, hours, tuple(name for name in document["rehearsed"].split(",") if name))
    if kind is CompareHours:
        return CompareHours(node, hours, Branch(document["source"]))
    return kind(node, hours)
