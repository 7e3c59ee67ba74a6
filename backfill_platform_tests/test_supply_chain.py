"""What is installed and what CI runs is what was reviewed: pinned by hash and by commit."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from backfill_platform_tests.fixtures_stack import ROOT

EXAMPLE = ROOT / "examples" / "ci" / "github-actions.yml"


def locked() -> dict[str, list[str]]:
    """The hashes of each requirement of the lock."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "requirements.lock").read_text().replace("\\\n", " ").splitlines():
        requirement, *options = line.split()
        assert re.fullmatch(r"[a-z0-9-]+(\[[a-z0-9,-]+\])?==\S+", requirement), line
        found[requirement.partition("==")[0]] = options
    return found


def test_every_dependency_is_locked_with_hashes() -> None:
    requirements = locked()
    assert len(requirements) > 100
    for name, hashes in requirements.items():
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), name
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {
        re.split(r"[\[<>=! ]", text)[0].lower()
        for text in (*declared["project"]["dependencies"], *declared["dependency-groups"]["dev"])
    }
    assert wanted <= {name.partition("[")[0] for name in requirements}


def test_what_is_installed_is_checked_against_the_hashes() -> None:
    installing = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line]
    assert len(installing) == 2
    locked_ones, own = installing
    assert "--no-deps --require-hashes -r requirements.lock" in locked_ones
    assert "--no-deps --no-build-isolation" in own, "a build in isolation would fetch its tools without hashes"
    assert "--generate-hashes" in (ROOT / "Makefile").read_text()


def test_an_audit_that_could_not_look_fails() -> None:
    (command,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip-audit " in line]
    assert "--strict" in command, "without it, packages that the database does not answer for are skipped, and all is well"


def test_the_example_of_ci_pins_actions_by_commit_and_may_only_read() -> None:
    text = EXAMPLE.read_text()
    uses = re.findall(r"uses: (\S+)(.*)", text)
    assert len(uses) > 4
    for action, comment in uses:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)
        assert re.fullmatch(r"  # v\d+\.\d+\.\d+", comment), "a reader must see which version it is"
    workflow: dict[Any, Any] = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    assert {name: job["permissions"] for name, job in workflow["jobs"].items()} == {
        "checks": {"contents": "read"},
        "audit": {"contents": "read"},
    }
    assert workflow[True] == ["pull_request"], "never pull_request_target, which gives secrets to code of others"
    assert "secrets." not in text
    assert "github.event" not in text, "texts of a pull request are not put into commands"
    for job in workflow["jobs"].values():
        checkout = next(step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@"))
        assert checkout["with"]["persist-credentials"] is False
    assert "make audit" in text


def test_no_lock_names_a_place_to_download_from() -> None:
    assert not re.search(r"https?://|--(extra-)?index-url", Path(ROOT / "requirements.lock").read_text())
