"""What `run` and `dry-run` show: totals and ranges for people, each hour on request, records for machines."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backfill_platform.cli import terminal
from backfill_platform.cli.following import following_facts
from backfill_platform.domain.hours import format_hour
from backfill_platform.domain.plan import AssetPath
from backfill_platform.repair.outcomes import NEEDS, Event, HourOutcome, StepFinished
from backfill_platform.reports.facts import SAMPLES, tables_of
from backfill_platform.reports.render import last_lines
from backfill_platform.reports.repair_report import ranges_of
from backfill_platform.reports.words import hours_in_words, more, plural

if TYPE_CHECKING:
    from backfill_platform.cli.platform import RunResult
    from backfill_platform.planning.downstream import Following
    from backfill_platform.reports.repair_report import AssetReport

_MOST_LINES = 20  # of one table
_MOST_SAMPLES = 6
_SUMS = ("rows", "quarantined", "cancels", "states", "untouched")


def show_results(results: "Iterable[RunResult]", *, details: bool) -> None:
    """The runs for people; with `details` every hour, with what differs in it and its history."""
    for result in results:
        if details:
            _show_hours(result.steps)
        elif result.report.outcomes:
            _show_totals(result)
        _show_reasons(result.outcomes, every=details)
        terminal.show_text(last_lines(result.report))
        if result.error and not result.failed:
            terminal.show_error(result.error)


def show_document(results: "list[RunResult]", following: "Iterable[Following]" = ()) -> None:
    """All runs as one JSON document."""
    hours = [terminal.outcome_facts(outcome, step.step.node.table) for outcome, step in _outcomes(results)]
    terminal.show_json({**_verdict(results), "hours": hours, "following": [following_facts(one) for one in following]})


def show_verdict(results: "list[RunResult]", following: "Iterable[Following]" = ()) -> None:
    """The last of the JSON lines: how the runs ended."""
    terminal.show_json_line({**_verdict(results), "following": [following_facts(one) for one in following]})


def show_line(event: Event) -> None:
    """The hours of a step that has ended, each as a line of JSON: they need not be kept until the run ends."""
    if isinstance(event, StepFinished):
        for outcome in event.outcomes:
            terminal.show_json_line(terminal.outcome_facts(outcome, event.step.node.table))
        sys.stdout.flush()


def _outcomes(results: "Iterable[RunResult]") -> Iterator[tuple[HourOutcome, StepFinished]]:
    for result in results:
        for step in result.steps:
            for outcome in step.outcomes:
                yield outcome, step


def _verdict(results: "list[RunResult]") -> dict[str, Any]:
    runs = [result.run_id for result in results]
    return {
        "run": runs[-1] if runs else "",
        "runs": runs,
        "success": all(result.success for result in results),
        "error": "\n".join(result.error for result in results if result.error),
    }


def _show_hours(steps: Iterable[StepFinished]) -> None:
    for step in steps:
        terminal.show_outcomes(step)
        for outcome in step.outcomes:
            for rows in tables_of(outcome, step.step.node.table):
                terminal.show_heading(f"{'/'.join(outcome.asset)} {format_hour(outcome.hour)}")
                terminal.show_rows(rows)


def _show_totals(result: "RunResult") -> None:
    report = result.report
    rows = [
        (
            *(one.name, len(one.done), len(one.changed) if one.in_warehouse else "", len(one.failed) or ""),
            *(one.sums.get(name, "") for name in _SUMS),
            f"{report.seconds.get(one.asset, 0):.1f}",
        )
        for one in report.assets.values()
    ]
    title = f"{report.subject.pipeline.name} {ranges_of({outcome.hour for outcome in report.outcomes})}"
    terminal.show_table(title, ("asset", "hours", "changed", "not done", *_SUMS, "seconds"), rows)
    for how in dict.fromkeys(f"{'/'.join(step.step.asset)}: {step.published_by}" for step in result.steps if step.published_by):
        terminal.show_text(f"  {how}")
    for one in report.assets.values():
        if one.in_warehouse and one.changed:
            _show_difference(result, one)


def _show_difference(result: "RunResult", report: "AssetReport") -> None:
    """What changed in all hours of a warehouse table together, and some of the rows."""
    steps = [step for step in result.steps if step.step.asset == report.asset]
    table = steps[0].step.node.table
    outcomes = [outcome for step in steps for outcome in step.outcomes]
    columns = report.columns.most_common()
    _show(f"{report.name}: changed columns", ("column", "rows"), columns, "columns")
    sums = [(name, before, after) for name, (before, after) in _totals(outcomes).items() if before != after]
    _show(f"{report.name}: totals of the hours that changed", ("column", "before", "after"), sums, "columns")
    found = [(outcome.hour, rows) for outcome in outcomes for rows in tables_of(outcome, table) if rows.title == SAMPLES]
    if found:
        # Of several hours, some of each: the first hour alone may hold all that are shown.
        each = max(1, _MOST_SAMPLES // len(found))
        shown = [(hour, *line) for hour, rows in found for line in rows.rows[:each]][:_MOST_SAMPLES]
        left = more(sum(len(rows.rows) for _, rows in found) - len(shown), "with --details")
        title = f"{report.name}: {', '.join([SAMPLES, *left])}"
        terminal.show_table(title, ("hour (UTC)", *found[0][1].columns), shown)


def _show(title: str, columns: tuple[str, ...], rows: list[Any], what: str) -> None:
    if rows:
        left = more(len(rows) - _MOST_LINES, what)
        terminal.show_table(f"{title}{' ' if left else ''}{''.join(left)}", columns, rows[:_MOST_LINES])


def _totals(outcomes: Iterable[HourOutcome]) -> dict[str, tuple[float, float]]:
    """The sums of each numeric column over the hours that were compared, before and after."""
    before: dict[str, float] = defaultdict(int)
    after: dict[str, float] = defaultdict(int)
    for outcome in outcomes:
        difference = outcome.target.difference if outcome.target else None
        for effect in difference.effects if difference else ():
            before[effect.column] += effect.before
            after[effect.column] += effect.after
    return {name: (before[name], after[name]) for name in after}


def _show_reasons(outcomes: Iterable[HourOutcome], *, every: bool) -> None:
    """Why hours were not done, those of an asset that have the same reason together.

    Hours that only wait for others are counted: the reason of those is told already.
    """
    alike: dict[tuple[AssetPath, str], list[datetime]] = {}
    waiting, told = 0, set[str]()
    for outcome in outcomes:
        _, needs, cause = outcome.error.partition(": ") if outcome.error.startswith(NEEDS) else ("", "", "")
        if needs and cause in told and not every:
            waiting += 1
        elif outcome.error:
            told.add(outcome.error)
            alike.setdefault((outcome.asset, outcome.error), []).append(outcome.hour)
    rows = [("/".join(asset), hours_in_words(hours), why) for (asset, why), hours in alike.items()]
    shown = rows if every else rows[:_MOST_LINES]
    if rows:
        left = more(len(rows) - len(shown), "reasons: --details")
        terminal.show_table(f"not done{' ' if left else ''}{''.join(left)}", ("asset", "hours", "why"), shown)
    if waiting:
        terminal.show_text(f"  and {plural(waiting, 'hour')} of tables that need them")
