"""A calendar of hours by table, coloured by what is wrong with them, with the rows expected and found.

As a page of HTML that holds all that it shows, loads nothing and runs nothing; and as a picture of one table, for Dagster.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from backfill_platform.detection.survey import Survey
from backfill_platform.domain.gaps import Gap, GapKind, RowCounts
from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.visible_text import visible
from backfill_platform.reports.damage import alike

# Told apart also without colours: by the letter.
COLOURS = {
    GapKind.MISSING: ("#b91c1c", "m"),
    GapKind.SHORT: ("#ea580c", "s"),
    GapKind.STALE: ("#ca8a04", "t"),
    GapKind.DRIFTED: ("#7c3aed", "d"),
    GapKind.INCONSISTENT: ("#1d4ed8", "i"),
}
_GOOD = "#86efac"
_CELL, _LEFT, _TOP = 20, 100, 20  # of the picture, in pixels


@dataclass(frozen=True)
class Cell:
    """One hour of a table: its colour, the letter of its kind and what is said of it; all empty outside of the range."""

    colour: str = "transparent"
    letter: str = ""
    title: str = ""


@dataclass(frozen=True)
class Day:
    """A day of a table, with its 24 hours and the sums of its rows; the rows expected are None where they are not known."""

    date: str
    cells: tuple[Cell, ...]
    rows_expected: int | None
    rows_found: int


def gap_calendar(survey: Survey, commands: Sequence[str] = ()) -> str:
    """The page of what a survey has found, with the commands that repair it. What is found in data is escaped."""
    environment = Environment(
        loader=PackageLoader("backfill_platform.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters["known"] = _known
    tables = list(dict.fromkeys(table for table, _ in survey.rows))
    return environment.get_template("gaps.html.j2").render(
        survey=survey,
        damaged=len({gap.hour for gap in survey.gaps}),
        alike=alike(survey.gaps, survey.rows),
        days={table: days_of(survey, table) for table in tables},
        legend=[("nothing wrong", _GOOD, ""), *((str(kind), colour, letter) for kind, (colour, letter) in COLOURS.items())],
        commands=commands,
    )


def days_of(survey: Survey, table: str) -> list[Day]:
    """The calendar of one table, day by day in UTC."""
    gaps = {gap.hour: gap for gap in survey.gaps if gap.table == table}
    found = []
    day = survey.hours.start.replace(hour=0)
    while day < survey.hours.end:
        hours = [day + number * HOUR for number in range(24)]
        inside = [survey.rows[table, hour] for hour in hours if hour in survey.hours]
        expected = [one.expected for one in inside if one.expected is not None]
        cells = tuple(_cell(hour, survey.rows.get((table, hour)), gaps.get(hour)) for hour in hours)
        total = sum(expected) if len(expected) == len(inside) else None
        found.append(Day(f"{day:%Y-%m-%d}", cells, total, sum(one.found for one in inside)))
        day += 24 * HOUR
    return found


def _cell(hour: datetime, rows: RowCounts | None, gap: Gap | None) -> Cell:
    if rows is None:
        return Cell()
    counts = f"{hour:%H}:00: {rows.found:,} rows found, {'unknown' if rows.expected is None else f'{rows.expected:,}'} expected"
    if gap is None:
        return Cell(_GOOD, "", counts)
    colour, letter = COLOURS[gap.kind]
    return Cell(colour, letter, f"{counts}; {gap.kind}: {gap.evidence}")


def calendar_picture(survey: Survey, table: str) -> str:
    """The calendar of one table as a picture in Markdown. It holds no text of the data."""
    days = days_of(survey, table)
    parts = [_text(_LEFT + number * _CELL + _CELL // 2, 12, f"{number:02d}") for number in range(24)]
    for line, day in enumerate(days):
        top = _TOP + line * _CELL
        parts.append(_text(_LEFT // 2, top + 14, day.date))
        for number, cell in enumerate(day.cells):
            left = _LEFT + number * _CELL
            parts.append(f'<rect x="{left}" y="{top}" width="{_CELL - 1}" height="{_CELL - 1}" fill="{cell.colour}"/>')
            parts.append(_text(left + _CELL // 2, top + 14, cell.letter, "#fff"))
    legend = [("nothing wrong", _GOOD, ""), *((str(kind), colour, letter) for kind, (colour, letter) in COLOURS.items())]
    bottom = _TOP + len(days) * _CELL + 10
    for number, (name, colour, letter) in enumerate(legend):
        left, top = _LEFT + number % 3 * 150, bottom + number // 3 * _CELL
        parts.append(f'<rect x="{left}" y="{top}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(left + 6, top + 10, letter, "#fff"))
        parts.append(f'<text x="{left + 18}" y="{top + 10}">{name}</text>')
    size = f'width="{_LEFT + 24 * _CELL + 10}" height="{bottom + 2 * _CELL}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="11">{"".join(parts)}</svg>'
    return f"![hours](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _text(x: int, y: int, text: str, colour: str = "#374151") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle" fill="{colour}">{text}</text>' if text else ""


def _known(rows: Any) -> str:
    return "unknown" if rows is None else f"{rows:,}"
