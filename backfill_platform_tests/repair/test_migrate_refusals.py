"""What a migration refuses, and what of others' it does not break."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from backfill_platform.adapters.clickhouse.publishing.leases import Lease
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.domain.hours import HOUR
from backfill_platform.errors import HourLeased, PreconditionError, SpecError, UsageError
from backfill_platform_tests.repair.migrations import START, Declared, Stage, pipeline_of

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
