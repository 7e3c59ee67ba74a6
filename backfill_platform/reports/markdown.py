"""Text of events and people in Markdown and in messages: it stays text, never a link, an image, a tag or a table."""

import re

from backfill_platform.domain.visible_text import JOINER, visible
from backfill_platform.repair.outcomes import Fact, Rows

# Entities where a backslash is not enough for every renderer: older ones keep `<` and `&` as HTML, or end a cell at `\|`.
_ENTITIES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord("|"): "&#124;", ord("~"): "&#126;"}
# `_` within a word is no markup; escaping it would spoil the names of columns where Dagster shows the text as it is.
_MARKUP = re.compile(r"[\\`*\[\]]|(?<![^\W_])_|_(?![^\W_])")
# A bare address becomes a link in whatever way it is escaped, because renderers look for them in the finished text.
_LINKED = re.compile(r"(?i)(?<=:)(?=//)|(?<=www)(?=\.)|(?<=@)")
# `![text](address)`, `[text]: address`, `<address|text>` and `<!channel>` of Slack.
_CALLED = re.compile(r"[\]<]")


def markdown(table: Rows) -> str:
    """A Markdown table."""
    rule = ["---" for _ in table.columns]
    lines = [[*map(cell, table.columns)], rule, *([*map(cell, row)] for row in table.rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(value: Fact | None) -> str:
    """A value within a line of Markdown: one line, that is shown as it is."""
    text = visible("" if value is None else str(value))
    text = _MARKUP.sub(r"\\\g<0>", " ".join(text.splitlines()).replace("\t", " ").strip(" "))
    return _unlinked(text.translate(_ENTITIES))


def paragraph(value: Fact | None) -> str:
    """The same at the beginning of a line, where it must not become a heading, a list, a rule or a block of code either."""
    text = cell(value)
    return text if not text or text[0].isalpha() else JOINER + text


def harmless(text: str) -> str:
    """The text for messages, whose services each have a markup of their own: links, images and calls are parted by joiners."""
    return _unlinked(_CALLED.sub(rf"\g<0>{JOINER}", visible(text)))


def _unlinked(text: str) -> str:
    return _LINKED.sub(JOINER, text)
