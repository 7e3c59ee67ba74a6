"""The templates of a report: a page of Markdown for Dagster, a message of plain text, the last lines on a terminal."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from backfill_platform.domain.hours import format_hour
from backfill_platform.domain.plan import explanation
from backfill_platform.domain.visible_text import visible
from backfill_platform.repair.outcomes import Fact
from backfill_platform.reports.markdown import cell
from backfill_platform.reports.repair_report import AssetReport, RepairReport, command, ranges_of
from backfill_platform.reports.words import hours_in_words, hours_of, more, plural, short, some


def message(report: RepairReport, *, begins: bool = False) -> str:
    """What people are told when a run begins, or how it ended."""
    subject = report.subject
    hours = list(subject.hours or sorted({outcome.hour for outcome in report.outcomes}))
    names = ["/".join(asset) for asset in subject.assets]
    return render("message.txt", report=report, subject=subject, hours=hours, begins=begins, asset_names=names)


def page(report: RepairReport, links: Sequence[str]) -> str:
    """The page of a repair in Markdown; `links` say how to look again and how to take it back."""
    text = _template("page.md").render(
        report=report,
        subject=report.subject,
        links=links,
        columns=[(one.name, name, rows) for one in report.assets.values() for name, rows in one.columns.most_common()],
        checks=_checks(report),
        failures=[
            (one.name, format_hour(hour), why) for one in report.assets.values() for hour, why in sorted(one.failed.items())
        ],
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def last_lines(report: RepairReport) -> str:
    """What a terminal shows at the end of a run."""
    return render("terminal.txt", report=report, subject=report.subject)


def render(name: str, **values: Any) -> str:
    """A template of plain text; blank lines are left out."""
    lines = _template(name).render(**values).split("\n")
    return "\n".join(visible(line.rstrip()) for line in lines if line.strip())


def _template(name: str) -> Any:
    return _environment().get_template(f"{name}.j2")


@cache
def _environment() -> Environment:
    # Plain text and Markdown; the filter `cell` escapes values that become part of a page.
    environment = Environment(
        loader=PackageLoader("backfill_platform.reports"),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "cell": cell,
        "clock": format_hour,
        "explanation": explanation,
        "hours": hours_in_words,
        "ranges": ranges_of,
        "short": short,
    }
    functions = {
        "columns_of": _columns,
        "command": command,
        "hours_of": hours_of,
        "more": more,
        "plural": plural,
        "some": some,
    }
    environment.globals.update(functions)
    return environment


def _columns(report: AssetReport) -> list[str]:
    return [f"{column} in {plural(rows, 'row')}" for column, rows in report.columns.most_common()]


def _checks(report: RepairReport) -> list[tuple[Fact, ...]]:
    """Each check of each asset: how many hours passed and failed it, those that fail most first."""
    rows = [
        (one.name, name, len(passed), len(failed), ranges_of(failed))
        for one in report.assets.values()
        for name, (passed, failed) in one.checks.items()
    ]
    return sorted(rows, key=lambda row: row[3], reverse=True)
