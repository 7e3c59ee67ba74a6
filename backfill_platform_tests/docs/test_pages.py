"""What the pages promise: the site builds, the README is short, links lead somewhere, the runbook is complete."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_platform import errors
from backfill_platform.adapters.spark.checks import AUDIT_CHECKS, SESSION_CHECKS
from backfill_platform.domain.tables import Layer
from backfill_platform.orchestration import process_identity, run_request
from backfill_platform.repair.outcomes import NO_GAP, NO_PENDING_APPROVAL
from backfill_platform.repair.publish import DRY_RUN_CHECKS, PUBLISH_CHECKS
from backfill_platform.topics.delivery_counts import DELIVERY_COUNTS
from backfill_platform_tests.docs.blocks import DOCS, PAGES, ROOT, blocks_of

CHECKS = {*AUDIT_CHECKS, *SESSION_CHECKS, *DRY_RUN_CHECKS, *PUBLISH_CHECKS, NO_GAP, NO_PENDING_APPROVAL, DELIVERY_COUNTS}
ERRORS = [name for name, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, errors.BackfillError)]
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s#:]+)(?:#[^)]*)?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.M)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_files_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    assert [link for link in _LINK.findall(text) if not (page.parent / link).exists()] == []


def test_python_files_that_pages_name_are_there() -> None:
    there = {
        path.relative_to(ROOT).as_posix()
        for top in ("backfill_platform", "backfill_platform_tests", "benchmarks", "docs")
        for path in (ROOT / top).rglob("*.py")
    }
    written = {block.title for page in PAGES for block in blocks_of(page)}  # by the reader of a page
    named = {(page, name) for page in PAGES for name in re.findall(r"`([\w/]+\.py)`", page.read_text())}
    absent = [(page.name, name) for page, name in named if not any(one == name or one.endswith(f"/{name}") for one in there)]
    assert [one for one in absent if one[1] not in written] == []


@pytest.mark.parametrize("name", [*ERRORS, *sorted(CHECKS)])
def test_the_runbook_has_an_entry(name: str) -> None:
    assert name in _HEADING.findall((DOCS / "operations" / "runbook.md").read_text())


def test_the_runbook_has_no_entry_of_a_class_or_check_that_is_gone() -> None:
    headings = re.findall(r"^### (\w+)$", (DOCS / "operations" / "runbook.md").read_text(), re.M)
    assert set(headings) == {*ERRORS, *CHECKS}


@pytest.mark.whole
def test_the_site_is_made_from_the_code(site: Path) -> None:
    from backfill_platform.cli.main import main
    from backfill_platform.settings import Settings

    def page(name: str) -> str:
        return (site / f"{name}.html").read_text()

    settings, cli, tags = page("reference/settings"), page("reference/cli"), page("reference/tags")
    assert [name for name in Settings.model_fields if f"BACKFILL_{name.upper()}" not in settings] == []
    assert [name for name in main.commands if f'id="backfill-{name}"' not in cli] == []
    assert [page.name for page in site.rglob("*.html") if "Sentinel." in page.read_text()] == []
    named = [value for module in (run_request, process_identity) for key, value in vars(module).items() if key.endswith("_TAG")]
    assert len(named) > 10
    assert [tag for tag in named if tag not in tags] == []
    assert [check for check in CHECKS if f"<code>{check}</code>" not in page("reference/checks")] == []
    ledger = page("reference/ledger")
    assert [name for name in ("rows_quarantined", "input_digest", "change_limits", "payload") if name not in ledger] == []
    python = page("reference/python")
    assert [
        name for name in ("Pipeline", "KafkaTopic", "with_last_touch", *ERRORS) if f'"{name}' not in python.replace(".", '"')
    ] == []


@pytest.mark.whole
def test_the_site_needs_no_other_server(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\" >]+)")
    found = {address for page in site.rglob("*.html") for address in loaded.findall(page.read_text())}
    assert found == set()


def test_nothing_speaks_of_layers_that_are_gone() -> None:
    assert (ROOT / "backfill_platform" / Layer.RAW.value).exists() is False
    old = re.compile(
        r"`(?:core|spark|warehouse|streams|messages|lake)/\w+\.py`|backfill watchers|BACKFILL_WATCHERS|--contract\b|--heal\b"
    )
    assert [str(page) for page in PAGES if old.search(page.read_text())] == []
