"""How long a code location of many pipelines takes to load: `python -m benchmarks.many_pipelines`.

Each pipeline is a module of its own with five tables: one raw, two transformed, two aggregated, with schemas of about nine
columns, code and checks of their own. Each figure is the median of fresh processes. `--profile` prints where the time goes.
"""

import argparse
import cProfile
import json
import os
import platform
import pstats
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results-many-pipelines.md"

_MODULE = '''
from datetime import UTC, datetime, timedelta

import pyspark.sql.types as T
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import functions as F

from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.adapters.spark.checks import HourRule, RowRule
from backfill_platform.domain.tables import Layer
from backfill_platform.domain.windows import Window
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable


class Events(DataFrameModel):
    """An event of pipeline {n}."""

    ingestion_hour: T.TimestampType = Field(description="hour in which it arrived, UTC")
    event_time: T.TimestampType = Field(description="when it happened, UTC")
    user: T.StringType = Field(str_length={{"min_value": 1}}, description="who did it")
    kind: T.StringType = Field(isin=["view", "click", "buy"], description="what happened")
    amount: T.DoubleType = Field(nullable=True, ge=0, description="of what it was worth")
    bytes: T.LongType = Field(nullable=True, ge=0, description="bytes sent")
    status: T.IntegerType = Field(in_range={{"min_value": 100, "max_value": 599}}, description="status")
    url: T.StringType = Field(description="where")
    agent: T.StringType = Field(nullable=True, description="with what")


class Computed(DataFrameModel):
    """Events of a user in an hour."""

    hour: T.TimestampType = Field(description="the hour, UTC")
    user: T.StringType = Field(description="who")
    events: T.LongType = Field(ge=1, description="events")
    views: T.LongType = Field(ge=0, description="of these, views")
    clicks: T.LongType = Field(ge=0, description="of these, clicks")
    amount: T.DoubleType = Field(ge=0, description="worth of them")
    bytes: T.LongType = Field(ge=0, description="bytes sent")
    errors: T.LongType = Field(ge=0, description="with a status of 400 or above")
    share: T.DoubleType = Field(in_range={{"min_value": 0, "max_value": 1}}, description="share of errors")


FACTOR = {n}


def parse(lines):
    part = F.split("line", ",")
    return lines.select("*", part[0].cast("timestamp").alias("event_time"), part[1].alias("user"), part[2].alias("kind"))


def by_user(events):
    return _summed(events, F.date_trunc("hour", "event_time"))


def again(rows):
    return _summed(rows, F.col("hour"))


def _summed(rows, hour):
    return rows.groupBy(hour.alias("hour"), "user").agg(F.count("*").alias("events"), F.sum("amount") * FACTOR)


RULES = (
    RowRule("no more clicks than events", lambda: F.col("clicks") <= F.col("events")),
    HourRule("not too few users", lambda: F.count_distinct("user") > 0, "an hour has users"),
)


def table(layer, name, reads, build):
    return DerivedTable(layer, name, Computed, reads=reads, build=build, key=("user",), tenant="user", rules=RULES)


pipeline = Pipeline(
    name="p{n}",
    description="Pipeline {n}.",
    start=datetime({year}, 1, 1, tzinfo=UTC),
    end={end},
    source=HourlyFiles("file:///data/p{n}/%Y-%m-%d/%H.csv"),
    raw=RawTable("events_{n}", Events, parse, same_event=("event_time", "user")),
    derived=(
        table(Layer.TRANSFORMED, "users_{n}", "events_{n}", by_user),
        table(Layer.TRANSFORMED, "visits_{n}", "events_{n}", by_user),
        table(Layer.AGGREGATED, "users_daily_{n}", "users_{n}", again),
        table(Layer.AGGREGATED, "visits_daily_{n}", "visits_{n}", again),
    ),
    owners=("team:data",),
)
'''

_LOAD = """
import sys, time
started = time.perf_counter()
import backfill_platform.definitions as entry
imported = time.perf_counter()
definitions = entry.build_definitions(entry.load_settings())
built = time.perf_counter()
repository = definitions.get_repository_def()
from dagster._core.remote_representation.external_data import RepositorySnap
RepositorySnap.from_def(repository)
print(imported - started, built - imported, time.perf_counter() - built)
"""

# As the web page and the daemon load it: a code server is started, and what it tells of the location is read.
_SERVED = """
import tempfile, time
from pathlib import Path
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.settings import Settings
with tempfile.TemporaryDirectory() as home, dagster_instance(Settings(home=Path(home))) as instance:
    started = time.perf_counter()
    target = ModuleTarget("backfill_platform.definitions", None, None, "here")
    with WorkspaceProcessContext(instance, target) as process:
        workspace = process.create_request_context()
        assert list(workspace.asset_graph.asset_nodes)
        print("served", time.perf_counter() - started)
"""


def write_modules(folder: Path, pipelines: int) -> list[str]:
    """The modules of the pipelines: of other eras, every second one live."""
    names = []
    for number in range(pipelines):
        year = 1998 + number % 28
        end = "None" if year >= 2024 else f"datetime({year + 1}, 1, 1, tzinfo=UTC)"
        (folder / f"pipeline_{number}.py").write_text(_MODULE.format(n=number, year=year, end=end))
        names.append(f"pipeline_{number}")
    return names


def environment(folder: Path, pipelines: int) -> dict[str, str]:
    """What a process needs to load so many of them."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(folder), str(Path(__file__).parents[1]))),
        "BACKFILL_HOME": str(folder / "home"),
        "BACKFILL_PIPELINES": json.dumps([f"pipeline_{number}" for number in range(pipelines)]),
    }


def load(folder: Path, pipelines: int, times: int) -> list[float]:
    """Seconds to import the platform, to make the definitions, to make of them what Dagster is told; and by a code server."""
    found = []
    for _ in range(times):
        seconds = [float(text) for text in _printed(_LOAD, folder, pipelines).split()]
        (served,) = [line for line in _printed(_SERVED, folder, pipelines).splitlines() if line.startswith("served ")]
        found.append([*seconds, float(served.split()[1])])
    return [statistics.median(column) for column in zip(*found, strict=True)]


def _printed(program: str, folder: Path, pipelines: int) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment(folder, pipelines), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def profile(folder: Path, pipelines: int) -> None:
    """Where the time goes that many pipelines take."""
    os.environ.update(environment(folder, pipelines))
    sys.path.insert(0, str(folder))
    import backfill_platform.definitions as entry

    watched = cProfile.Profile()
    watched.enable()
    entry.build_definitions(entry.load_settings()).get_repository_def()
    watched.disable()
    pstats.Stats(watched).sort_stats("cumulative").print_stats(70)


def main() -> None:
    """Measure, and write the page of results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--pipelines", type=int, nargs="*", default=[1, 10, 50, 100])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many-pipelines-") as name:
        folder = Path(name)
        write_modules(folder, max(arguments.pipelines))
        if arguments.profile:
            profile(folder, max(arguments.pipelines))
            return
        lines = [
            "# Many pipelines in one code location\n",
            f"`python -m benchmarks.many_pipelines` on {os.cpu_count()} cores ({platform.machine()}): pipelines of five "
            f"tables, of 28 eras. The web page and the daemon load them by a code server. Medians of {arguments.times} "
            "fresh processes.\n",
            "| pipelines | s to import the platform | s to define | s to tell Dagster | s in all | s by a code server |",
            "|---|---|---|---|---|---|",
        ]
        for pipelines in arguments.pipelines:
            seconds = load(folder, pipelines, arguments.times)
            lines.append(
                f"| {pipelines} | {' | '.join(f'{one:.1f}' for one in (*seconds[:3], sum(seconds[:3]), seconds[3]))} |"
            )
            sys.stdout.write(f"{lines[-1]}\n")
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
