"""Migrations on a real lake and a real ClickHouse: sequences of changes against rows kept in memory, and kills at each step."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.types as T
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pandera.pyspark import DataFrameModel, Field

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.lake_files import file_fingerprints
from backfill_platform.adapters.clickhouse.publishing.leases import Lease
from backfill_platform.adapters.clickhouse.publishing.patches import drop_patches, load_undone, undoable
from backfill_platform.adapters.clickhouse.publishing.prepare import Status, prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.push import arrow_type
from backfill_platform.adapters.clickhouse.publishing.staging import Loading, Staging, fence
from backfill_platform.adapters.clickhouse.schema import create_target
from backfill_platform.adapters.clickhouse.sql import names, target_name
from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.request import RepairRequest
from backfill_platform.domain.tables import Layer, Table
from backfill_platform.domain.uris import local_uri
from backfill_platform.errors import HourLeased, PreconditionError, SpecError, UsageError
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable
from backfill_platform.repair.job import RepairIdentity, RepairJob
from backfill_platform.repair.migrate import Migration, migrate, plan_migration
from backfill_platform_tests.fixtures_pipeline import open_lake

START = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, Any]

# What each type may be widened to, and a value that only fits the wider one is not needed: the readers are what is tested.
WIDER: dict[str, tuple[T.DataType, ...]] = {
    "number": (T.ShortType(), T.IntegerType(), T.LongType()),
    "measure": (T.FloatType(), T.DoubleType()),
    "amount": (T.DecimalType(5, 2), T.DecimalType(12, 2), T.DecimalType(30, 2)),
    "text": (T.StringType(),),
    "moment": (T.TimestampType(),),
}


@dataclass(frozen=True)
class Declared:
    """A column as it is declared by now: its family and how wide it is, and the names that it had."""

    family: str
    width: int = 0
    was: tuple[str, ...] = ()

    @property
    def type(self) -> T.DataType:
        return WIDER[self.family][self.width]

    def value(self, seed: int) -> Any:
        match self.family:
            case "number":
                return seed % 30_000
            case "measure":
                return seed / 8
            case "amount":
                return Decimal(seed % 900).scaleb(-2)
            case "text":
                return f"text {seed}"
        return START + timedelta(microseconds=seed)


def nothing(rows: Any) -> Any:
    return rows


class Events(DataFrameModel):
    ingestion_hour: T.TimestampType = Field()
    event_time: T.TimestampType = Field()


def pipeline_of(name: str, columns: dict[str, Declared], **more: Any) -> Pipeline:
    """A pipeline with one published table of these nullable columns, by hour and `who`."""
    fields: dict[str, Any] = {"hour": T.TimestampType, "who": T.LongType}
    body: dict[str, Any] = {"hour": Field(), "who": Field()}
    for column, declared in columns.items():
        fields[column] = declared.type
        body[column] = Field(nullable=True)
    schema = type("Made", (DataFrameModel,), {"__annotations__": fields, **body})
    was = {column: declared.was for column, declared in columns.items() if declared.was}
    derived = DerivedTable(
        Layer.TRANSFORMED, name, schema, reads=f"{name}_events", build=nothing, key=("who",), was=was, version="", **more
    )
    return Pipeline(
        name=name,
        description="a test",
        start=START,
        end=START + 24 * HOUR,
        source=HourlyFiles("file:///nowhere/%H.csv"),
        raw=RawTable(f"{name}_events", Events, nothing),
        derived=(derived,),
    )


@dataclass
class Stage:
    """One pipeline with its lake and target; the rows that it should hold, by hour, under the names of now."""

    lake: Lake
    warehouse: Warehouse
    folder: Path
    name: str = field(default_factory=lambda: f"m{uuid.uuid4().hex[:8]}")
    columns: dict[str, Declared] = field(default_factory=dict)
    rows: dict[datetime, list[Row]] = field(default_factory=dict)
    count: int = 0

    @property
    def pipeline(self) -> Pipeline:
        return pipeline_of(self.name, self.columns)

    @property
    def table(self) -> Table:
        return self.pipeline.derived[0].table

    def create(self) -> None:
        for table in self.pipeline.tables:
            self.lake.ensure(table)
            self.lake.ensure(quarantine_of(table))
        create_target(self.warehouse, self.table)

    def job(self) -> RepairJob:
        self.count += 1
        return RepairJob(self.pipeline, RepairRequest(), RepairIdentity(f"r{self.count}", "0"), lambda: START + 24 * HOUR)

    def plan(self, *drops: str) -> Migration:
        return plan_migration(self.pipeline, self.lake, self.warehouse, START + 24 * HOUR, drops)

    def migrate(self, *drops: str, on_step: Callable[[str], None] = lambda step: None) -> Migration:
        return migrate(self.job(), self.lake, self.warehouse, drops, on_step)

    def build(self, hour: datetime, seed: int) -> str:
        """An hour as the ordinary run builds and publishes it by now; the name of the repair."""
        self.rows[hour] = [
            {"hour": hour, "who": who, **{name: one.value(seed + who) for name, one in self.columns.items()}}
            for who in range(3)
        ]
        self.rows[hour][0].update(dict.fromkeys(self.columns))  # NULL in all of them
        schema = pa.schema([(column.name, arrow_type(column.type)) for column in self.table.columns])
        self.count += 1
        path = self.folder / f"{self.name}_{self.count}.parquet"
        pq.write_table(pa.Table.from_pylist(self.rows[hour], schema), path, compression="zstd")
        self.lake.stage(self.table, "setup", [hour], {hour: [local_uri(path)]})
        self.lake.promote(self.table, "setup", [hour])
        with Staging(self.warehouse, self.table, f"r{self.count}", [hour], lease_seconds=5) as staging:
            staging.load_files(self.uris(hour), {hour: 3})
            (result,) = publish(prepare(staging, [hour]))
            assert result.status in (Status.PUBLISHED, Status.UNCHANGED), result.reason
        return f"r{self.count}"

    def uris(self, *hours: datetime) -> list[str]:
        return [file.uri for file in self.lake.files(self.table, hours)]

    def change(self, old: str, new: str, declared: Declared | None) -> None:
        """Change a column, and what the rows should hold of it."""
        columns = {**self.columns}
        if old:
            columns.pop(old)
        if declared is not None:
            columns[new] = declared
        self.columns = columns
        for rows in self.rows.values():
            for row in rows:
                value = row.pop(old, None)
                if new:
                    row[new] = value

    def assert_holds(self) -> None:
        """Iceberg's reader, ClickHouse's, ours, and the target say the same, and what they should."""
        table, hours = self.table, sorted(self.rows)
        expected = sorted(_plain(table, row) for rows in self.rows.values() for row in rows)
        read = self.lake.read(table, table.column_names, "who >= 0").to_pylist()
        assert sorted(_plain(table, row) for row in read) == expected
        for name in self.columns:
            empty = sum(row[name] is None for rows in self.rows.values() for row in rows)
            assert self.lake.read(table, ["who"], f"{name} is null").num_rows == empty
        sql = f"SELECT {names(table.column_names)} FROM {target_name(table)} FINAL"
        stored = [dict(zip(table.column_names, row, strict=True)) for row in self.warehouse.rows(sql, doing="looking")]
        assert sorted(_plain(table, row) for row in stored) == expected
        net = fingerprints.net(self.warehouse, table, hours)
        for loading in Loading:
            assert file_fingerprints(self.warehouse, table, hours, self.uris(*hours), loading) == net


def _plain(table: Table, row: Row) -> str:
    values = (row[name] for name in sorted(table.column_names))
    return str([value.timestamp() if isinstance(value, datetime) else value for value in values])


@pytest.fixture
def make(warehouse: Warehouse, tmp_path: Path) -> Iterator[Callable[[], Stage]]:
    made: list[Stage] = []

    def new() -> Stage:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Stage(open_lake(folder), warehouse, folder, columns={"pages": Declared("number", 1)}))
        made[-1].create()
        return made[-1]

    yield new
    for stage in made:
        fence(warehouse, stage.table)
        drop_patches(warehouse, stage.table, older_than_days=0)
        warehouse.drop(target_name(stage.table), doing="cleaning up")


CHANGES = st.lists(st.tuples(st.sampled_from(["add", "widen", "rename", "drop"]), st.integers(0, 99)), min_size=1, max_size=6)


# Not shrunk: each example takes seconds.
@settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes=CHANGES)
def test_any_sequence_of_changes_keeps_every_value(make: Callable[[], Stage], changes: list[tuple[str, int]]) -> None:
    stage = make()
    first = stage.build(START, 1)
    for number, (kind, pick) in enumerate(changes, 1):
        apply(stage, kind, pick, number)
        drops = tuple(stage_drops(stage))
        stage.migrate(*drops)
        assert not stage.plan(*drops).is_needed
        stage.build(START + number * HOUR, number * 100)
        stage.assert_holds()
    undo(stage, first, START)
    assert fingerprints.net(stage.warehouse, stage.table, [START])[START].rows == 0


def apply(stage: Stage, kind: str, pick: int, number: int) -> None:
    """One change of the declaration, if there is a column for it."""
    name = sorted(stage.columns)[pick % len(stage.columns)] if stage.columns else ""
    one = stage.columns.get(name)
    match kind:
        case "add":
            stage.change("", f"new_{number}", Declared(sorted(WIDER)[pick % len(WIDER)]))
        case "widen" if one is not None:
            stage.change(name, name, replace(one, width=min(one.width + 1, len(WIDER[one.family]) - 1)))
        case "rename" if one is not None:
            stage.change(name, f"renamed_{number}", replace(one, was=(*one.was, name)))
        case "drop" if one is not None:
            stage.change(name, "", None)


def stage_drops(stage: Stage) -> list[str]:
    loaded = stage.lake.load(stage.table)
    assert loaded is not None
    known = {name for column in stage.table.columns for name in (column.name, *column.was)}
    return sorted(set(loaded.schema().column_names) - known)


def undo(stage: Stage, repair: str, hour: datetime) -> None:
    """Take a repair back; it wrote all rows of the hour, and they are as it left them."""
    with Staging(stage.warehouse, stage.table, "undoing", [hour], lease_seconds=5) as staging:
        found = undoable(stage.warehouse, stage.table, repair, [hour])
        assert (found.rows, found.conflicts) == ({hour: 3}, 0)
        load_undone(staging, repair, [hour])
        publish(prepare(staging, [hour]))


class Killed(Exception):
    """Stands for kill -9."""


def test_killed_at_every_step_and_done_again(make: Callable[[], Stage]) -> None:
    stage = make()
    stage.columns = {"pages": Declared("number", 1), "old": Declared("text"), "gone": Declared("text")}
    stage.migrate()
    repair = stage.build(START, 1)
    stage.change("", "metric", Declared("measure"))
    stage.change("old", "renamed", Declared("text", was=("old",)))
    stage.change("pages", "pages", Declared("number", 2))
    stage.change("gone", "", None)
    steps = 0

    def killer(number: int) -> Callable[[str], None]:
        seen = iter(range(1000))

        def on_step(step: str) -> None:
            if next(seen) == number:
                raise Killed(step)

        return on_step

    for number in range(2, 100):  # the steps that are done stay done, so the next step is always the third
        del number
        try:
            stage.migrate("gone", on_step=killer(2))
        except Killed:
            steps += 1
            with_error = pytest.raises(PreconditionError, match="migrate --plan") if stage.plan("gone").is_needed else None
            if with_error and stage.lake.column_changes(stage.table, ("gone",)):
                with with_error:
                    stage.lake.ensure(stage.table)
            continue
        break
    assert steps == 9  # four changes of the target, four of its patch, one of the lake
    assert not stage.plan("gone").is_needed
    stage.assert_holds()
    undo(stage, repair, START)


def test_the_ledger_has_what_was_done(make: Callable[[], Stage]) -> None:
    stage = make()
    stage.change("", "metric", Declared("measure"))
    stage.migrate()
    (entry,) = Ledger(stage.warehouse).read(pipeline=stage.name, modes=["migrate"])
    assert (entry.status, entry.reason, entry.hour) == ("done", "add metric float, add metric Nullable(Float32)", START)


def test_what_a_repair_wrote_before_and_was_rebuilt_since_is_a_conflict(make: Callable[[], Stage]) -> None:
    """A row that has got its new metric by now is not what the patch wrote: the undo leaves it, and says so."""
    stage = make()
    first = stage.build(START, 1)
    stage.change("", "metric", Declared("measure"))
    stage.migrate()
    stage.build(START, 1)
    with Staging(stage.warehouse, stage.table, "undoing", [START], lease_seconds=5):
        found = undoable(stage.warehouse, stage.table, first, [START])
    # The row that is NULL everywhere is still what it was.
    assert (found.rows, found.conflicts) == ({START: 1}, 2)


REFUSED: dict[str, tuple[dict[str, Declared], str]] = {
    "narrowed": ({"pages": Declared("number", 0)}, "Nullable\\(Int32\\) cannot become Nullable\\(Int16\\)"),
    "another type": ({"pages": Declared("text")}, "int cannot become string"),
    "dropped, unasked": ({}, "pages: it is not declared any more: say --drop pages, or which column it has become"),
    "renamed from nothing": (
        {"pages": Declared("number", 1), "a": Declared("text", was=("b",))},
        "a: it was b, which the lake does not have",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_changes_change_nothing(make: Callable[[], Stage], case: str) -> None:
    stage = make()
    stage.build(START, 1)
    before = stage.columns
    stage.columns, text = REFUSED[case]
    with pytest.raises(PreconditionError, match=text):
        stage.migrate()
    stage.columns = before
    assert not stage.plan().is_needed
    stage.assert_holds()


def test_an_earlier_name_must_stay_declared(make: Callable[[], Stage]) -> None:
    """Without it, Spark and ClickHouse would read NULL from older files."""
    stage = make()
    stage.build(START, 1)
    stage.change("pages", "views", Declared("number", 1, was=("pages",)))
    stage.migrate()
    stage.columns = {"views": Declared("number", 1)}
    with pytest.raises(PreconditionError, match="migrate --plan"):
        stage.lake.ensure(stage.table)
    assert "declare was={'views': 'pages'}" in stage.plan().refused[0]


def test_required_columns_and_keys_are_refused() -> None:
    with pytest.raises(SpecError, match="cannot be renamed, because it is part of the key"):
        _ = (
            pipeline_of("p", {"pages": Declared("number")}).derived[0].table
            and replace(pipeline_of("p", {}).derived[0], was={"who": "user"}).table
        )
    with pytest.raises(SpecError, match="cannot have been 'who'"):
        _ = replace(pipeline_of("p", {"pages": Declared("number")}).derived[0], was={"pages": "who"}).table
    with pytest.raises(SpecError, match="was names nobody"):
        _ = replace(pipeline_of("p", {}).derived[0], was={"nobody": "somebody"}).table


def test_a_view_that_uses_a_column_is_not_broken(make: Callable[[], Stage]) -> None:
    stage = make()
    view = f"transformed.{stage.name}_view"
    stage.warehouse.command(f"CREATE VIEW {view} AS SELECT sum(pages) AS p FROM {target_name(stage.table)}", doing="preparing")
    try:
        stage.change("", "metric", Declared("measure"))
        stage.migrate()
        stage.change("pages", "", None)
        with pytest.raises(PreconditionError, match=f"{view} use the column pages"):
            stage.migrate("pages")
    finally:
        stage.warehouse.command(f"DROP VIEW {view}", doing="cleaning up")
    stage.migrate("pages")
    stage.assert_holds()


def test_what_the_target_itself_makes_of_a_column_is_not_broken(make: Callable[[], Stage]) -> None:
    stage = make()
    target = target_name(stage.table)
    stage.warehouse.command(f"ALTER TABLE {target} ADD INDEX by_pages pages TYPE minmax", doing="preparing")
    stage.change("pages", "views", Declared("number", 1, was=("pages",)))
    with pytest.raises(
        PreconditionError, match="its own indexes, projections, constraints, defaults or TTL use the column pages"
    ):
        stage.migrate()
    stage.warehouse.command(f"ALTER TABLE {target} DROP INDEX by_pages", doing="preparing")
    stage.migrate()
    stage.build(START, 1)
    stage.assert_holds()


def test_a_materialized_view_goes_on_when_a_column_is_added(make: Callable[[], Stage]) -> None:
    """Rows are inserted then, for the view to see them, and it adds up what it did before."""
    stage = make()
    view = f"transformed.{stage.name}_totals"
    stage.warehouse.command(
        f"CREATE MATERIALIZED VIEW {view} ENGINE = SummingMergeTree ORDER BY hour AS "
        f"SELECT hour, sum(pages * sign) AS total FROM {target_name(stage.table)} GROUP BY hour",
        doing="preparing",
    )
    try:
        stage.build(START, 1)
        stage.change("", "metric", Declared("measure"))
        stage.migrate()
        stage.build(START, 1)
        stage.build(START + HOUR, 10)
        stage.assert_holds()
        totals = stage.warehouse.rows(f"SELECT sum(total) FROM {view} GROUP BY hour ORDER BY hour", doing="looking")
        assert totals == [(2 + 3,), (11 + 12,)]
    finally:
        stage.warehouse.command(f"DROP VIEW {view}", doing="cleaning up")


def test_nobody_may_be_at_work(make: Callable[[], Stage]) -> None:
    stage = make()
    stage.change("", "metric", Declared("measure"))
    lease = Lease(stage.warehouse, stage.table, [START], attempt="somebody", token="t", exclusive=True, seconds=5)
    lease.take()
    with pytest.raises(HourLeased, match="is being repaired by somebody_t"):
        stage.migrate()
    lease.release()
    stage.migrate()


def test_a_declared_column_is_not_dropped(make: Callable[[], Stage]) -> None:
    with pytest.raises(UsageError, match="pages cannot be dropped"):
        make().plan("pages")
