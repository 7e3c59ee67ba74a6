"""Text of events as people may see it: what a terminal or a browser would obey is written out as an escape of Python."""

import re

# Seen by nobody; between the parts of an address it keeps services of messages from making a link.
JOINER = "\N{WORD JOINER}"

# Control characters except tab and newline, line and paragraph separators, what turns the direction of text or is seen by
# nobody, and halves of characters. The joiners of Persian words and emoji, and the word joiner, which does nothing, may stay.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2061-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """The text with whatever would be obeyed instead of shown as an escape of Python. Tabs and newlines stay."""
    return _OBEYED.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def visible_in_json(document: str) -> str:
    """The same for a JSON document: within its texts such characters become escapes of JSON, so that it means the same."""
    return _OBEYED.sub(lambda found: _json_escape(found.group()), document)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
