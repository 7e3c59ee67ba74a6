"""What a terminal or a browser would obey becomes text that people see."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_platform.domain.visible_text import visible, visible_in_json

OBEYED = {
    "a colour": ("\x1b[31m", r"\x1b[31m"),
    "the clipboard": ("\x1b]52;c;ZXZpbA==\x07", r"\x1b]52;c;ZXZpbA==\x07"),
    "a link": ("\x1b]8;;http://evil\x1b\\x", r"\x1b]8;;http://evil\x1b\x"),
    "a code of C1": ("\x9b31m", r"\x9b31m"),
    "the other direction": ("a\u202egpj.exe", r"a\u202egpj.exe"),
    "a tag nobody sees": ("a\U000e0041", r"a\U000e0041"),
    "the start of the line": ("good\rbad", r"good\rbad"),
}


@pytest.mark.parametrize(("text", "shown"), OBEYED.values(), ids=OBEYED)
def test_what_would_be_obeyed_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(st.characters(categories=("Cc", "Cf", "Cs", "Zl", "Zp", "L", "P"))))
def test_nothing_that_is_obeyed_is_left(text: str) -> None:
    left = {one for one in visible(text) if unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp")}
    assert left <= {"\t", "\n"}
    assert not {"L", "R"} & {unicodedata.bidirectional(one)[2:3] for one in visible(text) if one in "\u202a\u202b\u202d\u202e"}


@given(st.text(st.characters(categories=None)))
def test_json_means_the_same(text: str) -> None:
    shown = visible_in_json(json.dumps([text], ensure_ascii=False))
    assert json.loads(shown) == json.loads(json.dumps([text]))
    assert visible(shown) == shown


def test_languages_and_emoji_are_text() -> None:
    text = "naïve, 日本語, की\u200d, 👩\u200d🚀\ta\nb"
    assert visible(text) == text
