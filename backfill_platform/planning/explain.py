"""What a plan would read and replace, looked up in the lake; nothing is run."""

from collections.abc import Iterator
from dataclasses import dataclass

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.preconditions import check_target, target_exists
from backfill_platform.adapters.iceberg.inventory import LakeFile
from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.plan import (
    BuildStep,
    CompareHours,
    Input,
    LandHours,
    LandMargin,
    Plan,
    PublishHours,
    RequeueHours,
    Step,
    explanation,
)
from backfill_platform.domain.tables import Table
from backfill_platform.errors import PreconditionError
from backfill_platform.pipelines.spec import Pipeline

_MOST_FILES = 3


@dataclass(frozen=True)
class Explained:
    """One step for people: what it reads, what is there now.

    `files` and `bytes` of the lake are read; `pruned` and `bytes_pruned` of the same table need not be opened.
    """

    asset: str
    action: str
    reads: str
    files: int
    pruned: int
    bytes: int
    bytes_pruned: int
    rows_now: int
    explanation: str


def explain(plan: Plan, pipeline: Pipeline, lake: Lake, warehouse: Warehouse) -> Iterator[Explained]:
    """Each step of the plan, in order. Files are those of the first reading; open keys may add some.

    A step that compares with the warehouse says how it would publish and what that guarantees, or why the table there cannot
    be repaired.
    """
    for step in plan.steps:
        table = step.node.table
        reads, found, every = _reads(step, pipeline, lake)
        size = sum(file.bytes for file in found)
        rows = sum(lake.rows_by_hour(table, step.hours).values())
        text = explanation(step)
        if isinstance(step, CompareHours | PublishHours):
            text += f" ({_publishing(warehouse, table)})"
        yield Explained(
            "/".join(step.asset),
            step.verb,
            reads,
            files=len(found),
            pruned=len(every) - len(found),
            bytes=size,
            bytes_pruned=sum(file.bytes for file in every) - size,
            rows_now=rows,
            explanation=text,
        )


def _some(names: tuple[str, ...]) -> str:
    left = len(names) - _MOST_FILES
    return (", ".join(names[:_MOST_FILES]) or "no file has these hours") + (f" and {left} more" if left > 0 else "")


def _publishing(warehouse: Warehouse, table: Table) -> str:
    if not target_exists(warehouse, table):
        return f"{table} is created by the first publish"
    try:
        return check_target(warehouse, table).promise
    except PreconditionError as error:
        return str(error)


def _reads(step: Step, pipeline: Pipeline, lake: Lake) -> tuple[str, list[LakeFile], list[LakeFile]]:
    """In words, the files of the lake to read, and all files of the same table."""
    if isinstance(step, LandMargin | LandHours):
        return _some(pipeline.source.files(step.hours)), [], []
    if isinstance(step, RequeueHours):
        rejects = quarantine_of(step.node.table)
        return str(rejects), lake.files(rejects, step.hours), lake.files(rejects)
    if isinstance(step, CompareHours | PublishHours):
        return str(step.node.table), lake.files(step.node.table, step.hours), lake.files(step.node.table)
    read = [_reads_of(source, step, pipeline, lake) for source in step.node.inputs]
    return (
        "; ".join(words for words, _, _ in read),
        [file for _, files, _ in read for file in files],
        [file for _, _, files in read for file in files],
    )


def _reads_of(source: Input, step: BuildStep, pipeline: Pipeline, lake: Lake) -> tuple[str, list[LakeFile], list[LakeFile]]:
    table, from_raw = source.table, source.table == pipeline.raw.table
    there = lake.built_hours(table)
    missing = [hour for hour in step.hours if hour not in there]
    if len(missing) == len(step.hours):
        return f"{source}: none of the hours is there yet", [], []
    after = max(there) + HOUR if from_raw else step.hours.end
    first = source.window.read_from(step.hours, source.bounds(pipeline.start, pipeline.end)[0])
    last = next(source.window.read_ends(step.hours, after))
    time = pipeline.raw.event_time if from_raw else table.hour
    bounds = f"{source} from {first:%Y-%m-%dT%H:%M} to {last:%Y-%m-%dT%H:%M}"
    bounds += f", without {len(missing)} hours that are not there" if missing else ""
    return bounds, lake.files_between(table, time, first, last), lake.files(table)
