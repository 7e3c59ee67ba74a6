"""What follows a repair beyond its plan: hours of other pipelines that read its tables, and of its own outside its range.

A repair builds tables of one pipeline only (decision 29). Hours that were built from rows which are others by now are stale;
`backfill gaps` finds them link by link, as they become so. Here the whole chain is told at once.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.hours import HourRange, format_hour, merge_hours
from backfill_platform.domain.impact import Affected, reached_from
from backfill_platform.domain.plan import AssetPath, BuildHours, Plan
from backfill_platform.pipelines.spec import Pipeline

Changed = Mapping[AssetPath, Collection[datetime]]


@dataclass(frozen=True)
class Following:
    """The hours of a pipeline that are to be built again after a repair of what they are computed from, by table."""

    pipeline: str
    tables: tuple[Affected, ...]

    @property
    def ranges(self) -> tuple[HourRange, ...]:
        """The hours of all tables, as contiguous ranges: one run for each."""
        return merge_hours({hour for one in self.tables for hour in one.why})

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, such as `aggregated/risk`."""
        return tuple(str(one.node.table) for one in self.tables)

    @property
    def commands(self) -> tuple[str, ...]:
        """What repairs them, in the order to run it."""
        return tuple(
            f"backfill run {self.pipeline} --from {format_hour(span.start)} --to {format_hour(span.end)}"
            for span in self.ranges
        )


def readers_of(pipeline: Pipeline, pipelines: Iterable[Pipeline]) -> tuple[Pipeline, ...]:
    """The pipelines that read tables of this one, or of one that does, each after those that it reads from."""
    left = [one for one in pipelines if _reads(one, pipeline.name)]
    found: list[Pipeline] = []
    # A pipeline names those upstream by value, so there is no circle: each turn finds one, or there is none left.
    while left:
        ready = [one for one in left if not any(_reads(one, other.name) for other in left)]
        found, left = [*found, *ready], [one for one in left if one not in ready]
    return tuple(found)


def _reads(pipeline: Pipeline, name: str) -> bool:
    return any(one.name == name or _reads(one, name) for one in pipeline.upstream)


def follow(pipeline: Pipeline, changed: Changed, done: Changed, lake: Lake, now: datetime) -> Following | None:
    """The hours of a pipeline that have been built and that the changed hours of tables reach, by all its windows.

    `changed` may have tables of any pipeline. Hours that are `done` have been built from them already, be they others by it or
    not. None where nothing follows.
    """
    hours = pipeline.hours_until(now)
    reached: dict[AssetPath, Collection[datetime]] = dict(changed)
    tables = []
    for node in pipeline.nodes[1:]:
        why: dict[datetime, str] = {}
        for source in node.inputs:
            if source.table != pipeline.raw.table:
                why = {**reached_from(source, hours, reached.get(source.table.path, ())), **why}
        left = why.keys() - done.get(node.table.path, ())
        there = lake.built_hours(node.table, HourRange.covering(left)) & left if left else set()
        why = {hour: reason for hour, reason in why.items() if hour in there}
        if why:
            tables.append(Affected(node, why))
            reached[node.table.path] = {*changed.get(node.table.path, ()), *why}
    return Following(pipeline.name, tuple(tables)) if tables else None


def follow_all(
    pipeline: Pipeline, pipelines: Iterable[Pipeline], changed: Changed, done: Changed, lake: Lake, now: datetime
) -> tuple[Following, ...]:
    """What follows in the pipeline itself and in all that read from it, in the order to repair it."""
    reached: dict[AssetPath, Collection[datetime]] = dict(changed)
    found = []
    for one in (pipeline, *readers_of(pipeline, pipelines)):
        following = follow(one, reached, done, lake, now)
        if following is not None:
            found.append(following)
            for table in following.tables:
                path = table.node.table.path
                reached[path] = {*reached.get(path, ()), *table.why}
    return tuple(found)


def planned_hours(plans: Iterable[Plan]) -> dict[AssetPath, set[datetime]]:
    """The hours that plans build, by table: at most these get other rows."""
    found: dict[AssetPath, set[datetime]] = {}
    for plan in plans:
        for step in _builds(plan):
            found.setdefault(step.node.table.path, set()).update(step.hours)
    return found


def rewritten_hours(plans: Iterable[Plan], ledger: Ledger, since: datetime) -> dict[AssetPath, set[datetime]]:
    """The hours that plans which began at `since` have built, where they have other rows than before, by table."""
    found: dict[AssetPath, set[datetime]] = {}
    for path, hours in planned_hours(plans).items():
        history = ledger.lake_history("/".join(path))
        for hour in hours & history.keys():
            before = [claim for claim in history[hour] if claim.finished_at < since]
            last = history[hour][-1]
            if last.finished_at >= since and before and before[-1].content != last.content:
                found.setdefault(path, set()).add(hour)
    return found


def stale_after(
    pipeline: Pipeline,
    readers: Iterable[Pipeline],
    plans: Collection[Plan],
    lake: Lake,
    ledger: Callable[[], Ledger],
    since: datetime,
) -> tuple[Following, ...]:
    """What plans that were walked from `since` to now have made stale, in the pipeline itself and in those that read from it.

    The ledger is asked only where something could follow.
    """
    done, now = planned_hours(plans), datetime.now(UTC)
    if not follow_all(pipeline, readers, done, done, lake, now):
        return ()
    return follow_all(pipeline, readers, rewritten_hours(plans, ledger(), since), done, lake, now)


def _builds(plan: Plan) -> Iterator[BuildHours]:
    return (step for step in plan.steps if isinstance(step, BuildHours))
