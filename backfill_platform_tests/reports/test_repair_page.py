"""What the report of a repair tells besides its hours: sessions that stay open, the time of each step, what to do next."""

from dataclasses import replace
from datetime import timedelta

import pytest

from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.impact import Affected
from backfill_platform.domain.plan import AssetPath, make_plan
from backfill_platform.examples import clickstream
from backfill_platform.planning.downstream import Following
from backfill_platform.repair.outcomes import CheckResult, Closure, Event, HourOutcome, Reading, StepFinished, StepStarted
from backfill_platform.reports.render import last_lines, message, page
from backfill_platform.reports.repair_report import RepairReport, RunSubject

FIRST = clickstream.HOURS.start
HOURS = HourRange(FIRST, FIRST + 2 * HOUR)
SESSIONS: AssetPath = ("transformed", "sessions")
COPY: AssetPath = ("warehouse", "sessions")


def report_of(*assets: AssetPath) -> RepairReport:
    """A run whose first step takes 2.5 seconds in two parts, and leaves 445 sessions open; the second takes a second."""
    plan = make_plan(clickstream.pipeline.name, clickstream.pipeline.nodes, HOURS, assets)
    ticks = iter([0.0, 2.0, 2.5, 2.5, 3.5])
    report = RepairReport(RunSubject(clickstream.pipeline, HOURS, assets, "r7"), plan, clock=lambda: next(ticks))
    closure = Closure(500, timedelta(hours=1), 445, "the end of the landed hours")
    first, *others = plan.steps
    told: list[Event] = [StepStarted(first, 1, 2)]
    told += [StepFinished(first, ()), StepFinished(first, (), Reading(HOURS.start, HOURS.end, 1, 0, closure))]
    for step in others:
        told += [StepStarted(step, 2, 2), StepFinished(step, ())]
    for event in told:
        report.take(event)
    return report


def test_sessions_that_stay_open_are_told() -> None:
    report = report_of(SESSIONS, COPY)
    assert report.open_sessions == [("transformed/sessions", 445, "the end of the landed hours")]
    assert "### Sessions that stay open until more has landed" in page(report, [])
    assert "445 sessions stay open until more has landed (the end of the landed hours)" in last_lines(report)


def test_what_is_stale_in_other_pipelines_is_told_with_its_command() -> None:
    report = report_of(SESSIONS, COPY)
    node = replace(clickstream.pipeline.nodes[1], table=replace(clickstream.pipeline.nodes[1].table, name="risk"))
    report.following = (Following("shop", (Affected(node, {FIRST: "computed from transformed/sessions"}),)),)
    repair = "backfill run shop --from 1998-04-30T22 --to 1998-04-30T23"
    assert f"| shop | transformed/risk | {repair} |" in page(report, [])
    assert f"Stale since in shop: transformed/risk; repair with: {repair}" in message(report)


def test_each_step_tells_its_seconds_also_where_it_was_done_in_parts() -> None:
    assert report_of(SESSIONS, COPY).seconds == {SESSIONS: 2.5, COPY: 1.0}


@pytest.mark.parametrize(("asset", "heading"), [("warehouse", "take it back"), ("dry_run", "publish it")])
def test_a_dry_run_cannot_be_taken_back(asset: str, heading: str) -> None:
    plan = make_plan(clickstream.pipeline.name, clickstream.pipeline.nodes, HOURS, [(asset, "sessions")])
    report = RepairReport(RunSubject(clickstream.pipeline, HOURS, ((asset, "sessions"),), "r7"), plan)
    assert f"### Look again, or {heading}\n" in page(report, ["- a link"])


def test_rows_of_a_table_stand_together() -> None:
    """A blank line ends a table: what comes after it is shown as text with bars in it."""
    report = report_of(SESSIONS, COPY)
    for asset in (SESSIONS, COPY):
        for hour in HOURS:
            failed = CheckResult("rows_valid", False, False)
            report.add(HourOutcome(asset, hour, "lost" if hour > FIRST else "", checks=(failed,)))
    lines = page(report, []).splitlines()
    first_rows = [number for number, line in enumerate(lines) if line.startswith("|") and not lines[number - 1].startswith("|")]
    assert len(first_rows) == 5
    assert all(set(lines[number + 1]) <= set("| -") for number in first_rows), "each begins with names and a line"
