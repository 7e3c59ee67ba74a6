"""Small documents that people and programs write: JSON in which nothing is said twice, and no number is none."""

import json
from collections import Counter
from typing import Any

from backfill_platform.errors import UsageError

_MOST_CHARACTERS = 100_000  # of change limits or a list of tenants
_DEEPEST = 20
_SHOWN = 60  # of a name in an error


def read_json(text: str, what: str) -> Any:
    """The value of a JSON text. `what` names the text in errors.

    Raises UsageError for what is no JSON, names a field twice, has NaN or infinities, or is larger or deeper than people write.
    """
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(f"{what} has {len(text):,} characters; {_MOST_CHARACTERS:,} are the most")
    try:
        value = json.loads(text, object_pairs_hook=fields_once, parse_constant=_no_number)
    except RecursionError:
        raise UsageError(f"{what} is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{what} is no JSON: {error}") from None
    if not _within(value, _DEEPEST):
        raise UsageError(f"{what} is nested too deeply")
    return value


def fields_once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The mapping of pairs of name and value. Raises ValueError when a name is there twice: which one would count?"""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice = sorted(name for name, count in Counter(str(name) for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{', '.join(name[:_SHOWN] for name in twice[:3])} is given twice")
    return mapping


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _within(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_within(one, depth - 1) for one in inner)
