"""`backfill recipients`: who is told of a pipeline's repairs, and a test message for each of them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner, Result

from backfill_platform.cli.main import main
from backfill_platform_tests.adapters.delivery.servers import Answer, Hook, hook_server

TOKEN = "T0KEN-B0SS-xoxSecretPath"


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    """A pipeline `watched` with two recipients that can be reached."""
    module = """
        from dataclasses import replace
        from backfill_platform.examples import clickstream
        pipeline = replace(clickstream.pipeline, name="watched", recipients=("web-team", "pager"))
    """
    (tmp_path / "watched_pipeline.py").write_text(dedent(module))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BACKFILL_PIPELINES", '["watched_pipeline", "backfill_platform.examples.payments"]')
    with hook_server() as found:
        recipients = {
            "web-team": {"urls": [found.address(f"/services/{TOKEN}")]},
            "pager": {"urls": [found.address("/pager")], "events": ["failed"]},
        }
        monkeypatch.setenv("BACKFILL_RECIPIENTS", json.dumps(recipients))
        yield found
    sys.modules.pop("watched_pipeline", None)


def backfill(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_test_message_reaches_everybody_whatever_they_want_to_hear_of(hook: Hook, tmp_path: Path) -> None:
    result = backfill("recipients", "watched", "--test", "--output", "json")
    assert result.exit_code == 0, result.output
    assert [(one["recipient"], one["channel"], one["test"]) for one in json.loads(result.stdout)] == [
        ("web-team", "JSON", "told"),
        ("pager", "JSON", "told"),
    ]
    for path in (f"/services/{TOKEN}", "/pager"):
        assert hook.texts_at(path)[0].startswith("[backfill] watched: a test message\n")


def test_without_test_nobody_is_bothered(hook: Hook) -> None:
    result = backfill("recipients", "watched")
    assert result.exit_code == 0, result.output
    assert "failed, finished, waiting" in result.stdout
    assert hook.requests == []


@pytest.mark.whole
def test_who_is_not_reached_is_named_with_the_reason_and_without_the_address(hook: Hook) -> None:
    hook.answers = [Answer(410)] * 100
    result = backfill("recipients", "watched", "--test")
    assert result.exit_code == 1
    assert "JSON did not take it; see that the address is right" in " ".join(result.stdout.split())
    assert "xoxSecretPath" not in result.output


def test_a_recipient_that_is_nowhere_set_up_is_named(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_RECIPIENTS", "{}")
    result = backfill("recipients", "watched")
    assert result.exit_code == 1
    assert "is not in BACKFILL_RECIPIENTS" in " ".join(result.stdout.split())


def test_a_pipeline_without_recipients_says_so(hook: Hook) -> None:
    result = backfill("recipients", "payments", "--test")
    assert (result.exit_code, "names no recipients" in result.stdout) == (0, True)


def test_wrong_use_ends_with_2(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    assert backfill("recipients", "nobody").exit_code == 2
    monkeypatch.setenv("BACKFILL_RECIPIENTS", '{"web-team": {}}')
    result = backfill("recipients", "watched")
    assert result.exit_code == 2
    assert "BACKFILL_RECIPIENTS web-team.urls: Field required" in result.stderr
