"""A small platform for tests: pipeline, lake and warehouse, and a way to run repairs and look at the result."""

from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.patches import drop_patches
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.kafka.cluster import OpenCluster, no_cluster
from backfill_platform.adapters.kafka.topic import KafkaTopic
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import DRY_RUN, WAREHOUSE, AssetPath, Landing, Plan, make_plan
from backfill_platform.domain.request import RepairRequest
from backfill_platform.examples import clickstream_reference
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.job import RepairIdentity, RepairJob
from backfill_platform.repair.outcomes import Event, HourOutcome
from backfill_platform.repair.publish import Publishing
from backfill_platform.repair.runner import USUAL_PARTS, PartLimits, run_plan
from backfill_platform.repair.undo import UndoneTable, UndoScope, undo_repair
from backfill_platform.repair.wiring import Services, repair_services
from backfill_platform_tests.fixtures_pipeline import clickstream_over, open_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Prints = dict[datetime, Fingerprint]


@dataclass
class World:
    """One pipeline over a file, with everything it needs. Hours run from `pipeline.start` to `pipeline.end`."""

    folder: Path
    spark: "SparkSession"
    warehouse: Warehouse
    pipeline: Pipeline
    lake: Lake
    kafka: OpenCluster = no_cluster
    repairs: int = field(default=0)

    @classmethod
    def over(cls, folder: Path, spark: "SparkSession", warehouse: Warehouse, lines: Iterable[str], hours: int) -> "World":
        return cls(folder, spark, warehouse, clickstream_over(folder, lines, hours), open_lake(folder))

    @property
    def hours(self) -> HourRange:
        return self.pipeline.hours_until(datetime.now(UTC))

    @property
    def topic(self) -> KafkaTopic:
        """The topic that the pipeline reads."""
        assert isinstance(self.pipeline.source, KafkaTopic)
        return self.pipeline.source

    @property
    def sessions(self) -> str:
        return self.pipeline.derived[0].name

    @property
    def hourly(self) -> str:
        return self.pipeline.derived[1].name

    @property
    def everything(self) -> tuple[AssetPath, ...]:
        return tuple(asset for node in self.pipeline.nodes for asset in node.assets if asset[0] != DRY_RUN)

    @property
    def derived(self) -> tuple[AssetPath, ...]:
        return self.everything[1:]

    @property
    def dry_runs(self) -> tuple[AssetPath, ...]:
        return ((DRY_RUN, self.sessions), (DRY_RUN, self.hourly))

    def plan(self, assets: Iterable[AssetPath], hours: HourRange | None = None, landing: Landing = Landing.SAFE) -> Plan:
        return make_plan(self.pipeline.name, self.pipeline.nodes, hours or self.hours, tuple(assets), landing)

    @property
    def services(self) -> Services:
        return Services(self.lake, lambda: self.spark, lambda: self.warehouse, lambda: datetime.now(UTC), self.kafka)

    def job(self, pipeline: Pipeline | None = None, **request: Any) -> RepairJob:
        """A repair of its own; `request` are fields of the request."""
        self.repairs += 1
        asked = RepairRequest(**{"reason": "a test", "requester": "pytest", **request})
        return RepairJob(pipeline or self.pipeline, asked, RepairIdentity(f"r{self.repairs}", "0"), lambda: datetime.now(UTC))

    def events(
        self,
        plan: Plan,
        job: RepairJob | None = None,
        *,
        live_repairs: Callable[[], Collection[str]] = tuple,
        limits: PartLimits = USUAL_PARTS,
        **services: Any,
    ) -> Generator[Event, None, None]:
        """Walk a plan; what happens."""
        job = job or self.job()
        yield from run_plan(plan, job, repair_services(job, replace(self.services, **services), live_repairs), limits)

    def undo(self, scope: UndoScope) -> list[UndoneTable]:
        """Undo a repair, as a repair of its own."""
        return list(undo_repair(self.job(), scope, self.warehouse))

    @staticmethod
    def range(hours: Iterable[datetime]) -> HourRange:
        return HourRange.covering(hours)

    def run(
        self,
        assets: Iterable[AssetPath],
        hours: HourRange | None = None,
        *,
        pipeline: Pipeline | None = None,
        landing: Landing = Landing.SAFE,
        clock: Callable[[], datetime] | None = None,
        publishing: Publishing | None = None,
        **request: Any,
    ) -> dict[AssetPath, dict[datetime, HourOutcome]]:
        """Make a plan and walk it to its end; the outcomes by asset and hour. `request` are fields of the request."""
        job = self.job(pipeline, **request)
        job = replace(job, clock=clock) if clock else job
        services = {"publishing": publishing} if publishing else {}
        return self.walk([self.plan(assets, hours, landing)], job, **services)

    def walk(
        self, plans: Iterable[Plan], job: RepairJob | None = None, **services: Any
    ) -> dict[AssetPath, dict[datetime, HourOutcome]]:
        """Walk plans one after the other, each as a repair of its own unless a job is given; the outcomes of all."""
        found: dict[AssetPath, dict[datetime, HourOutcome]] = {}
        for plan in plans:
            for event in list(self.events(plan, job, **services)):
                if isinstance(event, HourOutcome):
                    found.setdefault(event.asset, {})[event.hour] = event
        return found

    def net(self) -> dict[str, Prints]:
        """The fingerprints of the warehouse tables; FINAL must agree with the net state."""
        found = {}
        for table in self.pipeline.published:
            net = fingerprints.net(self.warehouse, table, list(self.hours))
            assert net == fingerprints.final(self.warehouse, table, list(self.hours)), f"{table} is inconsistent"
            found[table.name] = net
        return found

    def wanted(self, requests: list[clickstream_reference.Request]) -> dict[str, Prints]:
        """What plain Python makes of the requests, in fingerprints of the same engine."""
        available_until = max(self.lake.built_hours(self.pipeline.raw.table)) + HOUR
        return self.prints(
            clickstream_reference.sessions(requests, available_until),
            clickstream_reference.site_hourly(requests, available_until),
        )

    def prints(self, *computed: Iterable[tuple[object, ...]]) -> dict[str, Prints]:
        """The fingerprints, by the same engine, of the rows computed for each published table, in the order of its columns."""
        found = {}
        for table, rows in zip(self.pipeline.published, computed, strict=True):
            named = [dict(zip(table.column_names, row, strict=True)) for row in rows]
            counts = {hour: sum(row["hour"] == hour for row in named) for hour in self.hours}
            with Staging(self.warehouse, table, "wanted", list(self.hours), exclusive=False) as staging:
                staging.load_rows(named, counts)
                found[table.name] = fingerprints.states(self.warehouse, table, list(self.hours), source=staging.desired)
        return found

    def damage(self, table: str, change: str, hour: datetime) -> None:
        """Change a warehouse table behind the platform's back."""
        found = next(one for one in self.pipeline.published if one.name == table)
        self.warehouse.command(
            f"ALTER TABLE {found.layer}.{found.name} {change} WHERE hour = toDateTime({int(hour.timestamp())})",
            settings={"mutations_sync": 2},
            doing="damaging a table",
        )

    def drop(self) -> None:
        for table in self.pipeline.published:
            drop_patches(self.warehouse, table, older_than_days=0)
            self.warehouse.command(f"DROP TABLE IF EXISTS {target_name(table)} SYNC", doing="cleaning up")


def with_rule(pipeline: Pipeline, name: str, rule: object) -> Pipeline:
    """The pipeline with one more rule on a table."""
    derived = tuple(
        replace(one, rules=(*one.rules, rule)) if one.name == name else one  # type: ignore[arg-type]
        for one in pipeline.derived
    )
    return replace(pipeline, derived=derived)


def warehouse_asset(name: str) -> AssetPath:
    return (WAREHOUSE, name)
