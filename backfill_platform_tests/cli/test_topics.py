"""What the commands of topics say when they are used wrongly: one line, exit 2 for wrong use."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from backfill_platform.cli.main import main

RANGE = ("--from", "1998-04-30T22", "--to", "1998-04-30T23")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("replay", "clickstream", *RANGE), 1, "no Kafka cluster is named: set BACKFILL_KAFKA"),
        (("replay", "nothing", *RANGE), 2, "there is no pipeline 'nothing'"),
        (("replay", "clickstream", *RANGE, "--topic", "payments=x"), 2, "payments is not replayed; replayed are clickstream"),
        (("replay", "clickstream", "--from", "1998-04-30T22", "--to", "1998-04-30T22"), 2, "is empty; ranges are half-open"),
        (("replay", "clickstream", *RANGE, "--messages-per-second", "0"), 2, "0 is not in the range x>0"),
        (("replay-limits", "unknown", "clickstream"), 2, "there is no replay with rows"),
        (("drain", "clickstream"), 2, "Missing option '--name'"),
        (("drain", "clickstream", "--name", "d"), 1, "no Kafka cluster is named"),
        (("handover", "clickstream", "--at", "later"), 2, "'later' is not an hour"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: tuple[str, ...], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path))
    monkeypatch.delenv("BACKFILL_KAFKA", raising=False)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    assert said in " ".join(result.output.split())


def test_secrets_of_the_cluster_are_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path))
    monkeypatch.setenv("BACKFILL_KAFKA", '{"sasl.password": ["hunter2"]}')
    result = CliRunner().invoke(main, ["drain", "clickstream", "--name", "d"])
    assert result.exit_code == 2
    assert "BACKFILL_KAFKA" in result.output
    assert "hunter2" not in result.output
