"""A year of hours with a hundred repairs, maintained each night: what the lake's metadata costs beside its data.

Hours are committed as a repair does it: onto a branch, then to `main`. Maintenance keeps what was replaced within the last 48
commits, as two days of hourly commits would be kept. With `--hourly N` only the last N hours are committed one by one, and
those before a day at a time: a year of hourly commits takes more than an hour.
"""

import argparse
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.adapters.iceberg.maintenance import Needed, Unneeded, find_unneeded, remove_unneeded
from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.uris import local_path, local_uri
from backfill_platform.examples.clickstream import pipeline

TABLE = pipeline.raw.table
START = datetime(2025, 1, 1, tzinfo=UTC)
REPAIRS, KEPT_COMMITS = 100, 48
RESULTS = Path(__file__).parent / "results-maintenance.md"


def write(folder: Path, hour: datetime, events: int, chance: random.Random) -> str:
    """The file of an hour with random requests."""
    stamp = pa.timestamp("us", "UTC")
    table = pa.table(
        {
            "ingestion_hour": pa.array([hour] * events, stamp),
            "event_time": pa.array([hour + timedelta(seconds=chance.randrange(3600)) for _ in range(events)], stamp),
            "client_id": pa.array([chance.randrange(20_000) for _ in range(events)], pa.int64()),
            "url": [f"/english/images/{chance.randrange(900)}.gif" for _ in range(events)],
            "status": pa.array([chance.choice((200, 304, 404)) for _ in range(events)], pa.int32()),
            "bytes": pa.array([chance.randrange(50_000) for _ in range(events)], pa.int64()),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hour:%Y%m%d%H}-{chance.randrange(1 << 30):x}.parquet"
    pq.write_table(table, path, compression="zstd")
    return local_uri(path)


def commit(lake: Lake, name: str, hours: list[datetime], events: int, chance: random.Random) -> None:
    """What a repair does with hours of a table without rejects."""
    folder = Path(local_path(lake.data_uri(TABLE, name)) or "")
    files = {hour: [write(folder, hour, events, chance)] for hour in hours}
    for table, written in ((TABLE, files), (quarantine_of(TABLE), {})):
        lake.stage(table, name, hours, written)
    for table in (quarantine_of(TABLE), TABLE):
        lake.promote(table, name, hours)


def year(lake: Lake, hours: int, hourly: int, events: int) -> Iterator[tuple[int, float, float, int]]:
    """The number of hours, seconds of commits and of maintenance, and bytes of metadata kept, for each month."""
    chance, times = random.Random(7), [datetime.now(UTC)]
    repairs = set(chance.sample(range(48, hours), min(REPAIRS, hours // 50)))
    committing = maintaining = 0.0
    for number in range(hours):
        began = time.monotonic()
        if number >= hours - hourly:
            commit(lake, f"r{number}", [START + number * HOUR], events, chance)
        elif number % 24 == 23:
            commit(lake, f"r{number}", [START + (number - more) * HOUR for more in range(24)], events, chance)
        if number in repairs:
            first = chance.randrange(number - 24)
            commit(
                lake, f"r{number}a", [START + (first + more) * HOUR for more in range(chance.randint(1, 24))], events, chance
            )
        if number >= hours - hourly or number % 24 == 23:
            times.append(datetime.now(UTC))
        committing += time.monotonic() - began
        if number % 24 == 23:
            began = time.monotonic()
            for table in (TABLE, quarantine_of(TABLE)):
                remove_unneeded(lake, table, Needed(times[-KEPT_COMMITS:][0]))
            maintaining += time.monotonic() - began
        if number % 720 == 719 or number == hours - 1:
            yield number + 1, committing, maintaining, sum(found.kept_metadata for found in kept(lake))
            committing = maintaining = 0.0


def kept(lake: Lake) -> list[Unneeded]:
    """What the tables keep."""
    never = datetime(1970, 1, 1, tzinfo=UTC)
    return [find_unneeded(lake, table, Needed(never)) for table in (TABLE, quarantine_of(TABLE))]


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=8760)
    parser.add_argument("--events", type=int, default=100, help="of an hour")
    parser.add_argument("--hourly", type=int, help="how many of the last hours are committed one by one; default: all")
    given = parser.parse_args()
    hours = given.hours
    hourly = hours if given.hourly is None else given.hourly
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(f"sqlite:///{folder}/catalog.db", local_uri(Path(folder) / "lake"))
        for table in (TABLE, quarantine_of(TABLE)):
            lake.ensure(table)
        for done, committing, maintaining, metadata in year(lake, hours, hourly, given.events):
            rows.append(f"| {done:,} | {committing:.0f} | {maintaining:.1f} | {metadata / 1e6:.2f} |")
            sys.stdout.write(rows[-1] + "\n")
            sys.stdout.flush()
        found = kept(lake)
        data, metadata = (sum(getattr(one, name) for one in found) for name in ("kept_data", "kept_metadata"))
    text = "\n".join(
        (
            "# The lake's metadata after a year\n",
            f"`python -m benchmarks.maintenance --events {given.events} --hourly {hourly}` on 2 cores ({platform.machine()}): "
            f"{hours:,} hours of {given.events} events, the last {hourly:,} committed one by one, others a day at a time. "
            f"{min(REPAIRS, hours // 50)} repairs of 1 to 24 hours; one table with its quarantine, maintained each day.\n",
            f"Data {data / 1e6:.1f} MB, metadata {metadata / 1e6:.2f} MB: **{metadata / data:.1%}** of the data.\n",
            "| hours | s of commits since the line above | s of maintenance | MB of metadata |\n|---|---|---|---|",
            *rows,
        )
    )
    if hours >= 8760:
        RESULTS.write_text(text + "\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
