"""What was measured side by side, as Markdown."""

import os
import platform
import statistics
import subprocess
import textwrap
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from backfill_platform.domain.hours import HourRange
from benchmarks.contenders import BARE, BY_HOUR, OURS, SCRIPT_ALTER, SCRIPT_LIGHT, SQL
from benchmarks.contest import Took
from benchmarks.flink import FLINK
from benchmarks.flink import VERSION as FLINK_VERSION
from benchmarks.small_figures import spread
from benchmarks.sql_engines import CLICKHOUSE, DUCKDB
from benchmarks.sql_engines import VERSION as DUCKDB_VERSION

ORDER = (OURS, SCRIPT_ALTER, SCRIPT_LIGHT, BY_HOUR, FLINK, DUCKDB, CLICKHOUSE, BARE, SQL)
SPARKS = ("JVM", "Python", "ClickHouse")
WIDTH = 128
FEW = "So little data shows what a repair costs before the first row."
PROCESSES = {
    BARE: ("JVM",),
    SQL: ("ClickHouse",),
    CLICKHOUSE: ("ClickHouse",),
    DUCKDB: ("DuckDB", "Python", "ClickHouse"),
    FLINK: ("Flink", "Python", "ClickHouse"),
}
ASKED_EVENTS, ASKED_RATIO, ASKED_HOUR = 175_000, 1.15, 2


@dataclass
class Figures:
    """A contest: what was repaired, and what every contender took, turn by turn."""

    span: HourRange
    events: int
    megabytes: float  # of the raw files of the range, as they are on disk
    sessions: int
    wrong: int
    turns: list[dict[str, Took]] = field(default_factory=list)

    def of(self, name: str) -> list[Took]:
        return [turn[name] for turn in self.turns if name in turn]

    def median(self, name: str) -> float:
        return statistics.median(took.seconds for took in self.of(name))

    def ratio(self, name: str) -> float:
        """To the bare job of the same turn."""
        return statistics.median(turn[name].seconds / turn[BARE].seconds for turn in self.turns if name in turn)

    @property
    def names(self) -> list[str]:
        return [name for name in ORDER if self.of(name)]

    @property
    def table(self) -> str:
        return HEAD_OF_TABLE + "".join(self._row(name) for name in self.names)

    def _row(self, name: str) -> str:
        took = self.of(name)
        rows = "" if took[0].rows is None else f"{took[0].rows:,}"
        most = {process: max(one.memory[process] for one in took) for process in PROCESSES.get(name, SPARKS)}
        cells = (
            f"**{name}**" if name == OURS else name,
            str(len(took)),
            spread([one.seconds for one in took], 1),
            f"{self.ratio(name):.2f}",
            f"{self.events / self.median(name):,.0f}",
            f"{self.megabytes / self.median(name):.1f}",
            rows,
            ", ".join(f"{process} {gigabytes:.1f}" for process, gigabytes in most.items()),
        )
        return f"| {' | '.join(cells)} |\n"

    @property
    def parts(self) -> str:
        lines = ""
        for name in self.names:
            took = self.of(name)
            if name == BY_HOUR:
                lines += f"- {name}: one hour {spread(list(took[0].parts.values()), 1)} s\n"
            elif took[0].parts:
                medians = {part: statistics.median(one.parts[part] for one in took) for part in took[0].parts}
                lines += f"- {name}: {', '.join(f'{part} {seconds:.1f}' for part, seconds in medians.items())}\n"
        return lines

    @property
    def said(self) -> str:
        shares = f"{self.wrong:,} of the {self.sessions:,} published sessions were wrong"
        return f"{len(self.span)} hours with {self.events:,} raw events in files of {self.megabytes:,.0f} MB; {shares}."


def verdicts(figures: Figures) -> str:
    """What was asked for, and whether it was found."""
    ours, ratio = figures.median(OURS), figures.ratio(OURS)
    found = [
        (f"at least {ASKED_EVENTS:,} events/s", figures.events / ours >= ASKED_EVENTS, f"{figures.events / ours:,.0f}"),
        (f"at most {ASKED_RATIO} x the bare Spark job", ratio <= ASKED_RATIO, f"{ratio:.2f} x"),
    ]
    for other in figures.names:
        if other in (SCRIPT_ALTER, SCRIPT_LIGHT, BY_HOUR, FLINK, DUCKDB, CLICKHOUSE):
            shares = [turn[OURS].seconds / turn[other].seconds for turn in figures.turns if other in turn]
            share = statistics.median(shares)
            found.append((f"faster than {other}", share < 1, f"{share:.2f} of its time, in the same turn"))
    written, script = figures.of(OURS)[0].rows, figures.of(SCRIPT_LIGHT)[0].rows
    of_wrong = f"{written:,} for {figures.wrong:,} wrong rows, a cancel and a state for each; the script writes {script:,}"
    found.append(("rows written in proportion to rows changed", written == 2 * figures.wrong, of_wrong))
    if hours := [seconds for took in figures.of(BY_HOUR) for seconds in took.parts.values()]:
        one = statistics.median(hours)
        found.append(
            (f"one hour within {ASKED_HOUR} s, warm", one <= ASKED_HOUR, f"median {one:.1f} s, most {max(hours):.1f} s")
        )
    return "".join(f"| {what} | {'yes' if met else '**no**'} | {how} |\n" for what, met, how in found)


def report(
    made: Figures, real: Figures, small: str, diffs: str, trouble: str, loads: list[float], minutes: float, driver_memory: str
) -> str:
    loads = loads + [took.load for figures in (made, real) for turn in figures.turns for took in turn.values()]
    return TEXT.format(
        machine=filled(f"`make bench` on {machine()}. {versions()}."),
        load=f"{min(loads):.1f} to {max(loads):.1f}",
        minutes=minutes,
        driver=driver_memory,
        made=made,
        real_said=filled(f"A sample of the WorldCup98 trace, the shipped example. {real.said} {FEW}"),
        verdicts=verdicts(made),
        real=real,
        small=small,
        diffs=diffs,
        flink=f"PyFlink did not take part, or not in all turns:\n\n```\n{trouble}\n```\n" if trouble else FLINK_RAN,
    )


def filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def machine() -> str:
    memory = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) / 1e6
    processor = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ""
    )
    cores = f"{len(os.sched_getaffinity(0))} cores ({platform.machine()}, {processor or 'model unknown'})"
    return f"{cores}, {memory:.0f} GB of memory"


def versions() -> str:
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.split('"')
    named = {"Python": platform.python_version(), "Java": java[1] if len(java) > 1 else "unknown"}
    named |= {name: version(name) for name in ("pyspark", "chdb-core", "clickhouse-connect", "pyiceberg", "pyarrow", "dagster")}
    named |= {"apache-flink": FLINK_VERSION, "duckdb": DUCKDB_VERSION}
    return ", ".join(f"{name} {number}" for name, number in named.items())


HEAD_OF_TABLE = """| way | turns | s (spread) | to the bare job | events/s | MB/s | rows written to the target | peak GB |
|---|---|---|---|---|---|---|---|
"""

FLINK_RAN = """PyFlink has an environment of its own (`.bench/`), a heap of 4 GB and 2 GB beside it. It writes Parquet, which is
then read and inserted as the script inserts. Its JVM runs before its turn, and has done the real day before.
It reads Parquet with jars that it does not bring: its own format from Maven Central, and Hadoop and zstd from PySpark's.
"""

TEXT = """# Side by side

{machine}
Load of the machine, by its one-minute average: {load}; all of it took {minutes:.0f} minutes.
Seconds are medians, with the least and the most in brackets where there was more than one turn.

## What is the same for all

- The raw files of the lake, zstd Parquet. Generated events are seeded, one in a thousand is delivered twice.
- The target: the same ten columns, partitioned by day, sorted by hour and key, in the same embedded ClickHouse. Ours
  publishes to its CollapsingMergeTree; the others delete from and insert into a MergeTree that is otherwise equal, with
  `DELETE` waited for (`mutations_sync=2`, `lightweight_deletes_sync=2`) and rows inserted as Arrow, 500,000 at a time.
- The damage: the target was published once, right. Then one row in a hundred of the range (by a hash of its key) got one byte
  too many. It is put back to that state before each turn, which is not timed. It also holds the hours around the range.
- The rows: duplicates left out, sessions that start in the range, read with an hour before and all that landed after it.
- The proof: after each turn, before anything is reported, the count and the sum of hashes of all ten columns must be those
  first published, for every hour, in the range and around it. What was first published was compared with the number of
  sessions and requests that one SQL statement finds in the raw files.
- Sessions of Spark (`local[2]`, {driver}, options of the platform, which the script gets, too) and of Flink are warm.
- DuckDB is a new process in every turn, with two threads and 4 GB; it writes Parquet, which is read and inserted as the script
  inserts. ClickHouse as a contender is the server of the target: after its `DELETE FROM`, one `INSERT ... SELECT` over the raw
  files, with two threads. Neither checks rows, and readers miss rows meanwhile, as with the script.

Ours includes what only ours does: the checks of every row, closing sessions by reading on, the commit to the lake, staging,
the comparison, its proof, publishing, verifying and the ledger. It stages all rows beside the target, and writes to the target
what differs: a cancel and a state for each wrong row. Readers see up to three million rows change at once; they need `FINAL`
or sums by sign, as with any collapsing table.

The others write all rows of the range, and `ALTER TABLE ... DELETE` writes those that stay in the same parts anew, which is not
counted. Between their delete and the end of their insert, readers miss rows. The script computes its rows once in a turn; both
its ways of deleting are charged with that.

The bare job reads one hour before and one after, leaves duplicates in, and does nothing with its rows. The SQL statement only
counts rows. Peak memory is the resident one of the processes that take part, since the turn began; a JVM keeps what earlier
turns made it take. MB/s are those of the compressed raw files.

## A generated day

{made.said}

{made.table}
{flink}
Medians by part, in seconds:

{made.parts}
| asked for | met | found |
|---|---|---|
{verdicts}
## A day of real requests

{real_said}

{real.table}
Medians by part, in seconds:

{real.parts}
## What is paid beside the work

| what | s (spread) | runs |
|---|---|---|
{small}
Rows of ten columns, one percent wrong, loaded from Parquet, compared, proven and published in ClickHouse; three hours at a
time:

| hours x rows | load, s | compare, prove and publish, s | rows written | peak GB of ClickHouse | runs |
|---|---|---|---|---|---|
{diffs}
Elsewhere: [1 to 48 hours, with peak memory](results-end-to-end.md), [Dagster per asset and hour](results-control-plane.md),
[a year of hours surveyed](results-year.md), [checks beside pandera's own](results-checks.md),
[comparing and publishing](results-publish.md), [one hour from the click](results-one-hour.md).

## Again

`make bench` writes this file; `make bench-quick` does a small part of it in about two minutes and prints it.
`python -m benchmarks.side_by_side --help` names the options.
"""
