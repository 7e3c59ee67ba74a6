"""A named cast of web requests, and random ones, as the tests of several packages use them."""

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.uris import local_uri

T0 = datetime(1998, 4, 30, 22, tzinfo=UTC)


class Click(NamedTuple):
    """A request at so many seconds after T0."""

    client: int
    seconds: int
    url: str = "/"
    status: str = "200"
    bytes: str = "10"

    @property
    def at(self) -> datetime:
        return T0 + timedelta(seconds=self.seconds)

    @property
    def line(self) -> str:
        return f"{self.client},{self.at:%d/%b/%Y},{self.at:%H:%M:%S},{self.url},{self.status},{self.bytes}"


def random_clicks(seed: int, *, hours: int, clients: int, most: int = 12) -> list[Click]:
    """Clicks of clients that come and go: exact duplicates, ties, gaps of exactly 30 minutes, and one that never idles."""
    chance = random.Random(seed)
    end = hours * 3600
    clicks: list[Click] = []
    for client in range(1, clients):
        second = chance.randrange(end)
        for _ in range(chance.randint(1, most)):
            clicks.append(Click(client, second, f"/{chance.randrange(3)}", chance.choice(["200", "404"]), "7"))
            if chance.random() < 0.1:
                clicks.append(clicks[-1])
            second += chance.choice([0, 1, 60, 900, 1799, 1800, 1801, 4000])
            if second >= end:
                break
    proxy_that_never_idles = [Click(0, second) for second in range(0, end, 1200)]
    clicks += proxy_that_never_idles
    chance.shuffle(clicks)
    return clicks


def write_lines(path: Path, lines: Iterable[str]) -> str:
    """Write the lines as Latin-1 and return the URI of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + "\n" for line in lines).encode("latin-1"))
    return local_uri(path)


def hour(number: int) -> datetime:
    """The hour so many after T0."""
    return T0 + number * HOUR
