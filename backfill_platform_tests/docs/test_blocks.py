"""Every block of the documentation is run, or says why not; commands that are not run are at least commands that exist."""

import sys
from collections import Counter
from pathlib import Path

import click
import pytest

from backfill_platform.cli.main import main
from backfill_platform_tests.docs.blocks import DOCS, ROOT, WALK, Block, all_blocks

# Blocks that are not run, by page. A new one needs a reason in the page and a number here.
LEFT_OUT = {
    "CONTRIBUTING.md": 1,
    "README.md": 2,
    "docs/how-to/ci.md": 1,
    "docs/how-to/notifications.md": 1,
    "docs/how-to/topics.md": 4,
    "docs/how-to/write-a-pipeline.md": 3,
    "docs/operations/backup.md": 2,
    "docs/operations/runbook.md": 12,
    "docs/operations/settings.md": 1,
    "docs/operations/topology.md": 1,
    "docs/operations/upgrade.md": 1,
    "docs/tutorial.md": 1,
}
KNOWN_MARKS = ("exit ", "last", "in the walk", "parsed only: ", "not run: ")
BLOCKS = all_blocks()
PYTHON = [block for block in BLOCKS if block.language == "python" and block.mark != "in the walk"]
COMMANDS = [(block, command) for block in BLOCKS if block.is_shell for command in block.commands()]


def test_every_shell_block_is_run_or_says_why_not() -> None:
    walked = {DOCS / name for name in WALK}
    silent = [str(one) for one in BLOCKS if one.is_shell and one.page not in walked and not one.left_out]
    assert silent == []
    assert [str(one) for one in BLOCKS if one.mark and not one.mark.startswith(KNOWN_MARKS)] == []


def test_the_blocks_that_are_not_run_are_counted() -> None:
    found = Counter(str(one.page.relative_to(ROOT)) for one in BLOCKS if one.left_out)
    assert dict(found) == LEFT_OUT


@pytest.mark.parametrize(("block", "command"), COMMANDS, ids=[f"{block}:{command[0]}" for block, command in COMMANDS])
def test_a_command_of_the_documentation_exists_with_its_options(
    block: Block, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "limits.yaml").write_text("{}")
    name, *arguments = command
    found = main.get_command(click.Context(main), name)
    assert found is not None, f"{block}: there is no command {name}"
    try:
        found.make_context(name, arguments)
    except click.UsageError as error:
        pytest.fail(f"{block}: backfill {' '.join(command)}: {error.message}")


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_a_python_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["block.py"])
    namespace = {"__name__": "block", "__file__": str(tmp_path / "my_company" / "block.py")}
    exec(compile(block.body, str(block), "exec"), namespace)
