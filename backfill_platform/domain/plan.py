"""The plan of a repair: which steps, on which tables, in which order. `plan` explains it and `run` walks it.

A plan is a frozen value computed from the declared tables and the assets asked for; nothing is read for it but the horizon.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.tables import Layer, Table
from backfill_platform.domain.windows import NO_MARGIN, UntilClosed, Window
from backfill_platform.errors import UsageError

DRY_RUN = "dry_run"
WAREHOUSE = "warehouse"

AssetPath = tuple[str, str]


@dataclass(frozen=True)
class Node:
    """A table in the flow of a pipeline: what it reads, and how far around an hour."""

    table: Table
    reads: Table | None
    window: Window = NO_MARGIN
    published: bool = False

    @property
    def assets(self) -> tuple[AssetPath, ...]:
        """The assets of the table: itself in the lake, and its dry run and its warehouse copy where it is published."""
        name = self.table.name
        return (self.table.path, *(((DRY_RUN, name), (WAREHOUSE, name)) if self.published else ()))


class Action(StrEnum):
    """What a step does."""

    LAND = "land"
    BUILD = "build"
    DRY_RUN = "dry-run"
    PUBLISH = "publish"


@dataclass(frozen=True)
class Step:
    """One step over all hours of the plan.

    `promote` says whether a lake step ends on `main` or stays on the branch of the repair, as in a dry run; `from_branch`
    whether a step reads the branch of the repair instead of `main`.
    """

    action: Action
    node: Node
    hours: HourRange
    promote: bool = True
    from_branch: bool = False
    explanation: str = ""

    @property
    def asset(self) -> AssetPath:
        """The asset that the step materializes."""
        if self.action is Action.DRY_RUN:
            return (DRY_RUN, self.node.table.name)
        if self.action is Action.PUBLISH:
            return (WAREHOUSE, self.node.table.name)
        return self.node.table.path


@dataclass(frozen=True)
class Plan:
    """The steps of a repair of the hours `[start, end)` of one pipeline, in order."""

    pipeline: str
    hours: HourRange
    steps: tuple[Step, ...]

    @property
    def assets(self) -> tuple[AssetPath, ...]:
        """The assets it materializes: those it was made for, in the order of the flow."""
        return tuple(step.asset for step in self.steps if step.promote or step.action in (Action.DRY_RUN, Action.PUBLISH))


def make_plan(pipeline: str, nodes: tuple[Node, ...], hours: HourRange, assets: Collection[AssetPath]) -> Plan:
    """The steps that materialize the given assets for the given hours.

    A dry run computes the tables it needs on the branch of the repair, unless the same repair builds them for real.
    `nodes` are in order of the flow. Raises UsageError for an asset the pipeline does not have.
    """
    known = {asset for node in nodes for asset in node.assets}
    if unknown := sorted("/".join(asset) for asset in assets if asset not in known):
        have = ", ".join("/".join(asset) for asset in sorted(known))
        raise UsageError(f"pipeline {pipeline} has no asset {', '.join(unknown)}; it has {have}")
    by_table = {node.table.path: node for node in nodes}
    only_for_dry_run: set[AssetPath] = set()
    for node in nodes:
        if (DRY_RUN, node.table.name) not in assets:
            continue
        needed: Node | None = node
        while needed is not None and needed.reads is not None and needed.table.path not in assets:
            only_for_dry_run.add(needed.table.path)
            needed = by_table[needed.reads.path]
    steps: list[Step] = []
    built: set[AssetPath] = set()
    for node in nodes:
        path = node.table.path
        if path in assets or path in only_for_dry_run:
            promote = path in assets
            from_branch = node.reads is not None and node.reads.path in built
            action = Action.LAND if node.reads is None else Action.BUILD
            explanation = _explain(node, hours, promote, from_branch)
            steps.append(Step(action, node, hours, promote, from_branch, explanation=explanation))
            if not promote:
                built.add(path)
        for prefix, action in ((DRY_RUN, Action.DRY_RUN), (WAREHOUSE, Action.PUBLISH)):
            if (prefix, node.table.name) in assets:
                from_branch = action is Action.DRY_RUN and path in built
                explanation = _explain_warehouse(node.table, action, from_branch)
                steps.append(Step(action, node, hours, False, from_branch, explanation))
    return Plan(pipeline, hours, tuple(steps))


def read_bounds(step: Step, origin: datetime, available_until: datetime) -> tuple[datetime, datetime]:
    """The first moment and the first end `[from, to)` that a build step reads; open keys are followed beyond `to`."""
    window = step.node.window
    return window.read_from(step.hours, origin), next(window.read_ends(step.hours, available_until))


def _explain(node: Node, hours: HourRange, promote: bool, from_branch: bool) -> str:
    target = "main" if promote else "the branch of this repair; main stays as it is"
    if node.reads is None:
        return f"land the lines of each hour, set aside what cannot be read, replace the hours on {target}"
    ahead = node.window.lookahead
    margin = f"{in_words(node.window.lookback)} before"
    if isinstance(ahead, UntilClosed):
        margin += f", and after until every {ahead.key} is silent for {in_words(ahead.gap)} (at most {in_words(ahead.cap)})"
    else:
        margin += f", {in_words(ahead)} after"
    exact = "exactly these hours" if node.window == NO_MARGIN else margin
    source = f"{node.reads} as this repair has built it" if from_branch else str(node.reads)
    return f"read {source} ({exact}), compute, check, replace the hours on {target}"


def _explain_warehouse(table: Table, action: Action, from_branch: bool) -> str:
    source = "what this repair has built" if from_branch else f"{table} in the lake"
    compare = f"stage {source} beside the warehouse table, compare, write and prove the delta"
    if action is Action.DRY_RUN:
        return f"{compare}; report it and change nothing"
    return f"{compare}; publish it, verify, write the ledger"


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
