"""The playbacks pipeline in plain Python: no Spark, no lake, no line shared with the code that it checks.

It recomputes the published tables from the events, slowly and by the words of the definition. Only the standard library is
used.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

_WITHIN = timedelta(hours=4)


class Event(NamedTuple):
    """One readable line. Events compare by time, and by name where they share it."""

    at: datetime
    id: str
    kind: str
    user: int
    title: int


def read_events(folder: Path) -> tuple[list[Event], list[str]]:
    """The readable lines of all files in the folder, and the others as they are."""
    good: list[Event] = []
    bad: list[str] = []
    for path in sorted(folder.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            try:
                values = json.loads(line)
                at = datetime.fromisoformat(values["at"])
                good.append(Event(at, values["id"], values["kind"], values["user"], values["title"]))
            except (ValueError, KeyError):
                bad.append(line)
    return good, bad


def made_by(events: Iterable[Event]) -> dict[Event, Event | None]:
    """The impression that each play goes back to, or None."""
    impressions: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    plays = []
    for event in set(events):
        if event.kind == "impression":
            impressions[event.user, event.title].append(event)
        else:
            plays.append(event)
    impression_of: dict[Event, Event | None] = {}
    for play in plays:
        before = [shown for shown in impressions[play.user, play.title] if shown.at <= play.at]
        latest = max(before, default=None)
        impression_of[play] = latest if latest and play.at < latest.at + _WITHIN else None
    return impression_of


def attribution(
    events: Iterable[Event],
) -> Iterator[tuple[datetime, int, int, datetime, str, int, str | None, datetime | None]]:
    """Rows of `transformed/attribution`, in the order of its columns."""
    distinct = set(events)
    plays: defaultdict[Event, list[Event]] = defaultdict(list)
    for play, impression in made_by(distinct).items():
        if impression:
            plays[impression].append(play)
    for event in distinct:
        if event.kind == "impression":
            own = plays[event]
            first = min(own) if own else None
            yield (
                _hour(event.at),
                event.user,
                event.title,
                event.at,
                event.id,
                len(own),
                first.id if first else None,
                first.at if first else None,
            )


def playbacks_hourly(events: Iterable[Event]) -> Iterator[tuple[object, ...]]:
    """Rows of `aggregated/playbacks_hourly`, in the order of its columns."""
    by_hour: defaultdict[datetime, list[int]] = defaultdict(list)
    for hour, _, _, _, _, plays, _, _ in attribution(events):
        by_hour[hour].append(plays)
    for hour, own in by_hour.items():
        played = sum(plays > 0 for plays in own)
        yield (hour, len(own), played, sum(own), played / len(own))


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
