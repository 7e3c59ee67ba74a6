"""Text of events stays text in the Markdown of Dagster's pages, by renderers that people use."""

import html
import re
from collections.abc import Iterator

import markdown as python_markdown
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from backfill_platform.domain.visible_text import visible
from backfill_platform.repair.outcomes import Rows
from backfill_platform.reports.markdown import cell, harmless, markdown, paragraph

HARMLESS = {"paragraph_open", "paragraph_close", "inline", "text", "softbreak", "text_special"}
TABLE = {f"{part}_{end}" for part in ("table", "thead", "tbody", "tr", "th", "td") for end in ("open", "close")}
# What remark-gfm, which Dagster's pages use, makes links of in the text that is left after all escapes.
AUTOLINKS = re.compile(
    r"(?i)(https?://|www(?=\.))[-.\w]+|(?:^|[\s\W])[-.\w+]+@[-\w]+(?:\.[-\w]+)+|(?:mailto|xmpp):[-.\w+]+@", re.ASCII
)
ATTACKS = (
    "![x](/graphql?query=mutation{launchPartitionBackfill(backfillParams:{})})",
    "[x](javascript:alert(1))",
    "a\\| b",
    "\\\\|x",
    "<img src=x onerror=alert(1)>",
    "&lt;b&gt; &#91;x](y)",
    "http://evil.example/x www.evil.example WWW.x.y ada@evil.example https://a@b",
    "`code` ```\nfence",
    "*bold* __strong__ _it_ ~~gone~~ ~gone~",
    "\r\n\r\n# heading",
    "# heading",
    "1. list",
    "---",
    "    block of code",
    "[x]: http://evil.example",
    "![x][y]\n\n[y]: http://evil.example",
    "<!-- ",
    "http\\://evil.example",
)
TEXTS = st.one_of(
    st.text(),
    st.lists(st.sampled_from([*"\\`*_{}[]()#+-.!|<>~&:@/ \n\t\r=x1", "http://", "www.", "x.y", "a@b.c", "&#91;"])).map("".join),
    st.sampled_from(ATTACKS),
    st.tuples(st.sampled_from(ATTACKS), st.sampled_from(ATTACKS)).map("".join),
)


def tokens(text: str) -> Iterator[Token]:
    """All tokens of the text, as GitHub's Markdown has them."""
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text):
        yield token
        yield from token.children or ()


def shown(text: str) -> str:
    """What a reader sees of a value: one line, without the joiners that nobody sees."""
    return " ".join(visible(text).replace("\t", " ").split("\n")).strip(" ")


def plain(text: str) -> str:
    return text.replace("\N{WORD JOINER}", "")


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_in_a_cell_is_text(attack: str) -> None:
    a_cell_is_text(attack)


@given(TEXTS)
def test_any_text_in_a_cell_is_text(text: str) -> None:
    a_cell_is_text(text)


def a_cell_is_text(text: str) -> None:
    table = markdown(Rows("samples", ("key", text), ((text, "beside"), ("below", text))))
    found = list(tokens(table))
    assert {token.type for token in found} <= HARMLESS | TABLE
    cells = [token.content for token in found if token.type == "inline"]
    assert len(cells) == 6, table
    seen = ["".join(child.content for child in token.children or ()) for token in found if token.type == "inline"]
    assert [plain(one).strip() for one in seen] == [
        one.strip() for one in map(plain, ("key", shown(text), shown(text), "beside", "below", shown(text)))
    ]
    assert not AUTOLINKS.search(" ".join(seen))
    older = python_markdown.markdown(table, extensions=["tables"])
    assert set(re.findall(r"</?([a-z]+)", older)) <= {"table", "thead", "tbody", "tr", "th", "td", "p"}
    assert older.count("<td>") == 4
    assert not AUTOLINKS.search(html.unescape(older))


@given(TEXTS)
def test_any_text_at_the_beginning_of_a_line_is_a_paragraph(text: str) -> None:
    found = list(tokens(paragraph(text)))
    assert {token.type for token in found} <= HARMLESS
    seen = "".join(token.content for token in found if token.type in ("text", "text_special"))
    assert plain(seen).strip() == plain(shown(text)).strip()
    assert not AUTOLINKS.search(seen)


@given(TEXTS)
def test_no_service_of_messages_finds_a_link_or_a_call_in_them(text: str) -> None:
    said = harmless(text)
    types = {token.type for token in tokens(said)}
    assert not types & {"link_open", "image", "html_inline", "html_block"}
    assert not AUTOLINKS.search(said)
    assert not re.search(r"<[!@#]|<\w", said)
    assert plain(said) == plain(visible(text))


def test_names_of_columns_stay_readable() -> None:
    assert cell("rows_only_in_lake, 2026-01-01T03, 12.5 (a, b)") == "rows_only_in_lake, 2026-01-01T03, 12.5 (a, b)"
    assert cell(None) == ""
