"""Every kind of target, one body of tests: attached or inserted, versioned or not, with and without a view on it."""

from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from backfill_platform.adapters.clickhouse import client
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.preconditions import check_target
from backfill_platform.adapters.clickhouse.publishing.patches import load_undone, undoable
from backfill_platform.adapters.clickhouse.publishing.prepare import prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.adapters.clickhouse.target import Mode, Target
from backfill_platform.domain.tables import Partitioning, Table
from backfill_platform.errors import PreconditionError, WarehouseUnavailable
from backfill_platform_tests.adapters.clickhouse.conftest import MakeTable
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    KINDS,
    LATE,
    MIDNIGHT,
    REMEMBERS,
    TEN,
    TWELVE,
    VERSIONED,
    VISITS,
    Row,
    as_counter,
    assert_holds,
    attempt,
    counts,
    create_as,
    create_kind,
    net_rows,
    outside,
    repair,
    statuses,
    view_totals,
    visit,
    write_live,
)

HOURS = [TEN, ELEVEN, LATE, MIDNIGHT]
OLD = [visit(hour, f"visitor {number}", pages=1) for hour in HOURS for number in range(30)] + [visit(TWELVE, "outside")]
NEW = [row | {"pages": 2, "country": None} if row["visitor"] > "visitor 2" else row for row in OLD[:-1]]
NEW = [row for row in NEW if row["visitor"] != "visitor 0"] + [visit(hour, "added") for hour in HOURS]
OUTSIDE = OLD[-1:]


@pytest.fixture(
    params=[(kind, partitioning) for kind in KINDS for partitioning in (Partitioning.DAY, Partitioning.HOUR)],
    ids=lambda p: f"{p[0]}, {p[1]}",
)
def target(request: pytest.FixtureRequest, warehouse: Warehouse, declared: MakeTable) -> Table:
    """A target of each kind that holds OLD."""
    kind, partitioning = request.param
    table = declared(partitioning)
    create_kind(warehouse, table, kind)
    write_live(warehouse, table, OLD)
    return table


def assert_view_agrees(warehouse: Warehouse, table: Table, rows: list[Row]) -> None:
    if check_target(warehouse, table).views:
        visits: Counter[datetime] = Counter(row["hour"] for row in rows)
        pages = {hour: sum(row["pages"] for row in rows if row["hour"] == hour) for hour in visits}
        assert view_totals(warehouse, table) == {hour: (pages[hour], visits[hour]) for hour in visits}


def test_only_what_differs_is_written_and_the_view_sees_it(warehouse: Warehouse, target: Table) -> None:
    far = outside(warehouse, target, HOURS)
    results = repair(warehouse, target, HOURS, NEW)
    assert set(statuses(results).values()) == {"published"}
    changed = sum(row not in NEW for row in OLD[:-1])
    assert sum(result.cancels for result in results.values()) == changed
    assert outside(warehouse, target, HOURS) == far
    assert_view_agrees(warehouse, target, NEW + OUTSIDE)
    assert_holds(warehouse, target, NEW + OUTSIDE)


@pytest.mark.whole
def test_publishing_a_change_and_its_reverse_can_both_be_undone(warehouse: Warehouse, target: Table) -> None:
    """Deduplication by content would drop the third publish; one version for two states would let both vanish."""
    for rows in (NEW, OLD[:-1], NEW):
        assert set(statuses(repair(warehouse, target, HOURS, rows)).values()) == {"published"}
        assert_view_agrees(warehouse, target, rows + OUTSIDE)
    again = repair(warehouse, target, HOURS, NEW)
    assert set(statuses(again).values()) == {"unchanged"}
    name = attempt()
    with Staging(warehouse, target, name, HOURS) as staging:
        staging.load_rows(OLD[:-1], counts(OLD[:-1]))
        publish(prepare(staging, HOURS))
    assert undoable(warehouse, target, name, HOURS).conflicts == 0
    with Staging(warehouse, target, attempt(), HOURS) as staging:
        load_undone(staging, name, HOURS)
        publish(prepare(staging, HOURS))
    assert_view_agrees(warehouse, target, NEW + OUTSIDE)
    assert_holds(warehouse, target, NEW + OUTSIDE)


def test_a_delta_survives_merges_without_the_rows_that_it_cancels(warehouse: Warehouse, target: Table) -> None:
    """Were a state before its cancel in one part, such a merge would let both vanish, and FINAL be right until then."""
    warehouse.command(f"SYSTEM STOP MERGES {target_name(target)}", doing="preparing")
    old = _parts(warehouse, target)
    repair(warehouse, target, HOURS, NEW)
    write_live(warehouse, target, [visit(hour, "zz") for hour in HOURS])
    for part in old:
        warehouse.command(f"ALTER TABLE {target_name(target)} DETACH PART '{part}'", doing="setting old rows aside")
    warehouse.command(f"SYSTEM START MERGES {target_name(target)}", doing="merging")
    warehouse.command(f"OPTIMIZE TABLE {target_name(target)} FINAL", doing="merging without the old rows")
    cancels, states = (as_counter(row for row in rows if row not in others) for rows, others in ((OLD[:-1], NEW), (NEW, OLD)))
    states.update(as_counter(visit(hour, "zz") for hour in HOURS))
    states.subtract(cancels)
    assert net_rows(warehouse, target) == states


def _parts(warehouse: Warehouse, table: Table) -> list[str]:
    rows = warehouse.rows(
        "SELECT name FROM system.parts WHERE table = {name:String} AND database = 'transformed' AND active",
        parameters={"name": table.name},
        doing="looking for parts",
    )
    return [name for (name,) in rows]


def test_inserting_cancels_and_states_separately_gives_the_same(
    warehouse: Warehouse, declared: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on servers that sort rows of one key unstably."""
    monkeypatch.setattr("backfill_platform.adapters.clickhouse.preconditions.STABLE_SORT_SINCE", (99,))
    table = declared()
    create_kind(warehouse, table, "insert, with a view")
    write_live(warehouse, table, OLD)
    taken: list[str] = []
    repair(warehouse, table, HOURS, NEW, on_step=taken.append)
    assert taken.count("inserted") == 4  # two days, cancels and states
    assert_view_agrees(warehouse, table, NEW + OUTSIDE)
    assert_holds(warehouse, table, NEW + OUTSIDE)


# --- answers that get lost ---


class Losing(Warehouse):
    """Loses the answer to every first try of an insert into the target, after the server has acted."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.lost = 0

    def command(self, sql: str, **options: Any) -> None:
        super().command(sql, **options)
        if sql.startswith("INSERT INTO `transformed`.") and str(options.get("query_id")).endswith(":1"):
            self.lost += 1
            raise WarehouseUnavailable("the line went dead")


@pytest.fixture
def losing(warehouse_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)
    connection = Losing(warehouse_url)
    yield connection
    connection.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "view" in kind])
def test_an_insert_without_an_answer_is_sent_again_and_stored_once(
    warehouse: Warehouse, losing: Losing, declared: MakeTable, kind: str
) -> None:
    table = declared()
    create_kind(warehouse, table, kind)
    write_live(warehouse, table, OLD)
    assert set(statuses(repair(losing, table, HOURS, NEW)).values()) == {"published"}
    assert losing.lost == 2
    assert_view_agrees(warehouse, table, NEW + OUTSIDE)
    assert_holds(warehouse, table, NEW + OUTSIDE)


@pytest.mark.parametrize("forgetful", ["target", "view"])
def test_an_insert_is_not_sent_again_where_a_table_forgets_tokens(
    warehouse: Warehouse, losing: Losing, declared: MakeTable, forgetful: str
) -> None:
    """The next attempt finds out what happened to the target; the view got it once."""
    table = declared()
    create_as(warehouse, table, *(() if forgetful == "target" else (REMEMBERS,)))
    warehouse.command(
        f"CREATE MATERIALIZED VIEW transformed.{table.name}_totals ENGINE = SummingMergeTree ORDER BY hour AS SELECT hour, "
        f"sum(pages * sign) AS pages, sum(toInt64(sign)) AS visits FROM {target_name(table)} GROUP BY hour",
        doing="preparing",
    )
    write_live(warehouse, table, OLD[:30])
    assert not check_target(warehouse, table).repeatable
    with pytest.raises(WarehouseUnavailable):
        repair(losing, table, [TEN], [row for row in NEW if row["hour"] == TEN])
    assert losing.lost == 1
    assert set(statuses(repair(warehouse, table, [TEN], [row for row in NEW if row["hour"] == TEN])).values()) == {"unchanged"}
    assert_view_agrees(warehouse, table, [row for row in NEW if row["hour"] == TEN])


# --- what the mode is chosen from ---


def test_the_mode_is_chosen_from_what_the_table_is(warehouse: Warehouse, declared: MakeTable) -> None:
    targets = {}
    for kind in KINDS:
        table = declared()
        create_kind(warehouse, table, kind)
        targets[kind] = check_target(warehouse, table)
    assert {kind: target.mode for kind, target in targets.items()} == {
        kind: Mode.INSERT if "insert" in kind else Mode.ATTACH for kind in KINDS
    }
    assert {kind: target.version for kind, target in targets.items()} == {
        kind: "version" if "versioned" in kind else None for kind in KINDS
    }
    assert "no materialized view" in targets["attach"].why
    assert "_totals_view must see it" in targets["insert, with a view"].why


@pytest.mark.parametrize(
    ("engine", "version"),
    [("ReplicatedCollapsingMergeTree", None), ("ReplicatedVersionedCollapsingMergeTree", "version")],
)
def test_replicated_targets_use_inserts_and_plain_staging_tables(engine: str, version: str | None) -> None:
    target = Target(VISITS, engine, version)
    assert target.mode is Mode.INSERT
    assert "replicas" in target.why
    assert target.plain_engine.startswith(engine.removeprefix("Replicated") + "(`sign`")
    assert "Replicated" not in target.plain_engine


def test_a_view_created_during_the_repair_stops_the_publish(warehouse: Warehouse, visits: Table) -> None:
    def interfere(step: str) -> None:
        if step == "proven":
            warehouse.command(
                f"CREATE MATERIALIZED VIEW transformed.{visits.name}_totals_view ENGINE = MergeTree ORDER BY hour "
                f"AS SELECT hour FROM {target_name(visits)}",
                doing="coming between",
            )

    with pytest.raises(PreconditionError, match="was altered during the repair"):
        repair(warehouse, visits, [TEN], [visit(TEN, "ada")], on_step=interfere)
    assert_holds(warehouse, visits, [])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ((VERSIONED, ("version UInt64", "version UInt8")), r"neither \(U\)Int32 nor \(U\)Int64"),
        ((VERSIONED, ("MergeTree(`sign`, version)", "MergeTree(`sign`, `pages`)")), "version column pages is declared"),
        (
            (VERSIONED, ("MergeTree(`sign`, version)", "MergeTree(s, version)"), ("version UInt64", "version UInt64, s Int8")),
            "a column other than sign",
        ),
    ],
    ids=["small version", "declared version", "another sign"],
)
def test_a_versioned_table_that_cannot_be_repaired_is_refused(
    warehouse: Warehouse, declared: MakeTable, changes: tuple[tuple[str, str], ...], said: str
) -> None:
    table = declared()
    create_as(warehouse, table, *changes)
    with pytest.raises(PreconditionError, match=said):
        check_target(warehouse, table)


def test_a_version_that_cannot_be_counted_up_refuses_its_hour_alone(warehouse: Warehouse, declared: MakeTable) -> None:
    table = declared()
    create_kind(warehouse, table, "attach, versioned")
    write_live(warehouse, table, [visit(TEN, "ada")], version=2**64 - 1)
    write_live(warehouse, table, [visit(ELEVEN, "bob")], version=2**64 - 2)
    new = [visit(TEN, "ada", pages=9), visit(ELEVEN, "bob", pages=9)]
    results = repair(warehouse, table, [TEN, ELEVEN], new)
    assert statuses(results) == {TEN: "refused", ELEVEN: "published"}
    assert "highest UInt64" in results[TEN].reason
    assert_holds(warehouse, table, [visit(TEN, "ada"), new[1]])


def test_an_insert_is_not_sent_again_where_a_view_behind_a_view_forgets_tokens(
    warehouse: Warehouse, declared: MakeTable
) -> None:
    table = declared()
    create_kind(warehouse, table, "insert, with a view")
    assert check_target(warehouse, table).repeatable
    second = f"transformed.{table.name}_second"
    warehouse.command(
        f"CREATE MATERIALIZED VIEW {second} ENGINE = SummingMergeTree ORDER BY hour "
        f"AS SELECT hour, pages FROM transformed.{table.name}_totals",
        doing="preparing",
    )
    try:
        assert not check_target(warehouse, table).repeatable
    finally:
        warehouse.command(f"DROP TABLE {second} SYNC", doing="cleaning up")


@pytest.mark.parametrize("setting", ["final=1", "join_use_nulls=1", "additional_table_filters={'transformed.%': 'pages = 1'}"])
def test_settings_of_a_user_profile_change_nothing(
    warehouse: Warehouse, warehouse_url: str, visits: Table, setting: str
) -> None:
    """Settings that a user profile may have, passed as defaults of the connection."""
    name, _, value = setting.partition("=")
    write_live(warehouse, visits, OLD)
    line = Warehouse(warehouse_url, settings={name: value.replace("%", visits.name)})
    own = attempt()
    with Staging(line, visits, own, HOURS) as staging:
        staging.load_rows(NEW, counts(NEW))
        results = publish(prepare(staging, HOURS))
    assert sum(result.cancels for result in results) == sum(row not in NEW for row in OLD[:-1])
    assert undoable(line, visits, own, HOURS).conflicts == 0
    with Staging(line, visits, attempt(), HOURS) as staging:
        load_undone(staging, own, HOURS)
        publish(prepare(staging, HOURS))
    line.close()
    assert_holds(warehouse, visits, OLD)
