"""Tables that take no cancels: what others write meanwhile, and whose version counts."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.preconditions import check_target
from backfill_platform.adapters.clickhouse.publishing.patches import patched_hours
from backfill_platform.adapters.clickhouse.publishing.prepare import prepare
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.sql import EVERY_HOUR, target_name
from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.tables import Column, Partitioning, Table, TargetTable
from backfill_platform.errors import ConcurrentWriter, PreconditionError, ProofFailed
from backfill_platform_tests.adapters.clickhouse.conftest import MakeTable
from backfill_platform_tests.adapters.clickhouse.publishing.test_leftovers import (
    AFTER,
    BEFORE,
    HOURS,
    WrittenMeanwhile,
    dying_publish,
    publish_as,
    undo,
)
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    MIDNIGHT,
    OTHER_ENGINES,
    TEN,
    TWELVE,
    Row,
    assert_holds,
    attempt,
    create_as,
    create_kind,
    net_rows,
    repair,
    statuses,
    visit,
    write_live,
)


@pytest.fixture(params=["replacing", "plain"])
def replaced(request: pytest.FixtureRequest, warehouse: Warehouse, declared: MakeTable) -> Table:
    """A table whose partitions, days, are replaced; it holds BEFORE."""
    table = replace(declared(), target=OTHER_ENGINES[request.param])
    create_kind(warehouse, table, request.param)
    write_live(warehouse, table, BEFORE)
    return table


def at(step: str, do: Callable[[], None], *, once: bool = True) -> Callable[[str], None]:
    """Do something when a step is over, the first time or each time."""
    done: list[str] = []

    def on_step(name: str) -> None:
        if name == step and not (once and done):
            done.append(name)
            do()

    return on_step


def test_what_somebody_writes_to_another_hour_of_the_partition_meanwhile_is_kept(warehouse: Warehouse, replaced: Table) -> None:
    theirs = visit(TWELVE, "theirs")
    results = repair(
        warehouse, replaced, HOURS, AFTER, on_step=at("rewritten", lambda: write_live(warehouse, replaced, [theirs]))
    )
    assert set(statuses(results).values()) == {"published"}
    assert_holds(warehouse, replaced, [*AFTER, theirs])


def test_an_hour_that_somebody_writes_meanwhile_is_refused_with_its_partition(warehouse: Warehouse, replaced: Table) -> None:
    theirs = visit(TEN, "theirs")
    results = repair(
        warehouse, replaced, HOURS, AFTER, on_step=at("rewritten", lambda: write_live(warehouse, replaced, [theirs]))
    )
    assert statuses(results) == {TEN: "refused", ELEVEN: "refused", MIDNIGHT: "published"}
    assert isinstance(results[TEN].error, ConcurrentWriter)
    assert_holds(warehouse, replaced, [*BEFORE[:3], theirs, AFTER[3]])


def test_a_partition_that_somebody_keeps_writing_is_refused(warehouse: Warehouse, replaced: Table) -> None:
    written: list[Row] = []

    def write() -> None:
        written.append(visit(TWELVE, f"theirs {len(written)}"))
        write_live(warehouse, replaced, written[-1:])

    results = repair(warehouse, replaced, [TEN, ELEVEN], AFTER[:3], on_step=at("rewritten", write, once=False))
    assert set(statuses(results).values()) == {"refused"}
    assert_holds(warehouse, replaced, [*BEFORE, *written])


def test_rows_that_are_replaced_in_the_last_instant_are_lost_and_that_is_said(
    warehouse: Warehouse, warehouse_url: str, replaced: Table
) -> None:
    connection = WrittenMeanwhile(warehouse_url)
    connection.prefix = f"ALTER TABLE {target_name(replaced)} REPLACE"
    connection.write = lambda: write_live(warehouse, replaced, [visit(TWELVE, "theirs"), visit(TWELVE, "theirs, too")])
    results = publish_as(connection, replaced, attempt(), AFTER)
    connection.close()
    assert statuses(results) == {TEN: "unverified", ELEVEN: "unverified", MIDNIGHT: "published"}
    assert isinstance(results[TEN].error, ProofFailed)
    assert "somebody inserted 2 rows into partition 19980430 in the instant" in results[TEN].reason
    assert_holds(warehouse, replaced, AFTER)


def test_a_partition_may_become_empty(warehouse: Warehouse, replaced: Table) -> None:
    results = repair(warehouse, replaced, HOURS, AFTER[3:])
    assert statuses(results) == {TEN: "published", ELEVEN: "published", MIDNIGHT: "published"}
    assert_holds(warehouse, replaced, AFTER[3:])


def test_who_dies_after_its_first_partition_is_undone_for_that_one(warehouse: Warehouse, replaced: Table) -> None:
    dead, living = attempt(), attempt()
    dying_publish(warehouse, replaced, dead, AFTER, lambda step: step == "replaced")
    publish_as(warehouse, replaced, living, AFTER)
    assert (patched_hours(warehouse, replaced, dead), patched_hours(warehouse, replaced, living)) == (
        (TEN, ELEVEN),
        (MIDNIGHT,),
    )
    assert undo(warehouse, replaced, dead) == 0
    assert_holds(warehouse, replaced, [*BEFORE[:3], AFTER[3]])


def test_hours_of_one_partition_are_repaired_one_after_the_other(warehouse: Warehouse, replaced: Table) -> None:
    """The lease has all hours of the partitions; all there are, where the table does not say which these are."""
    everywhere = replace(replaced, partitioning=Partitioning.MONTH)
    for table, leased in ((replaced, [(TEN.replace(hour=0), MIDNIGHT)]), (everywhere, [(EVERY_HOUR.start, EVERY_HOUR.end)])):
        with Staging(warehouse, table, attempt(), [TEN, ELEVEN]) as staging:
            rows = warehouse.rows(
                "SELECT DISTINCT first_hour, end_hour FROM backfill.leases WHERE holder = {holder:String}",
                parameters={"holder": staging.lease.holder},
                doing="looking",
            )
        assert [(first, end) for first, end in rows] == leased


def test_rows_that_a_plain_table_has_twice_are_found_and_repaired(warehouse: Warehouse, declared: MakeTable) -> None:
    table = replace(declared(), target=OTHER_ENGINES["plain"])
    create_kind(warehouse, table, "plain")
    write_live(warehouse, table, [*BEFORE, *BEFORE[:1]])
    results = publish_as(warehouse, table, attempt(), BEFORE)
    assert (statuses(results)[TEN], results[TEN].cancels, results[TEN].states) == ("published", 2, 1)
    assert_holds(warehouse, table, BEFORE)
    publish_as(warehouse, table, attempt(), AFTER)
    write_live(warehouse, table, AFTER)
    name = attempt()
    publish_as(warehouse, table, name, BEFORE)
    assert undo(warehouse, table, name) == 0
    assert_holds(warehouse, table, AFTER)


# --- versions ---


@pytest.fixture(params=["", "gone"])
def of_the_lake(request: pytest.FixtureRequest, warehouse: Warehouse, declared: MakeTable) -> Table:
    """A table whose version, the time of a change, comes from the lake; with and without marks of deleted rows."""
    changed = Column("seen_at", ColumnType.TIMESTAMP)
    table = declared()
    columns = tuple(changed if column.name == "seen_at" else column for column in table.columns)
    table = replace(table, columns=columns, target=TargetTable(engine="ReplacingMergeTree", deleted=request.param))
    marked = "ENGINE = ReplacingMergeTree(`version`, `gone`)"
    own = ("ENGINE = ReplacingMergeTree\n", "ENGINE = ReplacingMergeTree(seen_at)\n")
    unused = ("`version` UInt64", "`version` UInt64 DEFAULT 0")
    changes = [(marked, "ENGINE = ReplacingMergeTree(seen_at, gone)"), unused] if request.param else [own]
    create_as(warehouse, table, *changes)
    write_live(warehouse, table, BEFORE)
    return table


def later(rows: list[Row], hours: int) -> list[Row]:
    return [row | {"seen_at": row["seen_at"] + hours * HOUR} for row in rows]


def test_the_version_may_be_the_lakes_own(warehouse: Warehouse, of_the_lake: Table) -> None:
    target = check_target(warehouse, of_the_lake)
    assert (target.version, target.declared_version) == (None, "seen_at")
    assert set(statuses(publish_as(warehouse, of_the_lake, attempt(), AFTER)).values()) == {"published"}
    assert_holds(warehouse, of_the_lake, AFTER)
    name = attempt()
    publish_as(warehouse, of_the_lake, name, later(BEFORE, 1))
    assert_holds(warehouse, of_the_lake, later(BEFORE, 1))


def test_a_row_that_is_stored_with_a_later_version_is_refused_where_it_would_go_on_being_seen(
    warehouse: Warehouse, of_the_lake: Table
) -> None:
    name = attempt()
    publish_as(warehouse, of_the_lake, name, later(AFTER, 1))
    results = publish_as(warehouse, of_the_lake, attempt(), AFTER)
    if of_the_lake.target.deleted:
        assert set(statuses(results).values()) == {"refused"}
        assert isinstance(results[TEN].error, PreconditionError)
        assert "2 rows, such as ('edited'), are or were stored with a later seen_at" in results[TEN].reason
        assert_holds(warehouse, of_the_lake, later(AFTER, 1))
    else:
        assert_holds(warehouse, of_the_lake, AFTER)


@pytest.mark.parametrize("kind", ["UInt8", "Int64", "DateTime", "DateTime('Asia/Kolkata')", "DateTime64(3)", "DateTime64(9)"])
@pytest.mark.parametrize("marks", [False, True])
def test_a_version_of_the_table_is_counted_up(warehouse: Warehouse, declared: MakeTable, kind: str, marks: bool) -> None:
    """And what others write after a repair, at their time, counts again."""
    table = replace(declared(), target=TargetTable(engine="ReplacingMergeTree", deleted="gone" * marks))
    change = (") ENGINE = ReplacingMergeTree\n", f", `version` {kind}) ENGINE = ReplacingMergeTree(`version`)\n")
    create_as(warehouse, table, ("`version` UInt64", f"`version` {kind}") if marks else change)
    first = 100 if "Int" in kind else datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    write_live(warehouse, table, BEFORE, version=first)
    for rows in (AFTER, BEFORE, AFTER):
        assert set(statuses(publish_as(warehouse, table, attempt(), rows)).values()) == {"published"}
        assert_holds(warehouse, table, rows)
    ((most, now),) = warehouse.rows(f"SELECT max(version), now() FROM {target_name(table)}", doing="looking")
    assert most == 103 if "Int" in kind else abs((most.replace(tzinfo=None) - now.replace(tzinfo=None)).total_seconds()) < 20000


def test_after_the_highest_version_no_row_comes(warehouse: Warehouse, declared: MakeTable) -> None:
    table = replace(declared(), target=OTHER_ENGINES["replacing, marked"])
    create_as(warehouse, table, ("`version` UInt64", "`version` UInt8"))
    write_live(warehouse, table, BEFORE, version=255)
    results = publish_as(warehouse, table, attempt(), AFTER)
    assert {str(result.status) for result in results.values()} == {"refused"}
    assert "the highest UInt8 as its version" in results[TEN].reason
    assert net_rows(warehouse, table).total() == len(BEFORE)


def test_a_dry_run_of_a_plain_table_writes_nothing(warehouse: Warehouse, replaced: Table) -> None:
    with Staging(warehouse, replaced, attempt(), HOURS, exclusive=False) as staging:
        staging.load_rows(AFTER, {TEN: 2, ELEVEN: 1, MIDNIGHT: 1})
        prepared = prepare(staging, HOURS)
    assert {hour: (diff.changed, diff.only_here, diff.only_there) for hour, diff in prepared.diffs.items()} == {
        TEN: (1, 0, 0),
        ELEVEN: (0, 1, 1),
        MIDNIGHT: (1, 0, 0),
    }
    assert_holds(warehouse, replaced, BEFORE)


GUARANTEES = {
    "attach": "readers with FINAL, or of sums over sign, see all hours as before or as after; what others write is kept",
    "insert, with a view": "readers with FINAL, or of sums over sign, see each partition as before or as after",
    "replacing, marked": "readers with FINAL see all hours as before or as after, others old rows beside new ones until merges",
    "replacing": "readers with FINAL see each partition as before or as after, what others write to other partitions is kept",
    "plain": "every reader sees each partition as before or as after, what others write to other partitions is kept",
}


@pytest.mark.parametrize("kind", GUARANTEES)
def test_the_guarantee_of_each_engine_is_said(warehouse: Warehouse, declared: MakeTable, kind: str) -> None:
    table = replace(declared(), target=OTHER_ENGINES.get(kind, TargetTable()))
    create_kind(warehouse, table, kind)
    assert GUARANTEES[kind] in check_target(warehouse, table).promise


@pytest.mark.parametrize(
    ("kind", "declares", "says"),
    [
        (
            "plain",
            TargetTable(),
            r"declare target=TargetTable\(engine='MergeTree'\), and its partitions are replaced, or recreate",
        ),
        (
            "replacing",
            TargetTable(engine="MergeTree"),
            r"is MergeTree; declare target=TargetTable\(engine='ReplacingMergeTree'\)",
        ),
        ("replacing, marked", TargetTable(engine="ReplacingMergeTree"), r"declare .*, deleted='gone'\)"),
        ("attach", TargetTable(engine="MergeTree"), "its engine is CollapsingMergeTree, declared is MergeTree; leave out the"),
    ],
)
def test_another_engine_than_declared_is_refused_with_what_to_declare(
    warehouse: Warehouse, declared: MakeTable, kind: str, declares: TargetTable, says: str
) -> None:
    table = declared()
    create_kind(warehouse, replace(table, target=OTHER_ENGINES.get(kind, TargetTable())), kind)
    with pytest.raises(PreconditionError, match=says):
        check_target(warehouse, replace(table, target=declares))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            ("ORDER BY (`hour`, `visitor`)", "ORDER BY `visitor`"),
            r"ORDER BY is \(visitor\) and lacks hour: different rows would",
        ),
        (("toYYYYMMDD(`hour`)", "is_open"), "never takes the place of the old one; recreate it with ORDER BY"),
        (("`version` UInt64", "`version` Date"), "its version column version is Date, which a repair cannot count up"),
        (("`gone` UInt8", "`gone` UInt8, more String"), "column more is not declared"),
    ],
)
def test_a_replacing_table_that_cannot_be_repaired_is_refused(
    warehouse: Warehouse, declared: MakeTable, change: tuple[str, str], says: str
) -> None:
    table = replace(declared(), target=OTHER_ENGINES["replacing, marked"])
    create_as(warehouse, table, change)
    with pytest.raises(PreconditionError, match=says):
        check_target(warehouse, table)
