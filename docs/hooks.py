"""What the documentation site takes from the code and from the rest of the repository when it is built.

Markers such as `<!-- generated: settings -->` become tables made from the code. Pages that lie outside `docs/` (the changelog,
CONTRIBUTING, the results of benchmarks) become pages of the site, and links between files of the repository become links
between pages: so the same text can be read in the repository and on the site.

Add here: tables that can be read from the code. Keep out: prose.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_MARKER = re.compile(r"<!-- generated: ([\w-]+) -->")
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#:]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"^```.*?^```$", re.S | re.M)


def extra_pages() -> dict[str, str]:
    """Files of the repository outside `docs/` that are pages of the site, and their places there."""
    found = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
    for path in sorted((ROOT / "benchmarks").rglob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        found[name] = name
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside `docs/`."""
    for name, place in extra_pages().items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is generated, and make links between files links between pages."""
    filled = _MARKER.sub(lambda marker: generated(marker[1]), markdown)
    return relink(filled, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leave out what mkdocs-click shows for options of a newer click that have no default."""
    return html.replace("<code>Sentinel.UNSET</code>", "")


def relink(markdown: str, place: str) -> str:
    """The text with links to files of the repository replaced by links to their pages, as seen from the page `place`.

    A link to a file that is no page loses its address and keeps its text. Raises PluginError for a file that is not there.
    """
    places = {**{f"docs/{path}": path for path in _pages_below_docs()}, **extra_pages()}
    source = next((name for name, found in places.items() if found == place), f"docs/{place}")

    def link(match: re.Match[str]) -> str:
        text, address, anchor = match[1], match[2], match[3] or ""
        name = normpath(join(dirname(source), address))
        if not (ROOT / name).exists():
            raise PluginError(f"{source} links to {address}, which is not there")
        if name in places:
            return f"{text}({relpath(places[name], dirname(place) or '.')}{anchor})"
        return match[0] if name.startswith("docs/") else text.strip("[]")

    parts, last = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(link, markdown[last : code.start()]), code[0]]
        last = code.end()
    return "".join([*parts, _LINK.sub(link, markdown[last:])])


def _pages_below_docs() -> Iterator[str]:
    docs = ROOT / "docs"
    return (path.relative_to(docs).as_posix() for path in docs.rglob("*") if path.is_file())


def generated(name: str) -> str:
    """The table of that name. Raises PluginError for one that nobody makes."""
    makers = {"settings": _settings, "recipients": _recipients, "tags": _tags, "checks": _checks, "ledger": _ledger}
    if name not in makers:
        raise PluginError(f"nothing generates '{name}'; there are {', '.join(makers)}")
    return makers[name]()


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(columns), line(["---"] * len(columns)), *map(line, rows)])


def _fields(model: Any, prefix: str = "") -> list[tuple[str, str, str, str]]:
    """Name, type, default and description of the fields of a pydantic model."""
    rows = []
    for name, field in model.model_fields.items():
        type_ = field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
        plain = re.sub(r"\b(?:[a-z_]\w*\.)+(\w+)", r"\1", type_).replace(" | None", " or none")
        default = "required" if field.is_required() else f"`{_plain_default(field.get_default())}`"
        shown = f"{prefix}{name.upper()}" if prefix else field.alias or name
        text = re.sub(r"(\{.*\})", r"`\1`", field.description or "")  # braces have a meaning in Markdown
        rows.append((f"`{shown}`", f"`{plain}`", default, text))
    return rows


def _plain_default(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "none" if value in (None, {}) else "empty" if not str(value) else str(value)


def _settings() -> str:
    from backfill_platform.settings import Settings

    return _table(("variable", "type", "default", "what it says"), _fields(Settings, "BACKFILL_"))


def _recipients() -> str:
    from backfill_platform.settings import RecipientSettings

    return _table(("field", "type", "default", "what it says"), _fields(RecipientSettings))


def _tags() -> str:
    """Tags that the launchpad has as fields, too; the others are described on the page itself."""
    from backfill_platform.orchestration.run_request import TAGS, RepairConfig

    fields = {name: field for name, field in RepairConfig.model_fields.items() if f"backfill/{name}" in TAGS}
    rows = [(f"`backfill/{name}`", field.description or "") for name, field in fields.items()]
    return _table(("run tag", "what it says"), rows)


def _checks() -> str:
    """The checks that every pipeline has, by the assets that have them."""
    from backfill_platform.domain.tables import Layer
    from backfill_platform.examples.clickstream import pipeline
    from backfill_platform.orchestration.assets import check_specs
    from backfill_platform.orchestration.checks.delivery_counts import delivery_count_checks
    from backfill_platform.orchestration.checks.gaps import gap_checks
    from backfill_platform.orchestration.partitions import partitions_of

    warnings.filterwarnings("ignore", message=".*partitions_def.*")  # a preview feature of the pinned Dagster
    hours = partitions_of(pipeline)
    own = {rule.name.replace(" ", "_") for table in pipeline.tables for rule in pipeline.rules(table.name).blocking}
    specs = [*check_specs(pipeline, hours)]
    for more in (gap_checks(pipeline, hours), delivery_count_checks(pipeline, hours)):
        specs += more.check_specs
    assets: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for spec in specs:
        layer = f"{spec.asset_key.path[0]}/*"
        if spec.name not in own and layer not in assets.setdefault(spec.name, []):
            assets[spec.name].append(layer)
        texts.setdefault(spec.name, spec.description or "")
    order = [*(f"{layer}/*" for layer in Layer), "dry_run/*", "warehouse/*"]
    rows = [
        (f"`{name}`", ", ".join(f"`{one}`" for one in sorted(found, key=order.index)), texts[name])
        for name, found in assets.items()
        if found
    ]
    return _table(("check", "of the assets", "what it says"), rows)


class _Statements:
    """Stands in for a warehouse and keeps the statements that it is given."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def prepare(self, statements: Iterable[str], **others: object) -> None:
        """Keep the statements."""
        self.given += statements


def _ledger() -> str:
    """The columns of the tables that the ledger makes, as its own statements declare them."""
    from backfill_platform.adapters.clickhouse.state.ledger import Ledger
    from backfill_platform.adapters.clickhouse.state.receipts import Receipts

    warehouse: Any = _Statements()
    Ledger(warehouse), Receipts(warehouse)
    made = [re.search(r"CREATE TABLE IF NOT EXISTS (\S+) \((.*)\)\s*ENGINE", one, re.S) for one in warehouse.given]
    column = re.compile(r"\s*(\w+) ((?:[^,('\s]|\((?:[^()]|\([^()]*\))*\))+)(?: COMMENT '([^']*)')?\s*(?:,|\Z)")
    parts = []
    for table in filter(None, made):
        rows = [(f"`{name}`", f"`{kind}`", comment or "") for name, kind, comment in column.findall(table[2])]
        parts.append(f"## {table[1].replace('`', '')}\n\n{_table(('column', 'type', 'what it says'), rows)}")
    return "\n\n".join(parts)
