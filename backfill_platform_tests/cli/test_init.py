"""`backfill init` makes a project that runs at once, with real engines, by nothing but its own README."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from backfill_platform.cli.init import FILES
from backfill_platform_tests.docs.blocks import DOCS, blocks_of

COMMAND = [sys.executable, "-m", "backfill_platform.cli"]


def init(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, "init", *arguments], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    done = init("shop", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / "shop"


def run(project: Path, script: str) -> str:
    """Run lines of a shell in the folder of a project; nothing of the tester's own settings gets in."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "DAGSTER_", "PYTHON"))}
    tools = f'backfill() {{ "{sys.executable}" -m backfill_platform.cli "$@"; }}; python() {{ "{sys.executable}" "$@"; }}'
    done = subprocess.run(
        ["bash", "-ec", f"{tools}\n{script}"], cwd=project, env=ours, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_has_what_it_says(project: Path) -> None:
    made = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    assert set(FILES.values()) <= made
    assert {f"events/2026-01-01/0{hour}.csv" for hour in range(4)} <= made
    assert made - set(FILES.values()) - {f"events/2026-01-01/0{hour}.csv" for hour in range(4)} == {"my_company/__init__.py"}
    named = re.findall(r"^\| `([^`]+)` \|", (project / "README.md").read_text(), re.M)
    assert len(named) == 5
    assert [name for name in named if not (project / name).exists()] == []


def test_it_agrees_with_the_tutorial(project: Path) -> None:
    written = {block.title: block.body for block in blocks_of(DOCS / "tutorial.md") if block.title}
    assert set(written) == {"make_events.py", "my_company/logins.py"}
    for name, body in written.items():
        assert (project / name).read_text() == body


def test_its_workflow_is_as_careful_as_the_example() -> None:
    text = (Path(__file__).parents[2] / "backfill_platform/cli/new_project/workflow.yml").read_text()
    example = (Path(__file__).parents[2] / "examples/ci/github-actions.yml").read_text()
    assert set(re.findall(r"uses: .*", text)) <= set(re.findall(r"uses: .*", example))
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    assert workflow[True] == ["pull_request"]
    assert workflow["jobs"]["checks"]["permissions"] == {"contents": "read"}


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = init(cwd=tmp_path)
    assert (done.returncode, "is not empty: it has notes.txt" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_new_repository_is_a_fine_place(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    done = init(cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "    cd " not in done.stdout
    assert (tmp_path / "my_company" / "logins.py").exists()


@pytest.mark.whole
def test_the_commands_that_it_prints_work(tmp_path: Path) -> None:
    done = init("shop", cwd=tmp_path)
    steps = re.findall(r"^    (.+)$", done.stdout, re.M)
    assert steps[0] == "cd shop"
    assert "no gaps in 4 hours" in run(tmp_path, "\n".join(steps))


@pytest.mark.whole
def test_the_readme_works(project: Path) -> None:
    blocks = [block.body for block in blocks_of(project / "README.md") if block.is_shell]
    assert len(blocks) == 2
    printed = run(project, "\n".join(blocks))
    assert "3 passed" in printed
    assert "no gaps in 4 hours" in printed
    assert "this line is broken" in printed, "the quarantine is shown"


@pytest.mark.slow
def test_its_checks_run_as_its_workflow_runs_them(project: Path) -> None:
    steps = yaml.safe_load((project / ".github/workflows/backfill.yml").read_text())["jobs"]["checks"]["steps"]
    commands = [step["run"] for step in steps if "run" in step and "pip install" not in step["run"]]
    assert len(commands) == 3
    for command in commands:
        run(project, command)
    assert "<testsuite" in (project / "checks.xml").read_text()
