"""Every check of every table of every shipped pipeline refuses data that it must refuse.

The checks are asked of the declarations: a new column, check or pipeline without data that must fail fails here. A row that
lacks a value is made for each column that needs one; everything else is written down below.
"""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from backfill_platform import examples
from backfill_platform.adapters.spark.checks import FAILED, HourRule, PanderaRule, RowRule, mark_failures
from backfill_platform.adapters.spark.reader import spark_schema
from backfill_platform.pipelines.registry import load_pipelines
from backfill_platform_tests.events import T0

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]
Failed = dict[str, list[str]]  # by row rule: the rules that its row fails; the good row goes by the name GOOD
GOOD = ""
MISSING = ": missing"


@dataclass(frozen=True)
class Cases:
    """A row that meets every check, what changes in it to fail each row rule, and the rows that fail each rule of the hour."""

    good: Row
    rows: Mapping[str, Row]
    hours: Mapping[str, list[Row]]


def at_least(low: int, *names: str) -> dict[str, Row]:
    return {f"{name}: greater_than_or_equal_to({low})": {name: low - 1} for name in names}


CASES: dict[str, dict[str, Cases]] = {
    "clickstream": {
        "clickstream": Cases(
            {"ingestion_hour": T0, "event_time": T0, "client_id": 0, "url": "/", "status": 100, "bytes": None},
            {
                **at_least(0, "client_id", "bytes"),
                "url: str_length(1, None)": {"url": ""},
                "status: in_range(100, 599)": {"status": 600},
            },
            {},
        ),
        "sessions": Cases(
            {
                "hour": T0,
                "client_id": 0,
                "started_at": T0,
                "ended_at": T0,
                "duration_seconds": 0,
                "requests": 1,
                "errors": 0,
                "bytes": 0,
                "entry_url": "/",
                "is_open": False,
            },
            {
                **at_least(0, "client_id", "duration_seconds", "errors", "bytes"),
                **at_least(1, "requests"),
                "starts before it ends": {"ended_at": T0 - timedelta(microseconds=1)},
                "errors within requests": {"errors": 2},
            },
            {},
        ),
        "site_hourly": Cases(
            {
                "hour": T0,
                "sessions": 1,
                "open_sessions": 0,
                "requests": 1,
                "unique_clients": 1,
                "bytes": 0,
                "errors": 0,
                "error_rate": 1.0,
                "duration_p50_seconds": 0,
                "duration_p90_seconds": 0,
                "duration_p99_seconds": 0,
            },
            {
                **at_least(0, "open_sessions", "bytes", "errors"),
                **at_least(0, "duration_p50_seconds", "duration_p90_seconds", "duration_p99_seconds"),
                **at_least(1, "sessions", "requests", "unique_clients"),
                "error_rate: in_range(0, 1)": {"error_rate": 1.01},
            },
            {"one row": [{}, {}], "clients within sessions": [{"unique_clients": 2}]},
        ),
    },
    "payments": {
        "payments": Cases(
            {
                "ingestion_hour": T0,
                "event_time": T0,
                "household_id": 1,
                "store_id": 1,
                "basket_id": 1,
                "product_id": 1,
                "quantity": 0,
                "sales_cents": 0,
            },
            {**at_least(1, "household_id", "store_id", "basket_id", "product_id"), **at_least(0, "quantity", "sales_cents")},
            {},
        ),
        "velocity": Cases(
            {
                "hour": T0,
                "household_id": 1,
                "paid_at": T0,
                "store_id": 1,
                "basket_id": 1,
                "lines": 1,
                "amount_cents": 0,
                "payments_trailing": 1,
                "amount_trailing_cents": 0,
            },
            {
                **at_least(1, "household_id", "store_id", "basket_id", "lines", "payments_trailing"),
                **at_least(0, "amount_cents"),
                "amount within the trailing hour": {"amount_cents": 1},
                "owned by its hour": {"paid_at": T0 + timedelta(hours=1)},
            },
            {},
        ),
        "payments_hourly": Cases(
            {
                "hour": T0,
                "payments": 1,
                "amount_cents": 0,
                "households": 1,
                "repeated": 0,
                "most_payments_trailing": 1,
                "most_amount_trailing_cents": 0,
            },
            {
                **at_least(1, "payments", "households", "most_payments_trailing"),
                **at_least(0, "amount_cents", "repeated", "most_amount_trailing_cents"),
            },
            {
                "one row": [{}, {}],
                "households within payments": [{"households": 2}],
                "repeated within payments": [{"repeated": 2}],
            },
        ),
    },
    "playbacks": {
        "playbacks": Cases(
            {"ingestion_hour": T0, "event_time": T0, "kind": "play", "event_id": "p", "user_id": 1, "title_id": 1},
            {
                **at_least(1, "user_id", "title_id"),
                "kind: isin(['impression', 'play'])": {"kind": "pause"},
                "event_id: str_length(1, None)": {"event_id": ""},
            },
            {},
        ),
        "attribution": Cases(
            {
                "hour": T0,
                "user_id": 1,
                "title_id": 1,
                "shown_at": T0,
                "impression_id": "i",
                "plays": 1,
                "first_play_id": "p",
                "first_played_at": T0,
            },
            {
                **at_least(1, "user_id", "title_id"),
                "impression_id: str_length(1, None)": {"impression_id": ""},
                "plays: greater_than_or_equal_to(0)": {"plays": -1, "first_play_id": None},
                "a first play where there are plays": {"plays": 0},
                "played within four hours": {"first_played_at": T0 + timedelta(hours=4)},
            },
            {},
        ),
        "playbacks_hourly": Cases(
            {"hour": T0, "impressions": 2, "played": 1, "plays": 1, "play_rate": 0.5},
            {
                **at_least(1, "impressions"),
                **at_least(0, "played", "plays"),
                "play_rate: in_range(0, 1)": {"play_rate": 1.01},
            },
            {"one row": [{}, {}], "played within impressions": [{"played": 3}], "played within plays": [{"played": 2}]},
        ),
    },
}

MODULES = [f"{examples.__name__}.{module.name}" for module in pkgutil.iter_modules(examples.__path__)]
PIPELINES = load_pipelines(module for module in MODULES if not module.endswith(("_reference", "_rule")))
TABLES = [(pipeline.name, table.name) for pipeline in PIPELINES.values() for table in pipeline.tables]
RULES = [
    pytest.param(name, table, rule, id=f"{table}-{rule.name}")
    for name, table in TABLES
    for rule in (*PIPELINES[name].rules(table).rows, *PIPELINES[name].rules(table).blocking)
]


def frame_of(spark: "SparkSession", pipeline: str, table: str, changes: list[Row]) -> "DataFrame":
    declared = PIPELINES[pipeline].declared(table).table
    good = CASES[pipeline][table].good
    rows = [tuple({**good, **change}[name] for name in declared.column_names) for change in changes]
    return spark.createDataFrame(rows, spark_schema(declared)).coalesce(1)


def must_fail(pipeline: str, table: str, rule: RowRule) -> Row:
    if rule.name.endswith(MISSING):
        return {rule.name.removesuffix(MISSING): None}
    return CASES[pipeline][table].rows[rule.name]


@pytest.fixture(scope="module")
def failed(spark: "SparkSession") -> dict[tuple[str, str], Failed]:
    """By pipeline and table: what the good row fails, and what the row made for each row rule fails."""
    failed = {}
    for name, table in TABLES:
        rules = PIPELINES[name].rules(table)
        changes = {GOOD: {}, **{rule.name: must_fail(name, table, rule) for rule in rules.rows}}
        marked = mark_failures(frame_of(spark, name, table, list(changes.values())), rules).collect()
        failed[name, table] = {rule: row[FAILED] for rule, row in zip(changes, marked, strict=True)}
    return failed


@pytest.mark.parametrize(("pipeline", "table", "rule"), RULES)
def test_every_check_rejects_the_rows_it_should(
    spark: "SparkSession",
    failed: dict[tuple[str, str], Failed],
    pipeline: str,
    table: str,
    rule: RowRule | HourRule | PanderaRule,
) -> None:
    if isinstance(rule, RowRule):
        by_row = failed[pipeline, table][rule.name]
        # What is missing can fail a rule that compares it, too.
        assert rule.name in by_row if rule.name.endswith(MISSING) else by_row == [rule.name]
        return
    cases = CASES[pipeline][table]
    hours: tuple[list[Row], ...] = ([{}], cases.hours[rule.name])
    verdicts = [holds(rule, frame_of(spark, pipeline, table, rows)) for rows in hours]
    assert verdicts == [True, False]


def holds(rule: HourRule | PanderaRule, frame: "DataFrame") -> bool:
    if isinstance(rule, PanderaRule):
        return not rule.find_error(frame)
    return bool(frame.agg(rule.holds().alias("holds")).collect()[0]["holds"])


@pytest.mark.parametrize(("pipeline", "table"), TABLES)
def test_a_good_row_passes_every_check_and_every_case_belongs_to_a_check(
    failed: dict[tuple[str, str], Failed], pipeline: str, table: str
) -> None:
    assert failed[pipeline, table][GOOD] == []
    rules, cases = PIPELINES[pipeline].rules(table), CASES[pipeline][table]
    assert set(cases.rows) == {rule.name for rule in rules.rows if not rule.name.endswith(MISSING)}
    assert set(cases.hours) == {rule.name for rule in rules.blocking}
    assert set(cases.good) == set(PIPELINES[pipeline].declared(table).table.column_names)
