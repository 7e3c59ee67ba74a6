"""Repairs of some tenants' rows: everybody else's stay as they are, in the lake and in the warehouse."""

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.patches import undoable
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.domain.plan import DRY_RUN, WAREHOUSE, Landing
from backfill_platform.errors import UsageError
from backfill_platform.examples import clickstream_reference as reference
from backfill_platform.reports.facts import facts_of
from backfill_platform_tests.events import T0, Click, hour, write_lines
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.whole

HOURS = 3
ADA, BOB, EVE = 1, 2, 3
CLICKS = [
    Click(client, minute * 60, f"/{client}/{minute}")
    for minute in range(0, HOURS * 60, 11)
    for client in (ADA, BOB, EVE)
    if (minute // 11 + client) % 5 < 3  # two sessions at least
]
CHANGED = [click._replace(bytes="99") if click.client in (ADA, BOB) else click for click in CLICKS if click.client != EVE]


@pytest.fixture
def world(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    """Published; then the source changes for Ada and Bob, loses Eve, and lands again."""
    world = World.over(tmp_path, spark, warehouse, [click.line for click in CLICKS], HOURS)
    assert not errors(world.run(world.everything))
    write_lines(tmp_path / "requests.csv", [click.line for click in CHANGED])
    assert not errors(world.run([world.pipeline.raw.table.path], landing=Landing.REPLACE))
    yield world
    world.drop()


def errors(outcomes: Any) -> list[str]:
    return [one.error for by_hour in outcomes.values() for one in by_hour.values() if one.error]


def wanted(world: World, clicks: list[Click]) -> Any:
    """What plain Python makes of the clicks."""
    path = world.folder / "mixed.csv.gz"
    path.write_bytes(gzip.compress("".join(f"{click.line}\n" for click in clicks).encode()))
    return world.wanted(reference.read_requests(path)[0])


def in_warehouse(world: World, *clients: int) -> list[Any]:
    """The rows of sessions of the clients, their hours and all columns."""
    table = world.pipeline.published[0]
    sql = (
        f"SELECT * EXCEPT sign FROM {target_name(table)} FINAL WHERE client_id IN ({', '.join(map(str, clients))}) ORDER BY ALL"
    )
    return world.warehouse.rows(sql, doing="looking")


def in_lake(world: World, *clients: int) -> list[Any]:
    table = world.pipeline.published[0]
    rows = world.lake.read(table, table.column_names, f"client_id in ({', '.join(map(str, clients))})").to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def test_rows_of_one_tenant_are_repaired_and_all_others_stay_as_they_are(world: World) -> None:
    ada, others = in_warehouse(world, ADA), in_warehouse(world, BOB, EVE)
    in_lake_before = in_lake(world, BOB, EVE)
    outcomes = world.run(world.derived, tenants=(str(ADA),))
    assert not errors(outcomes)
    assert in_warehouse(world, BOB, EVE) == others
    assert in_lake(world, BOB, EVE) == in_lake_before
    assert in_warehouse(world, ADA) != ada
    # What was published is what plain Python makes of Ada's new requests and everybody else's old ones.
    mixed = [click for click in CHANGED if click.client == ADA] + [click for click in CLICKS if click.client != ADA]
    assert world.net() == wanted(world, mixed)
    for one in outcomes[WAREHOUSE, world.sessions].values():
        assert facts_of(one)["other_tenants_before"] == facts_of(one)["other_tenants_after"]
    built = outcomes["transformed", world.sessions]
    counted = sum(int(str(facts_of(one)["rows_of_other_tenants"])) for one in built.values())
    assert counted == len(others)
    # For everybody, it is the whole truth again.
    assert not errors(world.run(world.derived))
    assert world.net() == wanted(world, CHANGED)


def test_a_damaged_row_of_somebody_else_is_left_to_its_own_repair(world: World) -> None:
    table = world.pipeline.published[0]
    world.warehouse.command(
        f"INSERT INTO {target_name(table)} SELECT * REPLACE (-1 AS sign) FROM {target_name(table)} FINAL "
        f"WHERE client_id = {BOB} AND hour = toDateTime64('{T0:%Y-%m-%d %H:%M:%S}', 6, 'UTC')",
        doing="losing rows of Bob",
    )
    others = in_warehouse(world, BOB, EVE)
    assert not errors(world.run([(WAREHOUSE, table.name)], tenants=(str(ADA),)))
    assert in_warehouse(world, BOB, EVE) == others
    (entry, *_) = Ledger(world.warehouse).read(target=str(table), hours=[T0], limit=1)
    assert entry.note == "only rows of 1"


def test_a_dry_run_tells_what_would_change_for_the_tenant_alone(world: World) -> None:
    before = world.net()
    alone = world.run(world.dry_runs, tenants=(str(ADA),))[DRY_RUN, world.sessions]
    everybody = world.run(world.dry_runs)[DRY_RUN, world.sessions]
    changed = {at: int(str(facts_of(one)["rows_changed"])) for at, one in alone.items()}
    assert changed == {hour(n): sum(row[0] == hour(n) for row in in_lake(world, ADA)) for n in range(HOURS)}
    assert all(int(str(facts_of(everybody[at])["cancels"])) > rows for at, rows in changed.items())
    assert world.net() == before


def test_what_a_live_writer_writes_for_somebody_else_meanwhile_is_not_undone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, keep = world.pipeline.published[0], Staging.keep_others

    def slowly(self: Staging, tenants: Any) -> None:
        keep(self, tenants)
        if self.table == table:
            self.warehouse.command(
                f"INSERT INTO {target_name(table)} SELECT * REPLACE (4 AS client_id) "
                f"FROM (SELECT * FROM {target_name(table)} FINAL WHERE client_id = {EVE})",
                doing="writing live",
            )

    monkeypatch.setattr(Staging, "keep_others", slowly)
    found = world.run([(WAREHOUSE, table.name)], tenants=(str(ADA),))
    written = {row[0] for row in in_warehouse(world, EVE)}
    assert len(in_warehouse(world, 4)) == len(in_warehouse(world, EVE))
    refused = {at for at, one in found[WAREHOUSE, table.name].items() if "somebody has written the hour" in one.error}
    assert refused == written != set()


def test_an_hour_that_was_never_built_is_not_built_for_one_tenant(world: World) -> None:
    table = world.pipeline.published[0]
    world.lake.remove_hours(table, [hour(1)])
    outcomes = world.run(world.derived, tenants=(str(ADA),))
    failed = {at: one.error for at, one in outcomes[table.path].items() if one.error}
    assert failed.keys() == {hour(1)}
    assert "build it for all tenants first" in failed[hour(1)]
    assert not errors(world.run(world.derived))


def test_undo_takes_back_what_was_done_for_the_tenant(world: World) -> None:
    table = world.pipeline.published[0]
    ada = in_warehouse(world, ADA)
    assert not errors(world.run(world.derived, tenants=(str(ADA),)))
    found = undoable(world.warehouse, table, f"r{world.repairs}", list(world.hours))
    assert sum(found.rows.values()) == len(ada)


def test_what_cannot_be_done_for_some_tenants_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="do it without tenants"):
        world.run(world.derived, tenants=("1",), rewrite_inconsistent=True)
    nobody = replace(world.pipeline, derived=tuple(replace(one, tenant="") for one in world.pipeline.derived))
    with pytest.raises(UsageError, match="declares no tenant column"):
        world.run(world.derived, tenants=("1",), pipeline=nobody)
