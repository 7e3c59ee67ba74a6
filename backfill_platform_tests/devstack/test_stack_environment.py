"""The environment of the child processes of `backfill up`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_platform.devstack.stack import environment_of_parts
from backfill_platform.settings import Settings


def test_byte_code_goes_to_the_home_where_the_environment_forbids_it_beside_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_module.py").write_text("")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for forbidden, files in ((False, 0), (True, 1)):
        monkeypatch.setattr(sys, "dont_write_bytecode", forbidden)
        environment = environment_of_parts(Settings(home=tmp_path / "home", project=tmp_path), "sc://localhost:1")
        subprocess.run([sys.executable, "-c", "import a_module"], env=environment, cwd="/", check=True)
        assert len(list((tmp_path / "home" / "bytecode").rglob("a_module.*.pyc"))) == files
    assert not list(tmp_path.glob("__pycache__/*"))


def test_the_project_is_added_to_the_module_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    environment = environment_of_parts(Settings(home=tmp_path / "home", project=tmp_path), "sc://localhost:1")
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), "/somewhere"]
