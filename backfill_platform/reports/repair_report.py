"""The report of a run: what was asked for, what became of every hour, and what is left for people to do.

One value for the page in Dagster, the terminal and messages; `render` words it by templates.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from backfill_platform.domain.hours import HourRange, format_hour, merge_hours
from backfill_platform.domain.notification import NotificationKind
from backfill_platform.domain.plan import DRY_RUN, WAREHOUSE, AssetPath, Plan
from backfill_platform.domain.request import PLAIN_REQUEST, RepairRequest
from backfill_platform.domain.tables import Layer
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.planning.downstream import Following
from backfill_platform.repair.outcomes import CheckResult, Event, HourOutcome, StepFinished, StepStarted, TargetHour
from backfill_platform.repair.publish import REFUSALS, WITHIN_CHANGE_LIMITS
from backfill_platform.repair.undo import UndoneTable
from backfill_platform.reports.words import hours_of, plural

_IN_CLICKHOUSE = (DRY_RUN, WAREHOUSE)


@dataclass(frozen=True)
class RunSubject:
    """What a run is about. What is not known when it begins, or fails, is empty; `undoes` names a repair that it takes back."""

    pipeline: Pipeline
    hours: HourRange | None = None
    assets: tuple[AssetPath, ...] = ()
    repair_id: str = ""
    request: RepairRequest = PLAIN_REQUEST
    undoes: str = ""
    run_url: str = ""

    @property
    def rehearses(self) -> bool:
        """Whether nothing but dry runs was asked for."""
        return bool(self.assets) and all(asset[0] == DRY_RUN for asset in self.assets)

    @property
    def verb(self) -> str:
        """What the run does."""
        return f"undo of {self.undoes}" if self.undoes else "dry run" if self.rehearses else "repair"

    @property
    def worked_on_targets(self) -> list[str]:
        """The names of the warehouse tables that it is about."""
        return [name for prefix, name in self.assets if prefix in _IN_CLICKHOUSE]


@dataclass
class AssetReport:
    """What became of the hours of one asset."""

    asset: AssetPath
    done: list[datetime] = field(default_factory=list)
    changed: list[datetime] = field(default_factory=list)
    failed: dict[datetime, str] = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)
    columns: Counter[str] = field(default_factory=Counter)
    checks: dict[str, tuple[list[datetime], list[datetime]]] = field(default_factory=dict)  # hours passed and failed

    @property
    def name(self) -> str:
        """`warehouse/sessions`."""
        return "/".join(self.asset)

    @property
    def in_warehouse(self) -> bool:
        """Whether it is a dry run or a table of the warehouse."""
        return self.asset[0] in _IN_CLICKHOUSE

    @property
    def is_raw(self) -> bool:
        """Whether its hours are landed."""
        return self.asset[0] == Layer.RAW

    @property
    def is_dry_run(self) -> bool:
        """Whether nothing of it was written."""
        return self.asset[0] == DRY_RUN

    def add(self, outcome: HourOutcome) -> None:
        """Count an hour."""
        for check in outcome.checks:
            passed, failed = self.checks.setdefault(check.name, ([], []))
            (passed if check.passed else failed).append(outcome.hour)
        if outcome.error:
            self.failed[outcome.hour] = outcome.error
            return
        self.done.append(outcome.hour)
        if outcome.lake is not None:
            self.sums.update({"rows": outcome.lake.rows, "quarantined": outcome.lake.quarantined})
        if (target := outcome.target) is not None:
            result = target.result
            self.sums.update(
                {
                    "rows": result.desired.rows,
                    "cancels": result.cancels,
                    "states": result.states,
                    "untouched": result.untouched,
                }
            )
            if target.changes_rows:
                self.changed.append(outcome.hour)
            if target.difference is not None:
                self.columns.update({change.column: change.rows for change in target.difference.columns})


@dataclass
class RepairReport:
    """Collects what a run tells, hour by hour.

    `conflicts` are the rows that an undo left alone because they have changed, `following` what is stale by the run.
    """

    subject: RunSubject
    plan: Plan | None = None
    outcomes: list[HourOutcome] = field(default_factory=list)
    steps: dict[AssetPath, list[StepFinished]] = field(default_factory=dict)
    error: str = ""
    conflicts: int = 0
    following: tuple[Following, ...] = ()
    seconds: dict[AssetPath, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _since: float = 0.0

    def take(self, event: Event) -> None:
        """Keep what a run tells: its hours, and its steps with the time that they take."""
        if isinstance(event, StepStarted):
            self._since = self.clock()
        elif isinstance(event, HourOutcome):
            self.add(event)
        elif isinstance(event, StepFinished):
            now, asset = self.clock(), event.step.asset
            self.seconds[asset] = self.seconds.get(asset, 0.0) + now - self._since
            self._since = now
            self.add_step(event)

    def add(self, outcome: HourOutcome) -> None:
        """Keep an hour, without samples and history, of which a year of hours has too many to keep."""
        checks = tuple(replace(check, facts={}, tables=()) for check in outcome.checks)
        self.outcomes.append(replace(outcome, checks=checks, target=_light(outcome.target)))

    def add_step(self, finished: StepFinished) -> None:
        """Keep what a step, or a part of one, has told about its range."""
        targets = tuple(replace(outcome, checks=(), lake=None, target=_light(outcome.target)) for outcome in finished.outcomes)
        self.steps.setdefault(finished.step.asset, []).append(replace(finished, outcomes=targets))

    def add_undone(self, undone: UndoneTable) -> None:
        """Keep what an undo took back of a table."""
        asset = (WAREHOUSE, undone.table.rpartition("/")[2])
        for result in undone.results:
            self.add(
                HourOutcome(
                    asset, result.hour, result.reason, target=TargetHour(result), refused=isinstance(result.error, REFUSALS)
                )
            )
        self.conflicts += undone.undoable.conflicts

    @property
    def assets(self) -> dict[AssetPath, AssetReport]:
        """What became of each asset, in the order in which it was worked on."""
        found: dict[AssetPath, AssetReport] = {}
        for outcome in self.outcomes:
            found.setdefault(outcome.asset, AssetReport(outcome.asset)).add(outcome)
        return found

    @property
    def open_sessions(self) -> list[tuple[str, int, str]]:
        """The assets with sessions that go on after what was read: how many of them, and what ended the reading."""
        found = []
        for asset, steps in self.steps.items():
            last = steps[-1].reading.closure if steps[-1].reading else None
            if last is not None and last.open_at_end:
                found.append(("/".join(asset), last.open_at_end, last.stopped_at))
        return found

    @property
    def failed(self) -> list[HourOutcome]:
        """Hours that something is wrong with."""
        return [outcome for outcome in self.outcomes if outcome.failed and not outcome.refused]

    @property
    def refused(self) -> list[HourOutcome]:
        """Hours that the repair refused, and that a person may allow."""
        return [outcome for outcome in self.outcomes if outcome.failed and outcome.refused]

    @property
    def due(self) -> list[HourOutcome]:
        """Hours that cannot be done yet."""
        return [outcome for outcome in self.outcomes if outcome.error and outcome.due is not None]

    @property
    def due_at(self) -> datetime | None:
        """When the last of these can be done."""
        return max((outcome.due for outcome in self.due if outcome.due is not None), default=None)

    @property
    def suspect_views(self) -> list[HourOutcome]:
        """Hours with views that have to be rebuilt."""
        return [outcome for outcome in self.outcomes if outcome.target and outcome.target.views_to_rebuild]

    @property
    def beyond_limits(self) -> list[HourOutcome]:
        """Hours of a dry run that a repair would refuse."""
        return [outcome for outcome in self.outcomes if not _passed(outcome.checks, WITHIN_CHANGE_LIMITS)]

    @property
    def changed(self) -> set[datetime]:
        """The hours that changed in ClickHouse, or would."""
        return {hour for report in self.assets.values() if report.in_warehouse for hour in report.changed}

    @property
    def pending_differences(self) -> bool:
        """Whether a dry run has found something that a person may publish."""
        return self.subject.rehearses and bool(self.changed)

    @property
    def published(self) -> bool:
        """Whether there is something to take back."""
        return any(report.changed for asset, report in self.assets.items() if asset[0] == WAREHOUSE)

    @property
    def kinds(self) -> tuple[NotificationKind, ...]:
        """What the run's end is for people, the most serious first."""
        waits = self.refused or self.pending_differences or self.suspect_views or self.conflicts
        cases = ((NotificationKind.FAILED, self.error or self.failed), (NotificationKind.WAITING, waits))
        return tuple(kind for kind, is_so in cases if is_so) or (NotificationKind.FINISHED,)

    @property
    def verdict(self) -> str:
        """How the run ended, the worst thing first."""
        verb, changed = self.subject.verb, plural(len(self.changed), "hour")
        if self.failed:
            return f"{verb} failed for {hours_of(self.failed)}"
        if self.error:
            return f"{verb} failed"
        if self.refused:
            return f"{verb} waits for you: {hours_of(self.refused)} refused"
        if self.pending_differences:
            return f"dry run found differences in {changed}, and waits for you"
        return f"{verb} finished, {changed} changed in ClickHouse" if self.changed else f"{verb} finished"

    def affected(self, tables: Iterable[str]) -> list[str]:
        """ClickHouse's names of the tables, in the order of the flow."""
        names = set(tables)
        return [".".join(table.stored_in) for table in self.subject.pipeline.published if table.name in names]

    def left_behind(self, tables: Iterable[str]) -> list[str]:
        """The tables that are computed from these and are no part of the run."""
        worked_on = {name for _, name in self.subject.assets}
        if not worked_on or self.subject.undoes:
            return []
        reached = set(tables)
        for node in self.subject.pipeline.nodes:
            if any(one.table.name in reached for one in node.inputs if not one.elsewhere):
                reached.add(node.table.name)
        return [str(node.table) for node in self.subject.pipeline.nodes if node.table.name in reached - worked_on]

    @property
    def changed_tables(self) -> list[str]:
        """The names of the warehouse tables with hours that changed, or would."""
        return [asset[1] for asset, report in self.assets.items() if report.in_warehouse and report.changed]


def _light(target: TargetHour | None) -> TargetHour | None:
    if target is None:
        return None
    difference = None if target.difference is None else replace(target.difference, samples=())
    return replace(target, difference=difference, history=())


def _passed(checks: Iterable[CheckResult], name: str) -> bool:
    return all(check.passed for check in checks if check.name == name)


def command(subject: RunSubject, verb: str) -> str:
    """A command of the command line over the hours of the run."""
    hours = subject.hours
    bounds = f" --from {format_hour(hours.start)} --to {format_hour(hours.end)}" if hours else ""
    return f"backfill {verb} {subject.pipeline.name}{bounds}"


def ranges_of(hours: Iterable[datetime]) -> str:
    """The first few ranges, as the platform writes them."""
    return ", ".join(str(hours) for hours in merge_hours(hours)[:3])
