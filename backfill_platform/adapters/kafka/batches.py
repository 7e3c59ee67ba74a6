"""How many messages are taken at a time, and what of them is no time or no text: whoever may send to a topic chooses both."""

from collections.abc import Sequence
from typing import Any

BATCH_BYTES = 32 << 20
_FIRST = 100
_LAST_MS = 253_402_300_799_999  # the end of the year 9999


def next_count(polled: Sequence[Any], most: int) -> int:
    """How many messages to ask for after these, so that about BATCH_BYTES of them are held in memory; at most `most`."""
    sizes = [len(message) for message in polled if message.error() is None]
    if not sizes:
        return min(_FIRST, most)
    return max(1, min(most, BATCH_BYTES * len(sizes) // max(sum(sizes), 1)))


def milliseconds_of(message: Any) -> int | None:
    """The timestamp of a message, in milliseconds since 1970; None where it has none, or none that is a time."""
    stamp: int = message.timestamp()[1]
    return stamp if 0 <= stamp <= _LAST_MS else None
