from dataclasses import replace
from math import inf, nan
from typing import Literal

import pytest

from backfill_platform.domain.change_limits import ChangeLimits, HourChange
from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.hours import HourRange, parse_hour
from backfill_platform.domain.tables import Column, Layer, Table
from backfill_platform.errors import UsageError

HOUR = parse_hour("1998-04-30T22")
CHANGE = HourChange("transformed/sessions", HOUR, 100, 20, columns=frozenset({"bytes"}), totals={"bytes": (1000, 1500)})


def test_the_default_change_limits_allows_everything() -> None:
    assert ChangeLimits().objections(CHANGE) == ()


@pytest.mark.parametrize(
    ("allows", "refuses", "says"),
    [
        (
            ChangeLimits(hours=HourRange.parse("1998-04-30T22", "1998-04-30T23")),
            ChangeLimits(hours=HourRange.parse("1998-04-30T23", "1998-05-01T00")),
            "of the change limits",
        ),
        (
            ChangeLimits(tables=frozenset({CHANGE.table})),
            ChangeLimits(tables=frozenset({"a/b"})),
            "not one of the tables of the change limits: a/b",
        ),
        (
            ChangeLimits(columns=frozenset({"bytes"})),
            ChangeLimits(columns=frozenset()),
            "bytes would change, the change limits allow none",
        ),
        (ChangeLimits(max_changed_share=0.2), ChangeLimits(max_changed_share=0.19), "20 of 100 stored rows"),
        (ChangeLimits(max_metric_change={"bytes": 0.5}), ChangeLimits(max_metric_change={"bytes": 0.49}), "from 1000 to 1500"),
    ],
)
def test_each_limit_allows_up_to_itself_and_says_what_broke_it(allows: ChangeLimits, refuses: ChangeLimits, says: str) -> None:
    assert allows.objections(CHANGE) == ()
    (objection,) = refuses.objections(CHANGE)
    assert says in objection


def test_filling_an_empty_hour_breaks_no_limit_of_share_or_metric() -> None:
    empty = replace(CHANGE, stored=0, changed=0, added=9, columns=frozenset(), totals={"bytes": (0, 1500)})
    assert ChangeLimits(max_changed_share=0, max_metric_change={"bytes": 0}).objections(empty) == ()


def test_change_limits_is_read_from_a_mapping() -> None:
    given = {
        "hours": {"from": "1998-04-30T22", "to": "1998-04-30T23"},
        "tables": ["transformed/sessions"],
        "columns": [],
        "rows": ["added"],
        "tenants": ["17"],
        "max_changed_share": 1,
        "max_metric_change": {"bytes": 0.5},
    }
    assert ChangeLimits.parse(given) == ChangeLimits(
        hours=HourRange.parse("1998-04-30T22", "1998-04-30T23"),
        tables=frozenset({"transformed/sessions"}),
        columns=frozenset(),
        rows=frozenset({"added"}),
        tenants=frozenset({"17"}),
        max_changed_share=1.0,
        max_metric_change={"bytes": 0.5},
    )
    assert ChangeLimits.parse(given).to_document() == given
    assert ChangeLimits.parse({}) == ChangeLimits()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["bytes"], "change limits are a mapping"),
        ({"max_share": 0.1}, "max_share: extra inputs are not permitted; they have hours, tables"),
        ({"max_changed_share": 20}, "max_changed_share: input should be less than or equal to 1"),
        ({"max_changed_share": True}, "max_changed_share: input should be a valid number"),
        ({"max_changed_share": float("nan")}, "max_changed_share: input should be a finite number"),
        ({"max_metric_change": {"bytes": "half"}}, "max_metric_change.bytes: input should be a valid number"),
        ({"max_metric_change": {"bytes": -1}}, "max_metric_change.bytes: input should be greater than or equal to 0"),
        ({"hours": "1998-04-30T22"}, "{from: HOUR, to: HOUR}"),
        ({"hours": {"from": "yesterday", "to": "today"}}, "'yesterday' is not an hour"),
        ({"tables": "transformed/sessions"}, "tables: it is a list of names"),
        ({"rows": ["gone"]}, "input should be 'added' or 'removed'"),
    ],
)
def test_what_is_no_change_limits_is_refused_with_the_reason(given: object, says: str) -> None:
    with pytest.raises(UsageError) as error:
        ChangeLimits.parse(given)
    assert says in str(error.value)


def test_rows_of_other_tenants_leave_change_limits_of_tenants() -> None:
    change_limits = ChangeLimits.parse({"tenants": ["ada"]})
    change = HourChange("transformed/sessions", HOUR, stored=10, changed=1)
    assert change_limits.objections(replace(change, foreign=(0, ""))) == ()
    assert change_limits.objections(replace(change, foreign=(2, "bob"))) == (
        "2 rows of other tenants would be written, such as 'bob'",
    )
    assert "cannot be told apart by tenant" in change_limits.objections(change)[0]
    assert ChangeLimits().objections(replace(change, foreign=(2, "bob"))) == ()


@pytest.mark.parametrize("word", ["added", "removed"])
def test_limits_of_columns_refuse_rows_that_come_or_go_unless_rows_are_allowed(word: Literal["added", "removed"]) -> None:
    rows = {"added": 0, "removed": 0, word: 3}
    change = replace(CHANGE, changed=0, columns=frozenset(), added=rows["added"], removed=rows["removed"])
    (objection,) = ChangeLimits(columns=frozenset({"bytes"})).objections(change)
    assert objection == f"3 rows would be {word}, the change limits have no `rows: [{word}]`"
    assert ChangeLimits(columns=frozenset({"bytes"}), rows=frozenset({word})).objections(change) == ()
    assert ChangeLimits(rows=frozenset()).objections(change) == (objection,)
    assert ChangeLimits().objections(change) == ()


@pytest.mark.parametrize("before_and_after", [(nan, 5), (5, nan), (inf, 5), (5, inf), (nan, nan), (-inf, -inf)])
def test_a_sum_that_is_no_number_cannot_be_within_a_limit(before_and_after: tuple[float, float]) -> None:
    change = replace(CHANGE, totals={"bytes": before_and_after})
    (objection,) = ChangeLimits(max_metric_change={"bytes": 1e9}).objections(change)
    assert "the sum of bytes would go from" in objection


def test_removing_all_rows_is_not_within_a_metric_limit_even_if_their_sum_is_zero() -> None:
    change = replace(CHANGE, changed=0, removed=100, totals={"bytes": (0, 0)})
    (objection,) = ChangeLimits(max_metric_change={"bytes": 0.5}).objections(change)
    assert objection == "all 100 rows would go, the change limits allow 0.5 of the sum of bytes"


SESSIONS = Table(
    Layer.TRANSFORMED,
    "sessions",
    (
        Column("hour", ColumnType.TIMESTAMP),
        Column("user", ColumnType.INT64),
        Column("bytes", ColumnType.INT64),
        Column("page", ColumnType.STRING),
    ),
    key=("user",),
)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tables": ["transformed/session"]}, "tables names transformed/session; there are transformed/sessions"),
        ({"columns": ["byte"]}, "columns names byte; there are bytes, page"),
        ({"max_metric_change": {"byte": 0.5}}, "max_metric_change names byte; there are bytes"),
        ({"max_metric_change": {"page": 0.5}}, "max_metric_change names page; there are bytes"),
        ({"max_metric_change": {"user": 0.5}}, "max_metric_change names user; there are bytes"),
        ({"tables": [], "columns": ["bytes"]}, "columns names bytes; there are none"),
    ],
)
def test_a_limit_of_something_that_does_not_exist_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=f"^change limits: {says}$"):
        ChangeLimits.parse(given).check_names([SESSIONS])


def test_limits_of_what_exists_are_accepted() -> None:
    given = {"tables": [str(SESSIONS)], "columns": ["bytes", "page"], "max_metric_change": {"bytes": 0}}
    ChangeLimits.parse(given).check_names([SESSIONS])
