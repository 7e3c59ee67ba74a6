import json
from dataclasses import replace
from datetime import timedelta

import pytest

from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import (
    Branch,
    BuildHours,
    CompareHours,
    Input,
    LandHours,
    Landing,
    LandMargin,
    Node,
    Plan,
    PublishHours,
    RehearseBuild,
    Step,
    branch_of,
    explanation,
    make_plan,
    plan_from_document,
)
from backfill_platform.domain.tables import Column, Layer, Table, TargetTable
from backfill_platform.domain.windows import UntilClosed, Window
from backfill_platform.errors import UsageError

HOURS = HourRange.parse("1998-04-30T22", "1998-05-01T00")
COLUMNS = (Column("hour", ColumnType.TIMESTAMP),)
RAW = Node(Table(Layer.RAW, "clicks", COLUMNS), None)
SESSIONS = Node(
    Table(Layer.TRANSFORMED, "sessions", COLUMNS),
    RAW.table,
    Window(timedelta(minutes=30), UntilClosed("client", timedelta(minutes=30))),
    published=True,
)
USERS = Node(Table(Layer.TRANSFORMED, "users", COLUMNS), RAW.table, published=True)
HOURLY = Node(Table(Layer.AGGREGATED, "hourly", COLUMNS), SESSIONS.table, published=True)
NODES = (RAW, SESSIONS, HOURLY)


def plan_of(*assets: str) -> Plan:
    return make_plan("clicks", NODES, HOURS, [(asset.split("/")[0], asset.split("/")[1]) for asset in assets])


def steps(*assets: str) -> list[Step]:
    return list(plan_of(*assets).steps)


def test_everything_runs_in_the_order_of_the_flow() -> None:
    chosen = ["warehouse/hourly", "raw/clicks", "aggregated/hourly", "warehouse/sessions", "transformed/sessions"]
    assert steps(*chosen) == [
        LandHours(RAW, HOURS),
        BuildHours(SESSIONS, HOURS),
        PublishHours(SESSIONS, HOURS),
        BuildHours(HOURLY, HOURS),
        PublishHours(HOURLY, HOURS),
    ]


def test_a_dry_run_computes_what_it_needs_on_the_branch() -> None:
    assert steps("dry_run/hourly") == [
        RehearseBuild(SESSIONS, HOURS),
        RehearseBuild(HOURLY, HOURS, ("sessions",)),
        CompareHours(HOURLY, HOURS, Branch.REPAIR),
    ]


def test_a_dry_run_beside_a_real_build_compares_what_was_built() -> None:
    assert steps("transformed/sessions", "dry_run/sessions") == [
        BuildHours(SESSIONS, HOURS),
        CompareHours(SESSIONS, HOURS, Branch.MAIN),
    ]


def test_what_is_committed_is_never_computed_from_a_dry_run() -> None:
    rehearsed, _, built = steps("dry_run/sessions", "aggregated/hourly")
    assert isinstance(rehearsed, RehearseBuild)
    assert isinstance(built, BuildHours)
    assert branch_of(built.node.inputs[0], built) is Branch.MAIN


def test_a_dry_run_computes_every_input_that_is_not_built_for_real_and_reads_each_where_it_is() -> None:
    elsewhere = Input(Table(Layer.TRANSFORMED, "others", COLUMNS), elsewhere="other")
    both = replace(HOURLY, beside=(Input(USERS.table), Input(RAW.table), elsewhere))
    nodes = (RAW, SESSIONS, USERS, both)
    plan = make_plan("clicks", nodes, HOURS, [("dry_run", "hourly"), SESSIONS.table.path])
    assert list(plan.steps) == [
        BuildHours(SESSIONS, HOURS),
        RehearseBuild(USERS, HOURS),
        RehearseBuild(both, HOURS, ("users",)),
        CompareHours(both, HOURS, Branch.REPAIR),
    ]
    last = plan.steps[2]
    assert isinstance(last, RehearseBuild)
    assert [branch_of(one, last) for one in both.inputs] == [Branch.MAIN, Branch.REPAIR, Branch.MAIN, Branch.MAIN]
    assert plan_from_document(plan.to_document(), "clicks", nodes) == plan


def test_publishing_alone_takes_the_lake_as_it_is() -> None:
    assert steps("warehouse/sessions") == [PublishHours(SESSIONS, HOURS)]


def test_a_plan_materializes_what_it_was_made_for_and_not_what_it_needs() -> None:
    assert plan_of("dry_run/hourly").assets == (("dry_run", "hourly"),)
    margin = replace(plan_of("transformed/sessions"), steps=(LandMargin(RAW, HOURS), BuildHours(SESSIONS, HOURS)))
    assert margin.assets == (("transformed", "sessions"),)


@pytest.mark.parametrize("landing", Landing)
def test_a_plan_is_the_same_after_it_was_written_and_read(landing: Landing) -> None:
    plan = make_plan("clicks", NODES, HOURS, [asset for node in NODES for asset in node.assets], landing)
    plan = replace(plan, steps=(LandMargin(RAW, HOURS), *plan.steps, *plan_of("dry_run/hourly").steps))
    assert plan_from_document(json.loads(json.dumps(plan.to_document())), "clicks", NODES) == plan


@pytest.mark.parametrize(
    "change",
    [{"pipeline": "others"}, {"steps": [{"do": "fly"}]}, {"steps": 1}, {"from": "yesterday"}, {"to": None}],
)
def test_a_plan_of_something_else_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"plan|hour"):
        plan_from_document({**plan_of("warehouse/sessions").to_document(), **change}, "clicks", NODES)


def test_each_step_says_what_it_will_do() -> None:
    sessions, hourly, dry_run = (explanation(step) for step in steps("transformed/sessions", "dry_run/hourly"))
    assert "30 min before" in sessions
    assert "until every client is silent for 30 min (at most 1 d)" in sessions
    assert "exactly these hours" in hourly
    assert "main stays as it is" in hourly
    assert "publish nothing" in dry_run


def test_a_table_of_another_name_is_named() -> None:
    named = replace(SESSIONS, table=replace(SESSIONS.table, target=TargetTable("shop", "Visits")))
    for kind in (CompareHours, PublishHours):
        assert "beside the warehouse table, compare" in explanation(kind(SESSIONS, HOURS))
        assert "beside the warehouse table shop.Visits, compare" in explanation(kind(named, HOURS))


def test_an_asset_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"no asset warehouse/clicks; it has .*warehouse/sessions"):
        steps("warehouse/clicks")
