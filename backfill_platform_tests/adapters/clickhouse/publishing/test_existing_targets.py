"""Tables that somebody else has made, whatever their names and partitions: published to, damaged, repaired, undone."""

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.preconditions import check_target
from backfill_platform.adapters.clickhouse.publishing.patches import drop_patches, load_undone, undoable
from backfill_platform.adapters.clickhouse.publishing.prepare import prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging, fence
from backfill_platform.adapters.clickhouse.schema import create_target
from backfill_platform.adapters.clickhouse.sql import names, seen, target_name
from backfill_platform.adapters.clickhouse.target import Mode
from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.fingerprint import EMPTY
from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.tables import Column, Layer, Partitioning, Table, TargetEngine, TargetTable
from backfill_platform.errors import CheckFailed, InconsistentHour
from backfill_platform_tests.adapters.clickhouse.visits import TEN, attempt

Row = dict[str, Any]
COLUMNS = (
    Column("hour", ColumnType.TIMESTAMP),
    Column("started", ColumnType.TIMESTAMP),
    Column("tenant", ColumnType.STRING),
    Column("user", ColumnType.INT64),
    Column("pages", ColumnType.INT32),
    Column("note", ColumnType.STRING, nullable=True),
)
PLAIN = Table(Layer.TRANSFORMED, "sessions", COLUMNS, key=("tenant", "user", "started"), tenant="tenant")
HOURS = [TEN, TEN + HOUR, TEN.replace(hour=23), TEN + 14 * HOUR, TEN + 40 * 24 * HOUR]
BESIDE = TEN + 2 * HOUR  # an hour that no repair asks for
_USUAL = "started DateTime64(6, 'UTC'), tenant String, user Int64, pages Int32, note Nullable(String)"


@dataclass(frozen=True)
class Kind:
    """A table of somebody else: its columns besides the usual ones, its clauses, and what of the declaration follows."""

    hour: str = "hour DateTime64(6, 'UTC')"
    more: str = ""
    engine: str = "CollapsingMergeTree(sign)"
    partition: str = "toYYYYMMDD(hour)"
    order: str = "hour, tenant, user, started"
    sign: str = "sign"
    stored_as: str = ""
    expression: str = ""
    partitioning: Partitioning = Partitioning.DAY
    rewritable: bool = True
    deleted: str = ""

    def declared(self) -> Table:
        engine = TargetEngine(self.engine.partition("(")[0].removeprefix("Versioned"))
        place = f"shop_{uuid.uuid4().hex[:6]}"
        target = TargetTable(place, "Sessions of v2", self.sign, self.expression, engine, self.deleted)
        columns = tuple(replace(one, stored_as=self.stored_as) if one.name == "hour" else one for one in COLUMNS)
        return replace(PLAIN, columns=columns, target=target, partitioning=self.partitioning)

    def statement(self, table: Table) -> str:
        sign = f"`{self.sign}` Int8" if table.collapses else ""
        columns = ", ".join(filter(None, [self.hour, _USUAL, self.more, sign]))
        partition = f"PARTITION BY {self.partition}" if self.partition else ""
        remembers = "SETTINGS non_replicated_deduplication_window = 1000"
        clauses = f"ENGINE = {self.engine} {partition} ORDER BY ({self.order}) {remembers}"
        return f"CREATE TABLE {target_name(table)} ({columns}) {clauses}"


KINDS = {
    "another sign": Kind(sign="Sign", engine="CollapsingMergeTree(Sign)"),
    "by hour": Kind(partition="toStartOfHour(hour)", partitioning=Partitioning.HOUR),
    "by week": Kind(partition="toMonday(hour)", partitioning=Partitioning.WEEK),
    "by month": Kind(partition="toYYYYMM(hour)", partitioning=Partitioning.MONTH),
    "by tenant and day": Kind(partition="(tenant, toDate(hour))", rewritable=False),
    "without partitions": Kind(partition="", rewritable=False),
    "another order": Kind(order="tenant, user, hour, started, pages"),
    "own columns": Kind(
        more="loaded_at DateTime64(6) DEFAULT now64(6), day Date MATERIALIZED toDate(hour), stamp DateTime64(9) "
        "MATERIALIZED now64(9), twice Int64 ALIAS pages * 2"
    ),
    "versioned": Kind(more="v UInt32 DEFAULT 7", engine="VersionedCollapsingMergeTree(sign, v)"),
    "hour of seconds": Kind("hour DateTime('UTC')", stored_as="DateTime('UTC')", partition="toDate(hour)"),
    "hour of a zone": Kind("hour DateTime('Asia/Kolkata')", stored_as="DateTime('Asia/Kolkata')", rewritable=False),
    "hour of milliseconds": Kind("hour DateTime64(3, 'America/New_York')", stored_as="DateTime64(3, 'America/New_York')",
                                 rewritable=False),
    "no hour": Kind("", order="tenant, user, started", partition="toYYYYMM(started)", expression="started", rewritable=False),
    "no hour, in a zone": Kind(
        "", order="started, tenant, user", partition="toDate(started, 'Asia/Kolkata')", expression="toStartOfHour(started)",
        rewritable=False,
    ),
    "replacing": Kind(engine="ReplacingMergeTree"),
    "replacing, versioned": Kind(more="v Int16", engine="ReplacingMergeTree(v)", order="tenant, hour, user, started"),
    "replacing, by tenant": Kind(engine="ReplacingMergeTree", partition="tenant", rewritable=False),
    "replacing, marked": Kind(more="v UInt64, gone UInt8", engine="ReplacingMergeTree(v, gone)", deleted="gone"),
    "replacing, marked, at a time": Kind(
        more="at DateTime64(3) DEFAULT now64(3), gone UInt8, more Int64 DEFAULT pages * 3",
        engine="ReplacingMergeTree(at, gone)",
        deleted="gone", order="tenant, user, hour, started, pages", partition="",
        rewritable=False,
    ),
    "plain": Kind(engine="MergeTree", order="user", more="note_length Nullable(UInt64) MATERIALIZED length(note)"),
    "plain, by hour": Kind("hour DateTime('UTC')", stored_as="DateTime('UTC')", engine="MergeTree", order="tuple()",
        partition="toStartOfHour(hour)", partitioning=Partitioning.HOUR),
    "plain, by what changes": Kind(engine="MergeTree", order="pages", partition="pages % 2", rewritable=False),
    "plain, no partitions": Kind(
        "", engine="MergeTree", order="started", partition="", expression="started", rewritable=False,
        more="loaded_at DateTime64(6) DEFAULT now64(6)",
    ),
}  # fmt: skip
COLLAPSING = {name: kind for name, kind in KINDS.items() if kind.declared().collapses}


@pytest.fixture(
    params=[
        *(pytest.param((kind, False), id=kind) for kind in KINDS),
        *(pytest.param((kind, True), id=f"{kind}, a view", marks=pytest.mark.slow) for kind in KINDS),
    ]
)
def existing(request: pytest.FixtureRequest, warehouse: Warehouse) -> Iterator[tuple[Kind, Table]]:
    """A table of each kind, with and without a materialized view of it, and rows that a live writer has written."""
    name, view = request.param
    kind = KINDS[name]
    table = kind.declared()
    yield from made(warehouse, kind, table, view)


def made(warehouse: Warehouse, kind: Kind, table: Table, view: bool = False) -> Iterator[tuple[Kind, Table]]:
    database, _ = table.stored_in
    warehouse.command(f"CREATE DATABASE {database}", doing="preparing")
    warehouse.command(kind.statement(table), doing="preparing")
    if view:
        warehouse.command(
            f"CREATE MATERIALIZED VIEW {database}.totals ENGINE = SummingMergeTree ORDER BY tenant "
            f"AS SELECT tenant, sum(pages * {kind.sign if table.collapses else 1}) AS pages FROM {target_name(table)} "
            "GROUP BY tenant",
            doing="preparing",
        )
    write(warehouse, table, OLD)
    yield kind, table
    fence(warehouse, table)
    drop_patches(warehouse, table, older_than_days=0)
    warehouse.command(f"DROP DATABASE {database} SYNC", doing="cleaning up")


def session(hour: datetime, tenant: str, user: int, **other: Any) -> Row:
    started = hour + timedelta(minutes=user % 60, microseconds=0)
    return {"hour": hour, "started": started, "tenant": tenant, "user": user, "pages": 3, "note": "x", **other}


OLD = [session(hour, tenant, user) for hour in HOURS for tenant in "ab" for user in range(12)] + [session(BESIDE, "a", 59)]
NEW = [{**row, "pages": 4, "note": None} if row["user"] % 3 == 0 else row for row in OLD[:-1] if row["user"] != 1]
NEW += [session(hour, "c", 50) for hour in HOURS]


def write(warehouse: Warehouse, table: Table, rows: Sequence[Row], sign: int = 1) -> None:
    database, name = table.stored_in
    signs = {table.sign: sign} if table.collapses else {}
    columns = (*table.stored_names, *signs)
    data = [[*(row[column] for column in table.stored_names), *signs.values()] for row in rows]
    warehouse.insert_rows(database, name, columns, data, settings={"optimize_on_insert": 0}, doing="writing live")


def lose(warehouse: Warehouse, table: Table, user: int) -> None:
    """Remove the rows of a user, as a writer of the table would."""
    target = check_target(warehouse, table)
    if not table.collapses:
        warehouse.command(f"DELETE FROM {target_name(table)} WHERE user = {user}", doing="damaging")
        return
    warehouse.command(
        f"INSERT INTO {target_name(table)} ({names(target.copied)}, {table.sign}) "
        f"SELECT {names(target.copied)}, -1 FROM ({target.stored(f'user = {user}')})",
        settings={"optimize_on_insert": 0, **target.settings},
        doing="damaging",
    )


def repaired(warehouse: Warehouse, table: Table, rows: Sequence[Row], **options: Any) -> tuple[set[str], str]:
    """Make the hours hold exactly the rows; what became of them, and the name of the repair."""
    name = attempt()
    with Staging(warehouse, table, name, HOURS, rewrites_partitions="rewrite_inconsistent" in options) as staging:
        staging.load_rows(rows, Counter(row["hour"] for row in rows))
        return {str(result.status) for result in publish(prepare(staging, HOURS, **options))}, name


def held(warehouse: Warehouse, table: Table, *, final: bool) -> Counter[tuple[Any, ...]]:
    columns = names(table.stored_names)
    if not table.collapses:
        return Counter(warehouse.rows(f"SELECT {columns} FROM {seen(table)}", doing="reading"))
    if final:
        version = check_target(warehouse, table).version
        latest = f"WHERE {table.sign} = 1 ORDER BY {version} DESC LIMIT 1 BY tenant, user, started" if version else ""
        return Counter(warehouse.rows(f"SELECT {columns} FROM {target_name(table)} FINAL {latest}", doing="reading"))
    rows = warehouse.rows(
        f"SELECT {columns}, sum({table.sign}) AS n FROM {target_name(table)} GROUP BY {columns} HAVING n != 0", doing="reading"
    )
    return Counter({tuple(row): n for *row, n in rows})


def assert_holds(warehouse: Warehouse, table: Table, rows: Sequence[Row], *, views: bool = True) -> None:
    """Net state and FINAL are exactly the rows, before and after all merges; and so is a view of it."""
    wanted = Counter(tuple(row[name] for name in table.stored_names) for row in rows)
    for _ in range(2):
        assert held(warehouse, table, final=False) == wanted
        assert held(warehouse, table, final=True) == wanted
        warehouse.command(f"OPTIMIZE TABLE {target_name(table)} FINAL", doing="merging")
    if views and table.collapses and check_target(warehouse, table).views:
        totals = warehouse.rows(f"SELECT tenant, sum(pages) FROM {table.stored_in[0]}.totals GROUP BY tenant", doing="looking")
        pages: Counter[str] = Counter()
        for row in rows:
            pages[row["tenant"]] += row["pages"]
        assert {name: total for name, total in totals if total} == dict(pages)


def test_a_table_of_somebody_else_is_repaired_and_the_repair_undone(warehouse: Warehouse, existing: tuple[Kind, Table]) -> None:
    kind, table = existing
    create_target(warehouse, table)
    assert check_target(warehouse, table).rewritable == kind.rewritable
    status, name = repaired(warehouse, table, NEW)
    assert status == {"published"}
    assert_holds(warehouse, table, [*NEW, OLD[-1]])
    assert repaired(warehouse, table, NEW)[0] == {"unchanged"}
    lose(warehouse, table, 4)
    write(warehouse, table, [session(HOURS[0], "z", 1)])
    assert repaired(warehouse, table, NEW)[0] == {"published"}
    assert_holds(warehouse, table, [*NEW, OLD[-1]])
    assert undoable(warehouse, table, name, HOURS).conflicts == 0
    with Staging(warehouse, table, attempt(), HOURS) as staging:
        load_undone(staging, name, HOURS)
        assert {str(result.status) for result in publish(prepare(staging, HOURS))} == {"published"}
    assert_holds(warehouse, table, OLD)


def test_hours_are_counted_in_utc_whatever_the_zone_of_the_table(warehouse: Warehouse, existing: tuple[Kind, Table]) -> None:
    _, table = existing
    net = fingerprints.net(warehouse, table, [*HOURS, BESIDE, TEN - HOUR])
    assert {hour: one.rows for hour, one in net.items()} == {**dict.fromkeys(HOURS, 24), BESIDE: 1, TEN - HOUR: 0}
    assert net == fingerprints.final(warehouse, table, net, check_target(warehouse, table))
    assert net[TEN - HOUR] == EMPTY


@pytest.mark.parametrize("name", COLLAPSING)
def test_an_inconsistent_hour_is_rewritten_where_its_partition_is_known(warehouse: Warehouse, name: str) -> None:
    for kind, table in made(warehouse, COLLAPSING[name], COLLAPSING[name].declared()):
        rewrites_inconsistent(warehouse, kind, table)


def rewrites_inconsistent(warehouse: Warehouse, kind: Kind, table: Table) -> None:
    write(warehouse, table, [session(HOURS[0], "q", 3)], sign=-1)
    assert "refused" in repaired(warehouse, table, NEW)[0]
    status, _ = repaired(warehouse, table, NEW, rewrite_inconsistent=True)
    if kind.rewritable:
        assert "refused" not in status
        assert_holds(warehouse, table, [*NEW, OLD[-1]], views=False)  # a rewrite is not seen by views: they are to be rebuilt
    else:
        assert "refused" in status
        with pytest.raises(InconsistentHour, match="it is unknown which hours share a partition"):
            refuse(warehouse, table)


def refuse(warehouse: Warehouse, table: Table) -> None:
    with Staging(warehouse, table, attempt(), HOURS) as staging:
        staging.load_rows(NEW, Counter(row["hour"] for row in NEW))
        for result in publish(prepare(staging, HOURS, rewrite_inconsistent=True)):
            if result.error:
                raise result.error


@pytest.fixture
def own_columns(warehouse: Warehouse) -> Iterator[Table]:
    kind = KINDS["own columns"]
    for _, table in made(warehouse, kind, kind.declared()):
        yield table


def test_a_cancel_has_the_stored_values_of_columns_that_are_not_declared(warehouse: Warehouse, own_columns: Table) -> None:
    """So that sums over them are right before all merges, too, and the times when a row came stay on rows that stay."""
    columns = "tenant, user, started, loaded_at, stamp, day, twice"
    before = set(warehouse.rows(f"SELECT {columns} FROM {target_name(own_columns)}", doing="looking"))
    repaired(warehouse, own_columns, NEW)
    rows = warehouse.rows(
        f"SELECT {columns}, sum(sign) AS n FROM {target_name(own_columns)} GROUP BY ALL HAVING n != 0", doing="looking"
    )
    assert {n for *_, n in rows} == {1}
    kept = {tuple(row) for *row, _ in rows} & before
    assert len(kept) == sum(row in NEW for row in OLD) + 1


@pytest.mark.parametrize("how", Partitioning)
def test_the_hours_of_a_partition_are_those_of_clickhouse(warehouse: Warehouse, how: Partitioning) -> None:
    expression = {"hour": "toStartOfHour(h)", "day": "toYYYYMMDD(h)", "week": "toMonday(h)", "month": "toYYYYMM(h)"}[how]
    for hour in (TEN, datetime.fromisoformat("2024-02-29T23:00+00:00"), datetime.fromisoformat("2023-12-31T00:00+00:00")):
        hours = replace(PLAIN, partitioning=how).partition_hours([hour])
        assert hour in hours
        at = f"arrayMap(n -> toDateTime64({int(hours[0].timestamp())} + 3600 * n, 6, 'UTC'), range(-1, {len(hours) + 1}))"
        ((keys,),) = warehouse.rows(f"SELECT arrayMap(h -> toString({expression}), {at})", doing="computing")
        assert len(set(keys[1:-1])) == 1
        assert not {keys[0], keys[-1]} & set(keys[1:-1])


def test_the_mode_follows_the_views(warehouse: Warehouse, existing: tuple[Kind, Table]) -> None:
    target = check_target(warehouse, existing[1])
    added = Mode.INSERT if target.views else Mode.ATTACH
    assert target.mode is (Mode.REPLACE if target.table.target.replaces_partitions else added)


DAILY = (
    Column("hour", ColumnType.TIMESTAMP, stored_as="Date"),
    Column("user", ColumnType.INT64, stored_as="UInt64"),
    Column("pages", ColumnType.INT32, stored_as="UInt16"),
)
BY_NUMBER = (
    Column("hour", ColumnType.TIMESTAMP),
    Column("day", ColumnType.DATE, stored_as="Date"),
    Column("number", ColumnType.INT32, stored_as="UInt8"),
    Column("user", ColumnType.INT64, stored_as="UInt64"),
    Column("pages", ColumnType.INT32, stored_as="UInt16"),
)


def days(pages: int, hours: Sequence[datetime]) -> list[Row]:
    return [
        {"hour": hour, "day": hour.date(), "number": hour.hour, "user": user, "pages": pages}
        for hour in hours
        for user in (1, 2)
    ]


@pytest.mark.parametrize(
    ("columns", "key", "expression", "clauses", "numbers"),
    [
        (DAILY, ("user",), "", "PARTITION BY hour ORDER BY (user, hour)", [-10, 14]),
        (
            BY_NUMBER,
            ("day", "number", "user"),
            "toDateTime(day, 'UTC') + toIntervalHour(number)",
            "PARTITION BY toYYYYMM(day) ORDER BY (day, number, user)",
            [0, 1, 13, 14],
        ),
    ],
    ids=["a day", "a day and the number of the hour"],
)
def test_the_hour_may_be_a_date_or_computed_from_several_columns(
    warehouse: Warehouse,
    columns: tuple[Column, ...],
    key: tuple[str, ...],
    expression: str,
    clauses: str,
    numbers: list[int],
) -> None:
    hours = [TEN + number * HOUR for number in numbers]
    place = f"shop_{uuid.uuid4().hex[:6]}"
    table = Table(Layer.TRANSFORMED, "by_day", columns, key=key, target=TargetTable(place, "By day", "s", expression))
    definitions = ", ".join(f"{column.name} {column.stored}" for column in table.stored_columns)
    warehouse.command(f"CREATE DATABASE {place}", doing="preparing")
    try:
        warehouse.command(
            f"CREATE TABLE {target_name(table)} ({definitions}, s Int8) ENGINE = CollapsingMergeTree(s) {clauses}",
            doing="preparing",
        )
        first, second = days(1, hours), [*days(2, hours[:1]), *days(1, hours[1:])[1:]]
        first, second = ([{name: row[name] for name in table.column_names} for row in rows] for rows in (first, second))
        for rows in (first, second, first):
            with Staging(warehouse, table, attempt(), hours) as staging:
                staging.load_rows(rows, Counter(row["hour"] for row in rows))
                statuses = [str(result.status) for result in publish(prepare(staging, hours))]
            assert "published" in statuses
            net = fingerprints.net(warehouse, table, hours)
            assert {hour: one.rows for hour, one in net.items()} == Counter(row["hour"] for row in rows)
            assert net == fingerprints.final(warehouse, table, hours)
            stored = warehouse.rows(f"SELECT {names(table.stored_names)} FROM {target_name(table)} FINAL", doing="reading")
            shown = {"hour": "date" if not expression else ""}
            wanted = [tuple(row[n].date() if shown.get(n) == "date" else row[n] for n in table.stored_names) for row in rows]
            assert Counter(stored) == Counter(wanted)
    finally:
        fence(warehouse, table)
        drop_patches(warehouse, table, older_than_days=0)
        warehouse.command(f"DROP DATABASE {place} SYNC", doing="cleaning up")


def test_rows_whose_hour_is_another_one_than_in_the_lake_are_refused(warehouse: Warehouse) -> None:
    kind = KINDS["no hour"]
    for _, table in made(warehouse, kind, kind.declared()):
        wrong = [*NEW[1:], {**NEW[0], "started": NEW[0]["started"] + HOUR}]
        with pytest.raises(CheckFailed, match="the loaded row counts differ from those of the lake"):
            repaired(warehouse, table, wrong)
        assert_holds(warehouse, table, OLD)
