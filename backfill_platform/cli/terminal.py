"""What the command line shows: tables for people on standard output, progress on standard error, JSON for machines."""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid
from rich.text import Text

from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import format_hour
from backfill_platform.domain.tables import Table
from backfill_platform.domain.visible_text import visible, visible_in_json
from backfill_platform.repair.outcomes import Event, HourOutcome, Rows, StepFinished
from backfill_platform.reports.facts import facts_of, step_facts, step_tables, tables_of
from backfill_platform.reports.pace import Pace

# A pipe or a log has no width of its own; 80 columns would fold every table.
_WIDTH = None if sys.stdout.isatty() else 160
out = Console(highlight=False, width=_WIDTH)
err = Console(stderr=True, highlight=False, width=_WIDTH)

_HIDDEN = ("fingerprint_", "status")
_HEADINGS = {
    "rows_matched": "matched",
    "rows_changed": "changed",
    "rows_only_in_warehouse": "only there",
    "rows_only_in_lake": "only here",
    "sessions_extended": "extended",
    "sessions_open": "open",
}


def show_json(value: Any) -> None:
    """One JSON document on standard output; hours are ISO 8601 in UTC, fingerprints are `rows:hash`."""
    document = json.dumps(_finite(value), default=_plain, ensure_ascii=False, indent=2)
    out.print(JSONHighlighter()(visible_in_json(document)), soft_wrap=True)


def show_json_line(value: Any) -> None:
    """One JSON document on a line of its own."""
    out.print(Text(visible_in_json(json.dumps(_finite(value), default=_plain, ensure_ascii=False))), soft_wrap=True)


def show_records(records: Iterable[Any], output: str) -> None:
    """Records for machines: one JSON list, or with `jsonl` a line for each."""
    if output == "json":
        show_json(list(records))
        return
    for record in records:
        show_json_line(record)


def show_error(error: object) -> None:
    """What went wrong, on standard error."""
    err.print(f"[red]error:[/red] {_shown(error)}", soft_wrap=True)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; numbers to the right."""
    out.print(_shown(title), style="bold", soft_wrap=True)
    grid = Grid(header_style="bold")
    data = [tuple(row) for row in rows]
    for number, column in enumerate(columns):
        cells = [row[number] for row in data if row[number] != ""]
        numeric = bool(cells) and all(type(cell) in (int, float) for cell in cells)
        grid.add_column(_shown(column), justify="right" if numeric else "left", overflow="fold")
    for row in data:
        grid.add_row(*(_text(cell) for cell in row))
    out.print(grid)


def show_rows(rows: Rows) -> None:
    """A small table of an outcome."""
    show_table(rows.title, rows.columns, rows.rows)


def show_outcomes(step: StepFinished) -> None:
    """The hours of a step with their facts and what failed, and the facts of the whole step."""
    facts = {outcome.hour: facts_of(outcome) for outcome in step.outcomes}
    names = list(dict.fromkeys(name for values in facts.values() for name in values if not name.startswith(_HIDDEN)))
    rows = [
        (
            format_hour(outcome.hour),
            *(facts[outcome.hour].get(name, "") for name in names),
            outcome.error or str(facts[outcome.hour].get("status", "ok")),
        )
        for outcome in sorted(step.outcomes, key=lambda outcome: outcome.hour)
    ]
    headings = [_HEADINGS.get(name, name) for name in names]
    show_table("/".join(step.step.asset), ("hour (UTC)", *headings, "verdict"), rows)
    for table in step_tables(step):
        show_rows(table)
    if of_range := step_facts(step):
        out.print(_shown("  " + ", ".join(f"{name} {value}" for name, value in of_range.items())), style="dim")


def show_heading(text: str) -> None:
    """A line above tables that belong together."""
    out.print(_shown(text), style="bold")


def show_text(text: str) -> None:
    """Lines as they are."""
    out.print(_shown(text), soft_wrap=True)


class StepProgress:
    """A line per step that shows that something is going on, how far it is, and for how long."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._progress = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=err)
        self._task: Any = None

    def __enter__(self) -> "StepProgress":
        self._progress.start()
        self._task = self._progress.add_task("starting", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """What is going on now."""
        self._progress.update(self._task, description=_shown(text))
        if not err.is_terminal:
            err.print(_shown(text), soft_wrap=True)

    def __call__(self, event: Event) -> None:
        """Say which step has started, and how much of it is done."""
        if text := self._pace.take(event):
            self.say(text)


def outcome_facts(outcome: HourOutcome, table: Table) -> dict[str, Any]:
    """An outcome for JSON."""
    tables = {
        rows.title.replace(" ", "_"): [dict(zip(rows.columns, row, strict=True)) for row in rows.rows]
        for rows in tables_of(outcome, table)
    }
    return {"asset": "/".join(outcome.asset), "hour": outcome.hour, "error": outcome.error, **facts_of(outcome), **tables}


def _text(cell: Any) -> str:
    if isinstance(cell, datetime):
        return format_hour(cell)
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:.6g}" if isinstance(cell, float) else _shown(cell)


def _shown(value: object) -> str:
    """Values are data: what looks like markup or a terminal's code in them is not."""
    return escape(visible(str(value)))


def _finite(value: Any) -> Any:
    """The value with NaN and infinities as text, which JSON has no numbers for."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Fingerprint):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
