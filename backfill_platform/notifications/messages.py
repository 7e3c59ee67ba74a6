"""The messages of a pipeline: that a run starts, how it ended, that gaps were found, and a test."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from backfill_platform.detection.remediation import Remedy
from backfill_platform.domain.gaps import Gap
from backfill_platform.domain.notification import Notification, NotificationKind
from backfill_platform.domain.plan import WAREHOUSE, AssetPath
from backfill_platform.domain.visible_text import visible
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.reports.render import message, render
from backfill_platform.reports.repair_report import RepairReport, RunSubject
from backfill_platform.reports.words import plural


def run_started(report: RepairReport) -> Notification:
    """That a run begins, and over what."""
    subject = report.subject
    text = message(report, begins=True)
    return _notification((NotificationKind.STARTED,), subject, f"{subject.verb} started", text)


def run_ended(report: RepairReport) -> Notification:
    """How a run ended: with an error of the whole run, with hours that failed or wait for a person, or well."""
    return _notification(report.kinds, report.subject, report.verdict, message(report))


def gaps_found(
    pipeline: Pipeline,
    gaps: Sequence[Gap],
    wanted: Mapping[AssetPath, Iterable[Any]],
    remedies: Sequence[Remedy],
    page: str = "",
) -> Notification:
    """That damaged hours were found which nothing repairs by itself: what is wrong, and what to run.

    `wanted` are the hours of each asset that have to be repaired and `remedies` the commands that do it; `page` is the address
    of the web page or empty.
    """
    reason = f"gaps found by {pipeline.name}_gaps"
    names = {name for prefix, name in wanted if prefix == WAREHOUSE}
    text = render(
        "gaps.txt",
        pipeline=pipeline,
        kinds=_kinds(gaps),
        tenants=sorted({tenant for gap in gaps for tenant in gap.tenants}),
        tables=[".".join(table.stored_in) for table in pipeline.published if table.name in names],
        commands=[f"{remedy.command} --reason '{reason}'" for remedy in remedies],
        page=page,
    )
    verdict = f"{plural(len({gap.hour for gap in gaps}), 'hour')} damaged, and the repair waits for you"
    subject = RunSubject(pipeline)
    return _notification((NotificationKind.WAITING,), subject, verdict, text)


def trial(pipeline: Pipeline) -> Notification:
    """A message of every kind that says it is a test."""
    text = f"This is a test: the recipients of {pipeline.name} are told of its repairs here. Nothing has happened."
    return Notification(tuple(NotificationKind), pipeline.name, f"[backfill] {pipeline.name}: a test message", text)


@dataclass
class _DamageKind:
    """Hours of a table that are damaged alike, with the evidence of the first."""

    table: str
    kind: str
    evidence: str
    hours: list[datetime] = field(default_factory=list)


def _kinds(gaps: Sequence[Gap]) -> Collection[_DamageKind]:
    kinds: dict[tuple[str, str], _DamageKind] = {}
    for gap in gaps:
        kind = kinds.setdefault((gap.table, str(gap.kind)), _DamageKind(gap.table, str(gap.kind), gap.evidence))
        kind.hours.append(gap.hour)
    return list(kinds.values())


def _notification(kinds: tuple[NotificationKind, ...], subject: RunSubject, verdict: str, text: str) -> Notification:
    name = subject.pipeline.name
    return Notification(kinds, name, visible(f"[backfill] {name}: {verdict}"), text)
