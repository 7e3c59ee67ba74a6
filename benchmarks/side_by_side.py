"""Ways to repair the same hours, side by side: `make bench`, or `python -m benchmarks.side_by_side [--quick]`.

Two days are repaired, of whose published sessions one percent is wrong: one of a million generated events an hour, and the one
of real requests that is shipped. By the platform, by the usual PySpark script, hour by hour, by PyFlink, by DuckDB and by
ClickHouse itself, beside a bare Spark job and one SQL statement that publish nothing. See `benchmarks/contest.py` for what is
the same for all and how it is proven.
"""

import argparse
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import SparkSession

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.spark.session import session_options, use_this_interpreter
from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.examples import clickstream
from benchmarks import contenders, flink, small_figures, sql_engines
from benchmarks.contenders import Entry
from benchmarks.contest import Ground, Took, load
from benchmarks.end_to_end import AROUND, START, jvm_of, say, world
from benchmarks.side_by_side_report import Figures, report

RESULTS = Path(__file__).parent / "results.md"
DRIVER_MEMORY = "4g"


@dataclass(frozen=True)
class Size:
    """How much is done: turns of the quick contenders and of the slow ones, events, and runs of each small figure."""

    hours: int
    events_per_hour: int
    turns: int
    slow_turns: int
    runs: int
    diffs: tuple[tuple[int, int, int], ...]  # hours, rows an hour, runs


@dataclass
class Flink:
    """The worker, or why there is none."""

    worker: flink.Worker | None = None
    trouble: str = ""
    folder: Path = field(default_factory=Path)

    def entries(self, turns: int) -> dict[str, Entry]:
        return {flink.FLINK: Entry(flink.contender(self.worker, self.folder), turns)} if self.worker else {}

    def processes(self) -> dict[str, int | str]:
        return {"Flink": self.worker.jvm} if self.worker else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four hours of 100,000 events, one turn; nothing is written")
    parser.add_argument("--hours", type=int, help="of generated events, 24 by default")
    parser.add_argument("--events-per-hour", type=int, help="1,000,000 by default")
    parser.add_argument("--turns", type=int, help="of the contenders that are not slow, 3 by default")
    parser.add_argument("--no-flink", action="store_true", help="leave PyFlink out")
    chosen = parser.parse_args()
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)
    use_this_interpreter()
    sql_engines.install()
    size = size_of(chosen)
    began, loads = time.perf_counter(), [load()]
    small = small_figures.imports(size.runs) + small_figures.spark_starts(min(size.runs, 3))
    small += small_figures.plan_of_a_year(size.runs)
    diffs = "".join(small_figures.warehouse_diff(*each) for each in size.diffs)
    say(small + diffs)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(temporary()))
        other = Flink(folder=folder / "flink")
        if chosen.no_flink:
            other.trouble = "left out by `--no-flink`"
        else:
            try:
                other.worker = stack.enter_context(flink.worker())
            except flink.NoFlink as error:
                other.trouble = str(error)
                say(f"no PyFlink: {error}\n")
        spark = session()
        stack.callback(spark.stop)
        with worldcup(spark, folder / "worldcup", other) as ground:
            # The small day first: it warms everybody for the large one.
            real = contest(ground, entries(other, size.turns, size.slow_turns, by_hour=False), other)
        with generated(spark, size, other) as ground:
            made = contest(ground, entries(other, size.turns, size.slow_turns), other)
    loads.append(load())
    text = report(made, real, small, diffs, other.trouble, loads, (time.perf_counter() - began) / 60, DRIVER_MEMORY)
    say(text)
    if not chosen.quick and size == size_of(parser.parse_args([])):
        RESULTS.write_text(text)


def size_of(chosen: argparse.Namespace) -> Size:
    diffs = ((1, 1_000_000, 3), (10, 1_000_000, 1), (50, 1_000_000, 1))
    full, quick = Size(24, 1_000_000, 3, 1, 5, diffs), Size(4, 100_000, 1, 1, 1, ((1, 100_000, 1),))
    size = quick if chosen.quick else full
    return replace(
        size,
        hours=chosen.hours or size.hours,
        events_per_hour=chosen.events_per_hour or size.events_per_hour,
        turns=chosen.turns or size.turns,
        slow_turns=min(chosen.turns or size.slow_turns, size.slow_turns),
    )


def entries(other: Flink, turns: int, slow_turns: int, by_hour: bool = True) -> dict[str, Entry]:
    found = {
        contenders.BARE: Entry(contenders.bare, turns),
        contenders.SQL: Entry(contenders.one_sql, turns),
        contenders.OURS: Entry(contenders.ours, turns),
        "script": Entry(contenders.script, turns),
        sql_engines.DUCKDB: Entry(sql_engines.duckdb_on(other.folder / "duckdb"), turns),
        sql_engines.CLICKHOUSE: Entry(sql_engines.clickhouse, turns),
    }
    if by_hour:
        found[contenders.BY_HOUR] = Entry(contenders.by_hour, slow_turns)
    return found | other.entries(slow_turns)


def contest(ground: Ground, taking_part: dict[str, Entry], other: Flink) -> Figures:
    """Turn after turn; who begins after the bare job changes with every turn."""
    ground.prepare()
    figures = Figures(ground.span, ground.events(), ground.megabytes(), ground.sessions, ground.wrong)
    bare, *rest = taking_part
    for number in range(max(entry.turns for entry in taking_part.values())):
        shift = number % len(rest)
        turn: dict[str, Took] = {}
        for name in (bare, *rest[shift:], *rest[:shift]):
            if number >= taking_part[name].turns:
                continue
            try:
                for took in taking_part[name].run(ground):
                    turn[took.contender] = took
                    say(f"turn {number + 1}: {took.contender}: {took.seconds:.1f} s, load {took.load:.1f}\n")
            except flink.NoFlink as error:
                other.trouble = str(error)
                say(f"turn {number + 1}: PyFlink: {error}\n")
        figures.turns.append(turn)
    return figures


def session() -> SparkSession:
    builder = SparkSession.builder
    for key, value in session_options(master="local[2]", remote=None, driver_memory=DRIVER_MEMORY).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def ground_on(spark: SparkSession, server: embedded.EmbeddedWarehouse, other: Flink) -> dict[str, int | str]:
    return {"JVM": jvm_of(spark), "Python": "self", "ClickHouse": server.pid, **other.processes()}


@contextmanager
def generated(spark: SparkSession, size: Size, other: Flink) -> Iterator[Ground]:
    with (
        world(spark, size.hours, size.events_per_hour) as (lake, server, pipeline),
        closing(Warehouse(server.url)) as warehouse,
    ):
        span = HourRange(START + AROUND * HOUR, START + (AROUND + size.hours) * HOUR)
        yield Ground(spark, lake, warehouse, pipeline, span, ground_on(spark, server, other))


@contextmanager
def worldcup(spark: SparkSession, folder: Path, other: Flink) -> Iterator[Ground]:
    """The day of real requests, landed by the platform from the file that is shipped."""
    folder.mkdir(parents=True)
    lake = Lake(f"sqlite:///{folder}/catalog.db", folder.as_uri())
    with embedded.start(folder / "warehouse") as server, closing(Warehouse(server.url)) as warehouse:
        watched = ground_on(spark, server, other)
        ground = Ground(spark, lake, warehouse, clickstream.pipeline, clickstream.HOURS, watched)
        ground.engine(clickstream.HOURS, [clickstream.pipeline.raw.table.path], "landing")
        yield ground


@contextmanager
def temporary() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="bench-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
