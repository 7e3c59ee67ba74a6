"""The command that makes a new project: `init`."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import click

from backfill_platform.cli import terminal
from backfill_platform.errors import UsageError

# Templates below `new_project`, and what they become. The tutorial has the same pipeline and events, which a test compares.
FILES = {
    "README.md": "README.md",
    "settings.sh": "settings.sh",
    "requirements.txt": "requirements.txt",
    "gitignore": ".gitignore",
    "logins.py.template": "my_company/logins.py",
    "test_logins.py.template": "tests/test_logins.py",
    "make_events.py.template": "make_events.py",
    "workflow.yml": ".github/workflows/backfill.yml",
}
_HOURS = ("0", "1", "2", "3")
_MAY_BE_THERE = {".git"}


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path, file_okay=False))
def init(folder: Path) -> None:
    """Make a new project in an empty FOLDER: a pipeline with sample events, its test, settings and a CI workflow.

    It runs at once; its README says how.
    """
    if folder.is_dir() and (there := sorted(one.name for one in folder.iterdir() if one.name not in _MAY_BE_THERE)):
        raise UsageError(f"{folder} is not empty: it has {there[0]}; name a new folder")
    make_project(folder)
    terminal.out.print(f"made {folder}: {', '.join(FILES.values())}, events/", soft_wrap=True)
    terminal.out.print("next:")
    steps = (
        f"cd {folder}",
        ". ./settings.sh",
        "backfill plan logins --from 2026-01-01T00 --to 2026-01-01T04",
        'backfill run logins --from 2026-01-01T00 --to 2026-01-01T04 --reason "the first day"',
        "backfill gaps logins --from 2026-01-01T00 --to 2026-01-01T04",
        "python -m pytest tests",
    )
    for step in steps[folder == Path() :]:
        terminal.out.print(f"    {step}", soft_wrap=True)


def make_project(folder: Path) -> None:
    """Write the files of a project and its sample events. Raises UsageError when the folder cannot be written to."""
    templates = files("backfill_platform.cli") / "new_project"
    try:
        for template, name in FILES.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text((templates / template).read_text())
        (folder / "my_company" / "__init__.py").touch()
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to: {error.strerror}") from error
    subprocess.run([sys.executable, "make_events.py", *_HOURS], cwd=folder, check=True)
