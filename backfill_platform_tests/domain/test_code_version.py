"""The digest of a table's code changes with what it computes, and with nothing else."""

import importlib.util
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest

from backfill_platform.domain.code_version import code_digest
from backfill_platform.examples.clickstream import pipeline

MODULE = '''
from datetime import timedelta

GAP = timedelta(minutes=30)

def used(x):
    """Says what it does."""
    return x + 1  # a comment

def build(x):
    return [used(n) for n in x if n < GAP.seconds]
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Python takes a compiled file of the same second and size for the module, whatever has changed in it.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("digest_test_")]:
        del sys.modules[name]


def digest(folder: Path, text: str, number: int) -> str:
    name = f"digest_test_{number}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return code_digest(module.build).replace(name, "")


@pytest.mark.parametrize("what", [("x + 1", "x + 2"), ("minutes=30", "minutes=31"), ("n < GAP", "n <= GAP")])
def test_it_changes_with_the_function_what_it_calls_and_the_values_it_uses(folder: Path, what: tuple[str, str]) -> None:
    same_name = MODULE.replace(*what)
    assert same_name != MODULE
    first = digest(folder, MODULE, 1)
    del sys.modules["digest_test_1"]
    import linecache

    linecache.clearcache()
    assert digest(folder, same_name, 1) != first


def test_comments_docstrings_and_layout_do_not_count(folder: Path) -> None:
    first = digest(folder, MODULE, 2)
    other = MODULE.replace("  # a comment", "").replace("Says what it does.", "Something else.").replace("x + 1", "(x +\n 1)")
    import linecache

    linecache.clearcache()
    assert digest(folder, other, 2) == first


def test_values_count_and_the_digest_is_the_same_every_time() -> None:
    assert code_digest(timedelta(1), "a") != code_digest(timedelta(2), "a")
    versions = [pipeline.code_version(table.name) for table in pipeline.tables]
    assert len(set(versions)) == 3
    assert versions == [pipeline.code_version(table.name) for table in pipeline.tables]
