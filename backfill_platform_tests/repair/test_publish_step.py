"""Publishing what the lake has: what is allowed by name, what is refused, and what the ledger knows of it afterwards."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing import publish as protocol
from backfill_platform.adapters.clickhouse.publishing.staging import Loading
from backfill_platform.adapters.clickhouse.sql import names, target_name
from backfill_platform.adapters.clickhouse.state.ledger import Ledger, LedgerEntry
from backfill_platform.detection.survey import survey
from backfill_platform.domain.change_limits import ChangeLimits
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.tables import Table
from backfill_platform.errors import UsageError, WarehouseUnavailable
from backfill_platform.planning.explain import explain
from backfill_platform.repair.audit_log import check_claims
from backfill_platform.repair.publish import Publishing
from backfill_platform.repair.undo import UndoScope
from backfill_platform.reports.facts import facts_of, tables_of
from backfill_platform_tests.events import hour
from backfill_platform_tests.fixtures_world import HOURS
from backfill_platform_tests.world import World, warehouse_asset

SECOND = HourRange(hour(1), hour(2))

pytestmark = pytest.mark.whole  # each test repairs a published world; the protocol itself is tested beside it, in the fast tier


@pytest.fixture
def world(published: World) -> Iterator[World]:
    """The published world; whatever a test does to it is repaired."""
    yield published
    for table in published.pipeline.published:
        published.warehouse.command(f"SYSTEM START MERGES {target_name(table)}", doing="cleaning up")
    published.run([warehouse_asset(published.sessions), warehouse_asset(published.hourly)], rewrite_inconsistent=True)


@pytest.fixture
def sessions(world: World) -> Table:
    return world.pipeline.published[0]


def damaged(world: World) -> None:
    world.damage(world.sessions, "UPDATE bytes = bytes + 1", hour(1))


def publish(world: World, **options: Any) -> dict[datetime, str]:
    outcomes = world.run([warehouse_asset(world.sessions)], **options)
    return {at: outcome.error for at, outcome in outcomes[warehouse_asset(world.sessions)].items()}


def entries(world: World, table: Table, at: datetime, repair: int | None = None) -> list[LedgerEntry]:
    found = Ledger(world.warehouse).read(target=str(table), hours=[at])
    return [entry for entry in found if repair is None or entry.repair_id == f"r{repair}"]


# --- hours that others may still write ---


def test_an_hour_that_is_not_sealed_is_refused_unless_asked_for(world: World) -> None:
    damaged(world)
    before = world.net()
    late = replace(world.pipeline, seal_after=datetime.now(UTC) - hour(3))  # hours 2 and 3 end within it
    errors = publish(world, pipeline=late)
    assert [bool(errors[hour(n)]) for n in range(HOURS)] == [False, False, False, False]
    world.damage(world.sessions, "UPDATE bytes = bytes + 1", hour(3))
    errors = publish(world, pipeline=late)
    assert "live writers may write it until" in errors[hour(3)]
    assert "allow open hours" in errors[hour(3)]
    assert not publish(world, pipeline=late, allow_open_hours=True)[hour(3)]
    assert world.net() != before


def test_a_day_that_is_not_over_is_not_rewritten_to_rewrite_an_hour(world: World, sessions: Table) -> None:
    """The hour is sealed, the day that shares its partition is not."""
    doubled(world, sessions)
    end_of_day = hour(1).replace(hour=0) + timedelta(days=1)
    live = replace(world.pipeline, seal_after=datetime.now(UTC) - end_of_day + timedelta(hours=1))
    assert "live writers may write it until" in publish(world, pipeline=live, rewrite_inconsistent=True)[hour(1)]
    assert not publish(world, pipeline=live, rewrite_inconsistent=True, allow_open_hours=True)[hour(1)]


# --- healing ---


def doubled(world: World, sessions: Table) -> None:
    columns, name = names(sessions.column_names), target_name(sessions)
    world.warehouse.command(f"SYSTEM STOP MERGES {target_name(sessions)}", doing="preparing")
    world.warehouse.command(
        f"INSERT INTO {name} ({columns}, {sessions.sign}) SELECT {columns}, 1 FROM {name} FINAL "
        f"WHERE hour = toDateTime({int(hour(1).timestamp())})",
        doing="damaging",
    )


def test_an_inconsistent_hour_is_rewritten_when_it_is_asked_for(world: World, sessions: Table) -> None:
    doubled(world, sessions)
    assert "states are stored more than once" in publish(world)[hour(1)]
    assert [gap.kind for gap in survey(world.pipeline, SECOND, world.lake, world.warehouse).gaps] == ["inconsistent"]
    outcomes = world.run([("dry_run", world.sessions)], rewrite_inconsistent=True)
    assert "more than once" in str(facts_of(outcomes["dry_run", world.sessions][hour(1)])["rewritten"])
    assert not publish(world, rewrite_inconsistent=True)[hour(1)]
    (entry,) = entries(world, sessions, hour(1), world.repairs)
    assert (entry.status, "more than once" in entry.note) == ("published", True)
    assert survey(world.pipeline, world.hours, world.lake, world.warehouse).gaps == ()


# --- the ledger ---


def test_the_ledger_counts_at_every_boundary(world: World, sessions: Table) -> None:
    before = world.lake.rows_by_hour(sessions)[hour(1)]
    outcomes = world.run(world.derived, SECOND)
    build, published = entries(world, sessions, hour(1), world.repairs)[::-1]
    assert (build.mode, build.status, build.rows_kept, build.rows_quarantined) == ("build", "done", before, 0)
    assert build.rows_read == facts_of(outcomes[sessions.path][hour(1)])["rows_read"]
    assert build.snapshot_id == world.lake.snapshot(sessions) == published.snapshot_id
    assert (published.mode, published.rows_kept, published.rows_staged) == ("publish", before, before)
    assert (published.publish_mode, published.after) == ("attach", world.net()[world.sessions][hour(1)])
    assert published.input_digest
    world.run([warehouse_asset(world.sessions)], SECOND)
    (again,) = entries(world, sessions, hour(1), world.repairs)
    assert again.input_digest == published.input_digest
    world.run(world.derived, SECOND)
    rebuilt = entries(world, sessions, hour(1), world.repairs)[0]
    assert rebuilt.input_digest == published.input_digest, "built again as it was, it keeps its files"


def test_the_page_of_an_hour_shows_its_ledger(world: World) -> None:
    damaged(world)
    outcomes = world.run([warehouse_asset(world.sessions)], SECOND)
    shown = tables_of(outcomes[warehouse_asset(world.sessions)][hour(1)], world.pipeline.published[0])
    (ledger,) = [rows for rows in shown if rows.title == "ledger"]
    assert ledger.rows[0][1:5] == (f"r{world.repairs}", "publish: published", 1, 1) or ledger.rows[0][2] == "publish: published"
    assert len(ledger.rows) > 1


def test_a_claim_of_the_ledger_is_checked_against_the_data(world: World, sessions: Table) -> None:
    world.run([warehouse_asset(world.sessions)])
    net = world.net()[world.sessions]
    assert set(check_claims(world.warehouse, sessions, net).values()) == {f"r{world.repairs}: holds"}
    damaged(world)
    told = check_claims(world.warehouse, sessions, fingerprints.net(world.warehouse, sessions, list(world.hours)))
    assert [at for at, words in told.items() if "changed since" in words] == [hour(1)]


def test_views_that_may_lack_rows_are_named_once(world: World, sessions: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies after an insert whose answer it never got; the next repair finds the table right and says so."""
    view = f"{target_name(sessions)[:-1]}_view`"
    world.warehouse.command(
        f"CREATE MATERIALIZED VIEW {view} ENGINE = SummingMergeTree ORDER BY hour AS SELECT hour, sum(bytes * sign) AS bytes "
        f"FROM {target_name(sessions)} GROUP BY hour",
        doing="preparing",
    )
    try:
        damaged(world)
        with monkeypatch.context() as patch:

            def insert_and_die(staging: object, statement: str, token: str) -> None:
                world.warehouse.command(statement, doing="inserting")
                raise WarehouseUnavailable("the line went dead")

            patch.setattr(protocol, "_insert", insert_and_die)
            with pytest.raises(WarehouseUnavailable):
                world.run([warehouse_asset(world.sessions)], SECOND)
        dead = f"r{world.repairs}"
        assert [entry.status for entry in entries(world, sessions, hour(1), world.repairs)] == ["publishing"]
        outcomes = world.run([warehouse_asset(world.sessions)], SECOND)
        facts = facts_of(outcomes[warehouse_asset(world.sessions)][hour(1)])
        assert (facts["status"], f"attempt {dead}_" in str(facts["views_to_rebuild"])) == ("unchanged", True)
        assert f"attempt {dead}_" in entries(world, sessions, hour(1), world.repairs)[0].note
        again = world.run([warehouse_asset(world.sessions)], SECOND)
        assert "views_to_rebuild" not in facts_of(again[warehouse_asset(world.sessions)][hour(1)])
    finally:
        world.warehouse.command(f"DROP TABLE {view} SYNC", doing="cleaning up")


def test_views_that_counted_what_is_rewritten_away_are_named(world: World, sessions: Table) -> None:
    view = f"{target_name(sessions)[:-1]}_healed_view`"
    world.warehouse.command(
        f"CREATE MATERIALIZED VIEW {view} ENGINE = SummingMergeTree ORDER BY hour AS SELECT hour, sum(bytes * sign) AS bytes "
        f"FROM {target_name(sessions)} GROUP BY hour",
        doing="preparing",
    )
    try:
        doubled(world, sessions)
        outcomes = world.run([warehouse_asset(world.sessions)], rewrite_inconsistent=True)[warehouse_asset(world.sessions)]
        assert [at for at, outcome in outcomes.items() if "views_to_rebuild" in facts_of(outcome)] == [hour(1)]
        assert "did not see the partition of this hour being rewritten" in str(facts_of(outcomes[hour(1)])["views_to_rebuild"])
    finally:
        world.warehouse.command(f"DROP TABLE {view} SYNC", doing="cleaning up")


# --- the plan, the way rows are loaded, and undo by tenant ---


def test_the_plan_says_how_it_would_publish(world: World, sessions: Table) -> None:
    steps = list(explain(world.plan(world.derived), world.pipeline, world.lake, world.warehouse))
    assert (
        "attach, all hours in one statement" in next(step for step in steps if step.asset.startswith("warehouse/")).explanation
    )
    world.warehouse.command(f"ALTER TABLE {target_name(sessions)} ADD COLUMN surprise Int8", doing="damaging")
    try:
        steps = list(explain(world.plan(world.derived), world.pipeline, world.lake, world.warehouse))
        assert any("surprise is not declared" in step.explanation for step in steps)
    finally:
        world.warehouse.command(f"ALTER TABLE {target_name(sessions)} DROP COLUMN surprise", doing="cleaning up")


def test_rows_may_be_pushed_instead_of_pulled(world: World) -> None:
    """A survey sends the lake's rows, too, where the warehouse cannot reach them."""
    before = world.net()
    damaged(world)
    found = survey(world.pipeline, world.hours, world.lake, world.warehouse, Loading.PUSH)
    assert [(gap.kind, gap.hour) for gap in found.gaps] == [("drifted", hour(1))]
    assert not any(publish(world, publishing=Publishing(Loading.PUSH)).values())
    assert world.net() == before
    assert survey(world.pipeline, world.hours, world.lake, world.warehouse, Loading.PUSH).gaps == ()


def test_one_tenants_rows_are_undone_alone(world: World, sessions: Table) -> None:
    damaged(world)
    broken = per_client(world.warehouse, sessions)
    world.run([warehouse_asset(world.sessions)], SECOND)
    repaired, name = per_client(world.warehouse, sessions), f"r{world.repairs}"
    client = next(client for client in broken if broken[client] != repaired[client])
    (undone,) = world.undo(UndoScope(name, tenant=str(client)))
    assert (undone.table, undone.undoable.conflicts, undone.failed) == (str(sessions), 0, ())
    assert per_client(world.warehouse, sessions) == repaired | {client: broken[client]}
    with pytest.raises(UsageError, match="for nobody that could be undone"):
        world.undo(UndoScope(name, tenant="nobody"))


def per_client(warehouse: Warehouse, sessions: Table) -> dict[int, int]:
    rows = warehouse.rows(
        f"SELECT client_id, sum(bytes * sign) FROM {target_name(sessions)} GROUP BY client_id", doing="looking"
    )
    return dict(rows)


def test_change_limits_may_name_tenants(world: World, sessions: Table) -> None:
    damaged(world)
    outcomes = world.run([warehouse_asset(world.sessions)], SECOND, change_limits=ChangeLimits(tenants=frozenset({"nobody"})))
    assert "rows of other tenants would be written" in outcomes[warehouse_asset(world.sessions)][hour(1)].error
    everybody = frozenset(str(client) for client in per_client(world.warehouse, sessions))
    assert not publish(world, change_limits=ChangeLimits(tenants=everybody))[hour(1)]
