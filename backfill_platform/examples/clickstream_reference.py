"""The clickstream pipeline in plain Python: no Spark, no lake, no line shared with the code that it checks.

It recomputes the published tables from the file of requests; the demo and the tests compare fingerprints with it. Only the
standard library and the pure session rule are used.
"""

import gzip
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from backfill_platform.examples.session_rule import Session, sessionize

_MONTHS = {"Apr": 4, "May": 5}
_GAP = timedelta(minutes=30)
_CAP = timedelta(days=1)


class Request(NamedTuple):
    """A request of the log that could be parsed."""

    client: int
    at: datetime
    url: str
    status: int
    bytes: int | None


def read_requests(path: Path) -> tuple[list[Request], list[str]]:
    """The requests of the file, and the lines that cannot be parsed."""
    good: list[Request] = []
    bad: list[str] = []
    with gzip.open(path, "rt", encoding="latin-1", newline="\n") as file:
        for line in file:
            line = line.rstrip("\n")
            try:
                good.append(_request(line))
            except (ValueError, KeyError):
                bad.append(line)
    return good, bad


def _request(line: str) -> Request:
    client, day, time, rest = line.split(",", 3)
    url, status, size = rest.rsplit(",", 2)
    date, month, year = day.split("/")
    hour, minute, second = time.split(":")
    moment = datetime(int(year), _MONTHS[month], int(date), int(hour), int(minute), int(second), tzinfo=UTC)
    return Request(int(client), moment, url, int(status), None if size == "-" else int(size))


def sessions(requests: Iterable[Request], available_until: datetime) -> Iterator[tuple[object, ...]]:
    """Rows of `transformed/sessions`, in the order of its columns."""
    for session in _sessionize(requests, available_until):
        first = min(session.events, key=lambda request: (request.at, request.url))
        yield (
            _hour(session.started_at),
            session.key,
            session.started_at,
            session.ended_at,
            int((session.ended_at - session.started_at).total_seconds()),
            len(session.events),
            sum(request.status >= 400 for request in session.events),
            sum(request.bytes or 0 for request in session.events),
            first.url,
            session.is_open,
        )


def site_hourly(requests: Iterable[Request], available_until: datetime) -> Iterator[tuple[object, ...]]:
    """Rows of `aggregated/site_hourly`, in the order of its columns."""
    by_hour: defaultdict[datetime, list[Session[Request]]] = defaultdict(list)
    for session in _sessionize(requests, available_until):
        by_hour[_hour(session.started_at)].append(session)
    for hour, own in sorted(by_hour.items()):
        events = [event for session in own for event in session.events]
        errors = sum(event.status >= 400 for event in events)
        durations = sorted(int((session.ended_at - session.started_at).total_seconds()) for session in own)
        yield (
            hour,
            len(own),
            sum(session.is_open for session in own),
            len(events),
            len({session.key for session in own}),
            sum(event.bytes or 0 for event in events),
            errors,
            errors / len(events),
            *(durations[math.ceil(share * len(durations)) - 1] for share in (0.5, 0.9, 0.99)),
        )


def _sessionize(requests: Iterable[Request], available_until: datetime) -> list[Session[Request]]:
    return sessionize(
        set(requests), key=lambda r: r.client, time=lambda r: r.at, gap=_GAP, cap=_CAP, available_until=available_until
    )


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
