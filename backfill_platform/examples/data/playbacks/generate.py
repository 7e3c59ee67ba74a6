"""Writes the events of a generated evening of streaming, and the true attribution of its plays.

    python generate.py FOLDER

The truth is known because an impression (or none) generates each play: for each user and title there is a chain of impressions,
and each generates plays that come before the next impression and within four hours. The same seed gives the same files.
"""

import csv
import gzip
import io
import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

START = datetime(2017, 6, 1, 18, tzinfo=UTC)
HOURS = 12
SEED = 1998
USERS, TITLES = 200, 9

MINUTE, HOUR = 60_000, 3_600_000  # all times are milliseconds after START
END = HOURS * HOUR
WITHIN = 4 * HOUR


class Event(NamedTuple):
    """An impression, or a play with the impression that made it ("" for none)."""

    at: int
    kind: str
    id: str
    user: int
    title: int
    made_by: str = ""

    @property
    def line(self) -> str:
        """The event as a line of a file."""
        moment = START + timedelta(milliseconds=self.at)
        text = moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{self.at % 1000:03}Z"
        named = {"at": text, "kind": self.kind, "id": self.id, "user": self.user, "title": self.title}
        return json.dumps(named, separators=(",", ":"))


def happen(chance: random.Random) -> list[Event]:
    """All events before the end. Of impressions of one instant the one with the greatest id is the latest."""
    events: list[Event] = []
    for user in range(1, USERS + 1):
        for title in chance.sample(range(1, TITLES + 1), 2):
            events += _chain(chance, user, title, len(events))
    return events


def _chain(chance: random.Random, user: int, title: int, number: int) -> Iterator[Event]:
    at = chance.choice([0, chance.randrange(END)])
    while at < END:
        number += 1
        impression = f"i{number:05}"
        yield Event(at, "impression", impression, user, title)
        pause = chance.choice([0, 1, chance.randrange(HOUR), HOUR, WITHIN - 1, WITHIN, chance.randrange(10 * HOUR), END])
        delays = [0, 1, chance.randrange(HOUR), chance.randrange(WITHIN), WITHIN - 1, WITHIN, WITHIN + chance.randrange(END)]
        # At the instant of the next impression a play is the next one's.
        possible = [delay for delay in delays if delay < pause and at + delay < END]
        for delay in chance.sample(possible, min(len(possible), chance.choice([0, 0, 1, 1, 2]))):
            number += 1
            yield Event(at + delay, "play", f"p{number:05}", user, title, impression if delay < WITHIN else "")
        at += pause


def arrive(events: list[Event], chance: random.Random) -> dict[int, list[str]]:
    """The lines of each arrival hour, in order of arrival: some late, some twice, three cut off on their way."""
    lines: list[tuple[int, str]] = []
    for event in events:
        for _ in range(chance.choices([1, 2, 3], [95, 4, 1])[0]):
            late = chance.randrange(chance.choices([1000, HOUR, 5 * HOUR], [85, 12, 3])[0])
            lines.append((min(event.at + late, END - 1), event.line))
    lines += [(chance.randrange(END), chance.choice(events).line[:40]) for _ in range(3)]
    lines.sort()
    return {hour: [line for at, line in lines if at // HOUR == hour] for hour in range(HOURS)}


def write(folder: Path) -> None:
    """Write `events/` (a file per arrival hour) and `truth.csv.gz` into the folder."""
    chance = random.Random(SEED)  # not secret
    events = happen(chance)
    (folder / "events").mkdir(parents=True, exist_ok=True)
    for hour, lines in arrive(events, chance).items():
        name = f"{START + timedelta(hours=hour):%Y-%m-%dT%H}.jsonl.gz"
        _write_gz(folder / "events" / name, "".join(line + "\n" for line in lines))
    truth = io.StringIO()
    table = csv.writer(truth, lineterminator="\n")
    table.writerow(["play_id", "impression_id"])
    table.writerows((event.id, event.made_by) for event in events if event.kind == "play")
    _write_gz(folder / "truth.csv.gz", truth.getvalue())


def _write_gz(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
