"""Text of an event on its way to a terminal, to programs and to CI servers: nothing obeys it."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from junitparser import JUnitXml
from rich.console import Console

from backfill_platform.cli import terminal
from backfill_platform.cli.junit import write_junit
from backfill_platform.detection.validation import Checked, Verdict
from backfill_platform.domain.visible_text import visible

HOUR = datetime(2026, 1, 1, 3, tzinfo=UTC)
HOSTILE = (
    "\x1b[2J\x1b]52;c;ZXZpbA==\x07 \x1b]8;;http://evil\x1b\\x \x9b31m \u202egpj \x85 \u2066 \r\b [red]x[/red] ]]> </failure>"
)
OBEYED = set("\x07\x08\r\x1b\x85\x9b\u202e\u2066")


@contextmanager
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a real terminal would be sent; rich writes its own codes only where it is told to colour."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, color_system=None, width=400, highlight=False)
    monkeypatch.setattr(terminal, "out", console)
    monkeypatch.setattr(terminal, "err", console)
    yield shown


def test_no_code_of_an_event_reaches_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch) as shown:
        terminal.show_table(HOSTILE, ["key", HOSTILE], [(HOSTILE, 1), ("x", HOSTILE)])
        terminal.show_error(RuntimeError(HOSTILE))
        terminal.show_heading(HOSTILE)
        terminal.show_text(HOSTILE)
        terminal.show_json({HOSTILE: [HOSTILE]})
    text = shown.getvalue()
    assert not OBEYED & set(text)
    assert text.count(r"\x1b]52;c;ZXZpbA==\x07") == 7
    assert text.count("[red]x[/red]") == 9


def test_progress_shows_no_code_of_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(terminal, "err", Console(file=shown, width=400))
    with terminal.StepProgress() as progress:
        progress.say(HOSTILE)
    assert r"\x1b]52" in shown.getvalue()
    assert not OBEYED & set(shown.getvalue())


def test_json_holds_the_same_text_and_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch) as shown:
        terminal.show_json({HOSTILE: [HOSTILE, float("nan"), HOUR, "ü"]})
    assert json.loads(shown.getvalue()) == {HOSTILE: [HOSTILE, "nan", "2026-01-01T03:00:00Z", "ü"]}
    assert not OBEYED & set(shown.getvalue())


def test_a_hostile_text_leaves_junit_xml_whole(tmp_path: Path) -> None:
    checks = [
        Checked(("raw", "x"), HOSTILE, {HOUR: (verdict, HOSTILE)})
        for verdict in (Verdict.FAILED, Verdict.SKIPPED, Verdict.WARNED)
    ]
    write_junit(tmp_path / "checks.xml", "x", checks, (Verdict.FAILED,), 1.0)
    report = JUnitXml.fromfile(str(tmp_path / "checks.xml"))
    cases = [case for suite in report for case in suite]
    assert len(cases) == 3
    assert [one.message for case in cases for one in case.result] == [visible(HOSTILE)] * 2
    assert cases[2].system_out == f"warning: {visible(HOSTILE)}"
    assert not (OBEYED - {"\r"}) & set((tmp_path / "checks.xml").read_text())
