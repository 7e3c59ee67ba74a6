from datetime import timedelta

import pytest

from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import Action, Node, make_plan
from backfill_platform.domain.tables import Column, ColumnType, Layer, Table
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
HOURLY = Node(Table(Layer.AGGREGATED, "hourly", COLUMNS), SESSIONS.table, published=True)
NODES = (RAW, SESSIONS, HOURLY)


def steps(*assets: str) -> list[tuple[Action, str, bool, bool]]:
    paths = [(asset.split("/")[0], asset.split("/")[1]) for asset in assets]
    plan = make_plan("clicks", NODES, HOURS, paths)
    return [(step.action, step.node.table.name, step.promote, step.from_branch) for step in plan.steps]


def test_everything_runs_in_the_order_of_the_flow() -> None:
    chosen = ["warehouse/hourly", "raw/clicks", "aggregated/hourly", "warehouse/sessions", "transformed/sessions"]
    assert steps(*chosen) == [
        (Action.LAND, "clicks", True, False),
        (Action.BUILD, "sessions", True, False),
        (Action.PUBLISH, "sessions", False, False),
        (Action.BUILD, "hourly", True, False),
        (Action.PUBLISH, "hourly", False, False),
    ]


def test_a_dry_run_computes_what_it_needs_on_the_branch() -> None:
    assert steps("dry_run/hourly") == [
        (Action.BUILD, "sessions", False, False),
        (Action.BUILD, "hourly", False, True),
        (Action.DRY_RUN, "hourly", False, True),
    ]


def test_a_dry_run_beside_a_real_build_compares_what_was_built() -> None:
    assert steps("transformed/sessions", "dry_run/sessions") == [
        (Action.BUILD, "sessions", True, False),
        (Action.DRY_RUN, "sessions", False, False),
    ]


def test_publishing_alone_takes_the_lake_as_it_is() -> None:
    assert steps("warehouse/sessions") == [(Action.PUBLISH, "sessions", False, False)]


def test_each_step_says_what_it_will_do() -> None:
    plan = make_plan("clicks", NODES, HOURS, [("transformed", "sessions"), ("dry_run", "hourly")])
    sessions, hourly, dry_run = plan.steps
    assert "30 min before" in sessions.explanation
    assert "until every client is silent for 30 min (at most 1 d)" in sessions.explanation
    assert "exactly these hours" in hourly.explanation
    assert "main stays as it is" in hourly.explanation
    assert "change nothing" in dry_run.explanation
    assert dry_run.asset == ("dry_run", "hourly")


def test_an_asset_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"no asset warehouse/clicks; it has .*warehouse/sessions"):
        steps("warehouse/clicks")
