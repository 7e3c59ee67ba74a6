"""Diff and publish of a repair, on the embedded warehouse: `python -m benchmarks.publish [--quick]`.

Hours of a million rows, of which one percent is wrong, are staged from Parquet and repaired. Reported are the seconds that the
warehouse worked on it (the statements' own times), the wall clock, and the peak memory of the server; medians of several runs,
each verified by fingerprints. A repair of hours that are right already is the no-op; the size of what was written to the target
is counted in rows.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.prepare import Status, prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.schema import create_target
from backfill_platform.adapters.clickhouse.sql import names, target_name
from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform.domain.tables import Column, ColumnType, Layer, Table

RESULTS = Path(__file__).parent / "results-publish.md"
HEAD = """# Diff and publish

`python -m benchmarks.publish` on {cores} cores ({machine}), chdb-core {version}, medians of {runs} runs, all verified by
fingerprints. The warehouse is the embedded one, rows have ten columns; the peak memory is the server's, of all its runs.
The window is the time from the last look for other writers to the end of the statement that publishes; without that look it
would last since the hours were read.

| hours x rows | stored rows | diff + publish, s of warehouse (spread) | wall s | load s | rows/s | rows written | peak GB | \
window, ms | since reading, ms |
|---|---|---|---|---|---|---|---|---|---|
"""
START = datetime(2026, 1, 1, tzinfo=UTC)
PAYMENTS = Table(
    Layer.TRANSFORMED,
    "bench",
    (
        Column("hour", ColumnType.TIMESTAMP),
        Column("user_id", ColumnType.INT64),
        Column("started_at", ColumnType.TIMESTAMP),
        Column("ended_at", ColumnType.TIMESTAMP),
        Column("requests", ColumnType.INT64),
        Column("errors", ColumnType.INT32),
        Column("bytes", ColumnType.INT64, nullable=True),
        Column("score", ColumnType.FLOAT64, nullable=True),
        Column("entry_url", ColumnType.STRING),
        Column("is_open", ColumnType.BOOLEAN),
    ),
    key=("user_id", "started_at"),
)


@dataclass
class Timed(Warehouse):
    """A connection that adds up what its statements took, by the first word of what they were for."""

    spent: dict[str, float] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.spent, self.began = {}, {}

    def command(self, sql: str, **options: Any) -> None:
        started = time.perf_counter()
        super().command(sql, **options)
        self._add(options["doing"], started)

    def rows(self, sql: str, **options: Any) -> Any:
        started = time.perf_counter()
        found = super().rows(sql, **options)
        self._add(options["doing"], started)
        return found

    def _add(self, doing: str, started: float) -> None:
        word = doing.split(" transformed/")[0][:44]
        self.spent[word] = self.spent.get(word, 0) + time.perf_counter() - started
        if word.startswith("publishing"):
            # What a live writer writes after the last look is noticed by the verification only.
            ended = time.perf_counter()
            self.window = ended - self.began["looking for new parts of"]
            self.since_reading = ended - self.began["taking the fingerprints of the net state of"]
        self.began[word] = started

    window = since_reading = 0.0


def generate(warehouse: Warehouse, folder: Path, hours: int, rows: int) -> dict[datetime, str]:
    """One Parquet file of desired rows for each hour, written by ClickHouse from a seeded expression."""
    found = {}
    for number in range(hours):
        hour = START + timedelta(hours=number)
        path = folder / f"hour-{number}.parquet"
        warehouse.command(
            f"INSERT INTO FUNCTION file('{path}', Parquet) SELECT {columns(hour, rows, 0)} FROM numbers({rows})",
            settings={"output_format_parquet_compression_method": "zstd", "engine_file_truncate_on_insert": 1},
            doing="making input",
        )
        found[hour] = str(path)
    return found


def columns(hour: datetime, rows: int, wrong_percent: int) -> str:
    """Expressions of the row `number` of an hour; the share of wrong rows has other bytes."""
    start = f"toDateTime64({int(hour.timestamp())}, 6, 'UTC')"
    seed = int(hour.timestamp())
    bytes_ = f"cityHash64(number, {seed}, 3) % 1000000"
    if wrong_percent:
        bytes_ = f"({bytes_}) + if(cityHash64(number, 99) % 100 < {wrong_percent}, 1, 0)"
    return (
        f"{start} AS hour, toInt64(intDiv(cityHash64(number, {seed}), 2)) AS user_id, "
        f"{start} + toIntervalMicrosecond(intDiv(number * 3600000000, {rows})) AS started_at, "
        "started_at + toIntervalSecond(cityHash64(number, 1) % 3000) AS ended_at, "
        "toInt64(cityHash64(number, 2) % 100) AS requests, toInt32(cityHash64(number, 4) % 5) AS errors, "
        f"if(number % 20 = 0, NULL, toInt64({bytes_})) AS bytes, if(number % 7 = 0, NULL, number / 3) AS score, "
        "concat('/english/', toString(cityHash64(number, 5) % 5000)) AS entry_url, number % 11 = 0 AS is_open"
    )


@dataclass(frozen=True)
class Run:
    wall: float
    warehouse: float
    load: float
    written: int
    spent: dict[str, float]
    window: float
    since_reading: float


def repair(url: str, table: Table, files: dict[datetime, str], rows: int, name: str) -> Run:
    with closing(Timed(url)) as warehouse:
        started = time.perf_counter()
        with Staging(warehouse, table, name, list(files)) as staging:
            staging.load_files(list(files.values()), dict.fromkeys(files, rows))
            loaded, before = time.perf_counter(), sum(warehouse.spent.values())
            results = publish(prepare(staging, list(files)))
            worked = sum(warehouse.spent.values()) - before
            wall = time.perf_counter() - loaded
        assert all(result.status in (Status.PUBLISHED, Status.UNCHANGED) for result in results), results
        assert all(result.after == result.desired for result in results)
        written = sum(result.cancels + result.states for result in results)
        return Run(
            wall,
            worked,
            loaded - started,
            written,
            dict(warehouse.spent),
            warehouse.window,
            warehouse.since_reading,
        )


def fill(warehouse: Warehouse, table: Table, hours: list[datetime], rows: int, wrong_percent: int) -> None:
    create_target(warehouse, table)
    warehouse.command(f"TRUNCATE TABLE {target_name(table)} SYNC", doing="emptying")
    for hour in hours:
        warehouse.command(
            f"INSERT INTO {target_name(table)} ({names(table.column_names)}, sign) "
            f"SELECT {columns(hour, rows, wrong_percent)}, 1 FROM numbers({rows})",
            settings={"max_insert_threads": 1, "async_insert": 0},
            doing="filling",
        )
    warehouse.command(f"OPTIMIZE TABLE {target_name(table)} FINAL", doing="merging")


def peak_memory(pid: int) -> float:
    """Gigabytes, of the whole life of the process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of a tenth of the rows")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    rows, runs = (100_000, 1) if options.quick else (1_000_000, options.runs)
    lines = []
    for hours in (1, 10):
        with tempfile.TemporaryDirectory() as folder, embedded.start(Path(folder) / "warehouse") as server:
            plain = Warehouse(server.url)
            table = replace(PAYMENTS, name=f"bench_{hours}")
            files = generate(plain, Path(folder), hours, rows)
            found: dict[str, list[Run]] = {"1% wrong": [], "nothing wrong": []}
            for number in range(runs):
                fill(plain, table, list(files), rows, wrong_percent=1)
                found["1% wrong"].append(repair(server.url, table, files, rows, f"wrong{number}"))
                found["nothing wrong"].append(repair(server.url, table, files, rows, f"right{number}"))
            memory = peak_memory(server.pid)
            paths = list(files.values())
            assert fingerprints.net(plain, table, list(files)) == fingerprints.files(plain, table, list(files), paths)
            plain.close()
        lines += [report(hours, rows, what, done, memory) for what, done in found.items()]
        for what, done in found.items():
            slow = sorted(done[-1].spent.items(), key=lambda item: -item[1])[:8]
            say(f"{hours} hours, {what}: {', '.join(f'{name} {seconds:.2f} s' for name, seconds in slow)}\n")
    text = HEAD.format(cores=len(os.sched_getaffinity(0)), machine=platform.machine(), runs=runs, version=version("chdb-core"))
    say(text + "".join(lines))
    if not options.quick:
        RESULTS.write_text(text + "".join(lines))


def report(hours: int, rows: int, what: str, done: list[Run], memory: float) -> str:
    work, wall = [run.warehouse for run in done], statistics.median(run.wall for run in done)
    cells = (
        f"{hours} x {rows:,}",
        what,
        f"{statistics.median(work):.2f} ({min(work):.2f} to {max(work):.2f})",
        f"{wall:.2f}",
        f"{statistics.median(run.load for run in done):.2f}",
        f"{hours * rows / wall:,.0f}",
        f"{done[0].written:,}",
        f"{memory:.2f}",
        *(f"{1000 * statistics.median(times):.0f}" for times in ([r.window for r in done], [r.since_reading for r in done])),
    )
    return f"| {' | '.join(cells)} |\n"


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
