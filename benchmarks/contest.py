"""The ground on which all ways of repairing meet: the same lake files, the same wrong rows, the same proof.

The target is published once, right, from the lake, with hours before and after the range as well. Then two tables with wrong
rows are kept: in the range, one row in a hundred has one byte too many. Before each turn the target is made equal to its kept
table, which is not timed. After each turn it must hold the rows of every hour as they were first published, by fingerprints of
all columns; what was published is compared with what one SQL statement finds in the raw files.

There are two targets with the same columns, partitions and sorting key: the collapsing one that ours publishes to, and a
MergeTree for those who delete and insert.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.fingerprints import Fingerprints
from backfill_platform.adapters.clickhouse.schema import column_definitions
from backfill_platform.adapters.clickhouse.sql import (
    Condition,
    names,
    partition_key,
    qualified,
    sorting_key,
    target_name,
    within,
)
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import AssetPath
from backfill_platform.domain.tables import Table
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.outcomes import HourOutcome, StepFinished
from benchmarks.end_to_end import peak_memory, sessions_by_sql
from benchmarks.repairs import repair, services

WRONG = 100  # one row in so many
WHY = "benchmark"


@dataclass(frozen=True)
class Took:
    """One turn of one contender. Rows are those written to the target, memory the gigabytes that each process had at most."""

    contender: str
    seconds: float
    parts: dict[str, float] = field(default_factory=dict)
    rows: int | None = None
    memory: dict[str, float] = field(default_factory=dict)
    load: float = 0.0


@dataclass
class Ground:
    """A landed lake, a warehouse, and the range to repair. `processes` are those whose memory is watched."""

    spark: SparkSession
    lake: Lake
    warehouse: Warehouse
    pipeline: Pipeline
    span: HourRange
    processes: dict[str, int | str]
    expected: Fingerprints = field(default_factory=dict)
    sessions: int = 0
    wrong: int = 0

    @property
    def table(self) -> Table:
        return self.pipeline.published[0]

    @property
    def hours(self) -> HourRange:
        """All that there is, the hours around the range included."""
        return HourRange(self.pipeline.start, self.pipeline.end or self.span.end)

    @property
    def collapsing(self) -> str:
        return target_name(self.table)

    @property
    def plain(self) -> str:
        return qualified("bench", "target")

    @property
    def kept(self) -> dict[str, str]:
        return {name: qualified("bench", f"kept_{kind}") for name, kind in ((self.collapsing, "signed"), (self.plain, "plain"))}

    def files(self, before: int, after: int) -> list[str]:
        """The raw files of the range and of some hours around it."""
        hours = [hour for hour in self.hours if self.span.start - before * HOUR <= hour < self.span.end + after * HOUR]
        return [file.uri for file in self.lake.files(self.pipeline.raw.table, hours)]

    def events(self) -> int:
        return sum(self.lake.rows_by_hour(self.pipeline.raw.table, self.span).values())

    def megabytes(self) -> float:
        """What the raw files of the range have on disk."""
        return sum(Path(uri.removeprefix("file://")).stat().st_size for uri in self.files(0, 0)) / 1e6

    def prepare(self) -> float:
        """Publish all hours, prove it, and keep the tables with the wrong rows; the seconds that publishing took."""
        assets = [self.table.path, ("warehouse", self.table.name)]
        seconds = sum(self.engine(self.hours, assets, "first").parts.values())
        self.expected = fingerprints.net(self.warehouse, self.table, list(self.hours))
        ((rows, requests),) = self.warehouse.rows(
            f"SELECT count(), sum(requests) FROM {self.collapsing} FINAL WHERE {self._where().sql}",
            parameters=self._where().parameters,
            doing="counting",
        )
        found = sessions_by_sql(self.warehouse, self.files(len(self.hours), len(self.hours)), self.span)
        if (int(rows), int(requests)) != found:
            raise SystemExit(f"published {rows, requests} (sessions, requests), SQL finds {found}: nothing is reported")
        self.sessions = found[0]
        self._keep_wrong_rows()
        return seconds

    def engine(self, span: HourRange, assets: list[AssetPath], name: str) -> Took:
        """Repair with the platform: seconds by step, and the rows that were written to the target."""
        engines = services(self.lake, self.spark, self.warehouse)
        parts: dict[str, float] = {}
        rows, began = 0, time.perf_counter()
        for event in repair(self.pipeline, engines, span, assets, name):
            if isinstance(event, HourOutcome) and event.target is not None:
                rows += event.target.result.cancels + event.target.result.states
            if isinstance(event, StepFinished):
                asset = "/".join(event.step.asset)
                parts[asset] = parts.get(asset, 0.0) + time.perf_counter() - began - sum(parts.values())
        return Took("ours", time.perf_counter() - began, parts, rows)

    def reset(self, target: str) -> None:
        """Make a target equal to its kept table again."""
        self.warehouse.empty(target, doing=WHY)
        self.warehouse.command(f"ALTER TABLE {target} ATTACH PARTITION ALL FROM {self.kept[target]}", doing=WHY)
        if self._found(target) == self.expected:
            raise SystemExit(f"{target} is right before it is repaired: nothing is reported")

    def verify(self, target: str, who: str) -> None:
        """The target must hold the expected rows: in the range, and around it as before."""
        found = self._found(target)
        if found != self.expected:
            wrong = [str(hour) for hour in self.hours if found[hour] != self.expected[hour]]
            raise SystemExit(f"{who}: {len(wrong)} hours of {target} are wrong, the first is {wrong[0]}: nothing is reported")
        if target == self.collapsing and fingerprints.final(self.warehouse, self.table, list(self.hours)) != found:
            raise SystemExit(f"{who}: FINAL of {target} is not its net state: nothing is reported")

    @contextmanager
    def watched(self) -> Iterator[Callable[[], dict[str, float]]]:
        """Gives what tells the most memory that each process had since the block began."""
        for pid in self.processes.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        yield lambda: {name: peak_memory(pid) for name, pid in self.processes.items()}

    def delete_by(self, statement: str) -> None:
        """Delete the rows of the range from the plain target, with the beginning of a statement that a WHERE can follow."""
        where = self._where()
        self.warehouse.command(
            f"{statement} WHERE {where.sql}",
            parameters=where.parameters,
            settings={"mutations_sync": 2, "lightweight_deletes_sync": 2},
            doing="deleting the range",
        )

    def _where(self) -> Condition:
        return within(self.table, list(self.span))

    def _found(self, target: str) -> Fingerprints:
        if target == self.collapsing:
            return fingerprints.net(self.warehouse, self.table, list(self.hours))
        return fingerprints.states(self.warehouse, self.table, list(self.hours), source=target)

    def _keep_wrong_rows(self) -> None:
        table, warehouse, where = self.table, self.warehouse, self._where()
        definition = f"PARTITION BY {partition_key(table)} ORDER BY ({names(sorting_key(table))})"
        warehouse.command("CREATE DATABASE IF NOT EXISTS bench", doing=WHY)
        signed, plain = self.kept[self.collapsing], self.kept[self.plain]
        for name in (signed, plain, self.plain):
            warehouse.drop(name, doing=WHY)
        warehouse.command(f"CREATE TABLE {signed} AS {self.collapsing}", doing=WHY)
        for name in (plain, self.plain):
            columns = ", ".join(column_definitions(table))
            warehouse.command(f"CREATE TABLE {name} ({columns}) ENGINE = MergeTree {definition}", doing=WHY)
        columns = names(table.column_names)
        hit = f"{where.sql} AND cityHash64(client_id, started_at) % {WRONG} = 0"
        one_at_a_time = {"max_insert_threads": 1, "async_insert": 0}
        warehouse.command(
            f"INSERT INTO {plain} ({columns}) SELECT * REPLACE (bytes + if({hit}, 1, 0) AS bytes) "
            f"FROM (SELECT {columns} FROM {self.collapsing} FINAL)",
            parameters=where.parameters,
            settings=one_at_a_time,
            doing="making wrong rows",
        )
        warehouse.command(
            f"INSERT INTO {signed} ({columns}, sign) SELECT {columns}, 1 FROM {plain}", settings=one_at_a_time, doing=WHY
        )
        for name in (signed, plain):
            warehouse.command(f"OPTIMIZE TABLE {name} FINAL", doing=WHY)
        ((self.wrong,),) = warehouse.rows(f"SELECT count() FROM {plain} WHERE {hit}", parameters=where.parameters, doing=WHY)


def load() -> float:
    """How many processes wanted the cores in the last minute."""
    return os.getloadavg()[0]
