"""The tutorial and the how-to guides, walked from the first command to the last in one shell, as a reader would.

What the pages show as output must be in what the commands print, line by line; names of repairs, times and ports differ.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from backfill_platform_tests.docs.blocks import DOCS, ROOT, WALK, Block, all_blocks, blocks_of

# A minute for each page on a quiet machine is three on a busy one.
pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800, func_only=True)]

_LEFT_OUT = "..."
_MASKS = (
    (re.compile(r"r\d{8}t\d{6}_[0-9a-f]*"), "REPAIR"),
    (re.compile(r"/runs/[0-9a-f-]{36}"), "/runs/RUN"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "DIGEST"),
    (re.compile(r"\b20(?!26-01)\d\d-\d\d-\d\d \d\d:\d\d(:\d\d)?"), "TIME"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:PORT"),
    (re.compile(r"kill \d+|\bin \d+ s\b|after \d+ s\b|\b\d+\.\d(?= │$|\s+│$)"), "NUMBER"),
    (re.compile(r"[━┃┏┓┳╇┡┩│└┘┴─┌┐┬├┤┼╪]+"), " "),
)


class Shell:
    """One shell, kept over all blocks, in a home of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        given = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "DAGSTER_"))}
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**given, "HOME": str(home), "BACKFILL_WEB_PORT": "0"},
            start_new_session=True,
        )
        # Of this checkout and this interpreter, whatever is installed. Scripts and not functions, whose process is another one.
        self._pinned = ""
        for name, module in (("backfill", "-m backfill_platform.cli"), ("python", "")):
            script = home / name
            script.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}:$PYTHONPATH" exec "{sys.executable}" {module} "$@"\n')
            script.chmod(0o755)
            self._pinned += f"hash -p {script} {name}; "

    def run(self, text: str) -> tuple[int, str]:
        """Run a block in this shell; its exit code and all that it printed."""
        block, printed = self._home / "block.sh", self._home / "printed"
        block.write_text(text)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(f"{self._pinned}source {block} > {printed} 2>&1; echo done $?", file=stdin, flush=True)
        code = int(stdout.readline().split()[1])
        return code, printed.read_text()

    def close(self) -> None:
        """End the shell and what it has started."""
        self.run('kill "$UP" && wait "$UP"')
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("walk"))
    try:
        yield shell
    finally:
        shell.close()


def test_the_pages_can_be_walked(shell: Shell) -> None:
    home = Path(shell.run("echo $HOME")[1].strip())
    last: list[Block] = []
    problems: list[str] = []
    for name in WALK:
        for block in blocks_of(DOCS / name):
            if block.title:
                file = home / "backfill-tutorial" / block.title
                file.write_text(block.body)
            elif block.mark == "last":
                last.append(block)
            elif block.is_shell and not block.left_out:
                problems += _run(shell, block, home)
    for block in all_blocks():
        if block.mark == "in the walk":
            (home / "block.py").write_text(block.body)
            code, printed = shell.run(f"python {home}/block.py")
            assert code == 0, f"{block}: {printed}"
            assert "this line is broken" in printed, f"{block}: {printed}"
    for block in last:
        problems += _run(shell, block, home)
    assert not problems, "\n\n".join(problems)


def _run(shell: Shell, block: Block, home: Path) -> list[str]:
    """Run a block, which must end as the page says; what the page shows and the commands did not print."""
    code, printed = shell.run(block.body)
    assert code == block.exit_code, f"{block} ended with {code}:\n{printed[-4000:]}"
    lines = {_plain(line, home) for line in printed.splitlines()}
    absent = [line for line in block.output.splitlines() if line != _LEFT_OUT and _plain(line, home) not in lines]
    return [f"{block}: the page shows\n{chr(10).join(absent)}\nthe commands printed\n{printed[-6000:]}"] if absent else []


def _plain(line: str, home: Path) -> str:
    line = line.replace(str(home), "~")
    for pattern, instead in _MASKS:
        line = pattern.sub(instead, line)
    return " ".join(line.split())
