"""What `backfill run` prints: a month is a screen, not a book, and machines get a line for each hour."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from backfill_platform.adapters.clickhouse.publishing.diff import ColumnChange, Effect, HourDiff, Sample
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, Status
from backfill_platform.cli import run_output, terminal
from backfill_platform.cli.platform import RunResult
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import make_plan
from backfill_platform.examples import clickstream
from backfill_platform.repair.outcomes import NEEDS, Event, HourOutcome, LakeHour, StepFinished, StepStarted, TargetHour
from backfill_platform.reports.repair_report import RepairReport, RunSubject

START = datetime(1998, 5, 1, tzinfo=UTC)
MONTH = HourRange(START, START + 720 * HOUR)
LOST = "the lake does not have raw/clickstream of 1998-05-03T00: it was never built, or is lost"
ASSETS = [("transformed", "sessions"), ("warehouse", "sessions")]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is printed, as into a pipe."""
    text = io.StringIO()
    monkeypatch.setattr(terminal, "out", Console(file=text, width=160, highlight=False))
    monkeypatch.setattr(terminal, "err", Console(file=text, width=160, highlight=False))
    return text


def outcome(asset: tuple[str, str], hour: datetime) -> HourOutcome:
    """Three hours are lost; in each other one, ten rows of twelve change by one byte each."""
    if START + 48 * HOUR <= hour < START + 51 * HOUR:
        return HourOutcome(asset, hour, LOST)
    if asset[0] == "transformed":
        return HourOutcome(asset, hour, lake=LakeHour(12, 1, Fingerprint(12, 7)))
    row = dict.fromkeys(clickstream.pipeline.published[0].column_names, 0)
    samples = tuple(Sample({**row, "client_id": n, "bytes": 3}, {**row, "client_id": n, "bytes": 2}) for n in range(5))
    difference = HourDiff(
        hour, 2, 10, columns=(ColumnChange("bytes", 10),), samples=samples, effects=(Effect("bytes", 30, 20),)
    )
    result = HourPublish(hour, Status.PUBLISHED, Fingerprint(12, 1), Fingerprint(12, 7), cancels=10, states=10)
    return HourOutcome(asset, hour, target=TargetHour(result, difference))


def events() -> Iterator[Event]:
    plan = make_plan(clickstream.pipeline.name, clickstream.pipeline.nodes, MONTH, ASSETS)
    for number, step in enumerate(plan.steps, 1):
        yield StepStarted(step, number, 2)
        outcomes = [outcome(step.asset, hour) for hour in MONTH]
        yield from outcomes
        yield StepFinished(step, outcomes)


def month() -> RunResult:
    """A run over a month."""
    plan = make_plan(clickstream.pipeline.name, clickstream.pipeline.nodes, MONTH, ASSETS)
    report, told = RepairReport(RunSubject(clickstream.pipeline, MONTH, tuple(ASSETS), "r7"), plan), list(events())
    for event in told:
        report.take(event)
    outcomes = tuple(event for event in told if isinstance(event, HourOutcome))
    return RunResult(False, "run", plan, report, outcomes, tuple(event for event in told if isinstance(event, StepFinished)))


def test_a_month_is_shown_by_totals_and_ranges(shown: io.StringIO) -> None:
    run_output.show_results([month()], details=False)
    text = shown.getvalue()
    assert len(text.splitlines()) < 60
    words = [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]
    assert any(line.startswith("warehouse/sessions 717 717 3 8,604 7,170 7,170 1,434 ") for line in words)
    assert "bytes 21,510 14,340" in words, "the sums of all hours"
    assert "bytes 7,170" in words, "the rows in which it differs"
    assert text.count(LOST) == 2, "a reason is told once for each asset"
    assert text.count("1998-05-03 00:00 to 03:00 UTC, 3 hours") == 2
    samples = [line for line in words if line.endswith("bytes 3 2")]
    assert len(samples) == 6
    assert samples[1].startswith("1998-05-01T01"), "some of several hours"
    assert "warehouse/sessions: samples, and 3,579 more with --details" in words


def test_details_are_every_hour_with_its_samples(shown: io.StringIO) -> None:
    run_output.show_results([month()], details=True)
    text = shown.getvalue()
    assert text.count("published") == 717
    assert text.count("warehouse/sessions 1998-05-07T13") == 3, "columns, totals and samples"


def test_json_lines_are_told_while_the_run_goes_on(shown: io.StringIO) -> None:
    for event in events():
        run_output.show_line(event)
        if isinstance(event, StepFinished):
            break
    assert len(shown.getvalue().splitlines()) == 720, "of the step that has ended"
    run_output.show_verdict([month()])
    lines = [json.loads(line) for line in shown.getvalue().splitlines()]
    assert lines[0] == {
        "asset": "transformed/sessions",
        "hour": "1998-05-01T00:00:00Z",
        "error": "",
        "rows": 12,
        "quarantined": 1,
    }
    assert lines[-1] == {"run": "run", "runs": ["run"], "success": False, "error": "", "following": []}


def test_the_document_has_all_hours_and_the_verdict(shown: io.StringIO) -> None:
    run_output.show_document([month()])
    document = json.loads(shown.getvalue())
    assert (len(document["hours"]), document["success"]) == (1440, False)


def test_hours_that_wait_for_a_lost_one_are_counted(shown: io.StringIO) -> None:
    result = month()
    why = f"{NEEDS} transformed/sessions of 1998-05-03T00: {LOST}"
    waiting = tuple(
        replace(outcome, error=why) if outcome.error and outcome.asset[0] == "warehouse" else outcome
        for outcome in result.outcomes
    )
    run_output.show_results([replace(result, outcomes=waiting)], details=False)
    assert shown.getvalue().count(LOST) == 1
    assert "  and 3 hours of tables that need them" in shown.getvalue().splitlines()
