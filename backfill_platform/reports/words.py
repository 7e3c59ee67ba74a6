"""Numbers, ranges and long lists as people read them. Lists are cut, and say how much is left out."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from backfill_platform.domain.hours import HourRange, merge_hours
from backfill_platform.errors import BackfillError
from backfill_platform.repair.outcomes import HourOutcome
from backfill_platform.reports.markdown import harmless

MOST_RANGES = 6
MOST_CHARACTERS = 400  # of an error or a reason


def plural(count: int, noun: str) -> str:
    """`1 hour`, `2,000 rows`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def hours_in_words(hours: Iterable[datetime]) -> str:
    """The hours as ranges with their ends as clocks show them, and how many they are."""
    ranges = merge_hours(hours)
    shown = [_range(hours) for hours in ranges[:MOST_RANGES]]
    texts = [*shown, *more(len(ranges) - MOST_RANGES, "ranges")]
    return f"{', '.join(texts)} UTC, {plural(sum(map(len, ranges)), 'hour')}"


def _range(hours: HourRange) -> str:
    same_day = hours.start.date() == hours.end.date()
    return f"{hours.start:%Y-%m-%d %H:%M} to {hours.end:{'%H:%M' if same_day else '%Y-%m-%d %H:%M'}}"


def some(texts: Sequence[str], what: str) -> str:
    """The first few texts."""
    return ", ".join([*texts[:MOST_RANGES], *more(len(texts) - MOST_RANGES, what)])


def more(left: int, what: str) -> list[str]:
    """What to add to a list that was cut, empty where nothing was left out."""
    return [f"and {left:,} more {what}"] if left > 0 else []


def short(text: str) -> str:
    """A long text on one line, cut; what services of messages would make links or markup of is parted by invisible joiners."""
    line = " ".join(text.split())
    return harmless(line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]} ...")


def error_in_words(error: BaseException) -> str:
    """What ended a run: the message of our own errors, the first line of others."""
    if not isinstance(error, Exception):
        return "the run was interrupted"
    text = str(error).strip()
    return text if isinstance(error, BackfillError) and text else f"{type(error).__name__}: {text.partition(chr(10))[0]}"


def hours_of(outcomes: Sequence[HourOutcome]) -> str:
    """How many hours; an hour of two tables is one hour."""
    tables = len({outcome.asset for outcome in outcomes})
    count = plural(len({outcome.hour for outcome in outcomes}), "hour")
    return count + (f" ({len(outcomes)} in {tables} tables)" if tables > 1 else "")
