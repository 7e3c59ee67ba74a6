"""The fenced blocks of the documentation's pages, and how each of them is tested.

A comment before a block says what is special about it: `<!-- test: exit 1 -->`, `last` (run at the end of the walk), `in the
walk` (Python that is run there), `parsed only: REASON` (commands are checked, nothing is run) and `not run: REASON`.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md")))

# The pages whose blocks are run one after the other, in this order, in one shell.
WALK = (
    "tutorial.md",
    "how-to/late-data.md",
    "how-to/live.md",
    "how-to/bad-deploy.md",
    "how-to/one-tenant.md",
    "how-to/undo.md",
    "how-to/materialized-views.md",
    "how-to/own-table.md",
    "how-to/adopt.md",
    "how-to/ci.md",
    "how-to/gaps.md",
    "how-to/notifications.md",
    "operations/maintenance.md",
    "how-to/add-a-metric.md",
)

_BLOCK = re.compile(
    r"(?:^<!-- test: (?P<mark>[^\n]*) -->\n)?"
    r"^```(?P<language>[\w-]+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```$"
    r"(?:\n\n```text\n(?P<output>.*?)^```$)?",
    re.S | re.M,
)
_COMMAND = re.compile(r"(?:^|\$\(|[|;&]\s*)backfill\s+([^|;<>&)\n]+)", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, its language, its mark and text, the file it is saved as, and the output shown below it."""

    page: Path
    line: int
    language: str
    mark: str
    title: str
    body: str
    output: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.language in ("sh", "console")

    @property
    def left_out(self) -> bool:
        """Whether it is not run at all."""
        return self.mark.startswith(("not run: ", "parsed only: "))

    @property
    def exit_code(self) -> int:
        """With which code its last command ends."""
        return int(self.mark.removeprefix("exit ")) if self.mark.startswith("exit ") else 0

    def commands(self) -> Iterator[list[str]]:
        """The arguments of each `backfill` command in it."""
        for found in _COMMAND.finditer(self.body.replace("\\\n", " ")):
            yield shlex.split(found[1], comments=True)


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order. A block of output belongs to the block before it."""
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found["language"],
            found["mark"] or "",
            found["title"] or "",
            found["body"],
            found["output"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


def all_blocks() -> list[Block]:
    """The blocks of all pages."""
    return [block for page in PAGES for block in blocks_of(page)]
