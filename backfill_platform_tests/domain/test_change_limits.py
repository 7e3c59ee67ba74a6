from dataclasses import replace

import pytest

from backfill_platform.domain.change_limits import ChangeLimits, HourChange
from backfill_platform.domain.hours import HourRange, parse_hour
from backfill_platform.errors import UsageError

HOUR = parse_hour("1998-04-30T22")
CHANGE = HourChange("transformed/sessions", HOUR, 100, 20, frozenset({"bytes"}), {"bytes": (1000, 1500)})


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
    empty = replace(CHANGE, stored=0, cancelled=0, columns=frozenset(), totals={"bytes": (0, 1500)})
    assert ChangeLimits(max_changed_share=0, max_metric_change={"bytes": 0}).objections(empty) == ()


def test_change_limits_is_read_from_a_mapping() -> None:
    given = {
        "hours": {"from": "1998-04-30T22", "to": "1998-04-30T23"},
        "tables": ["transformed/sessions"],
        "columns": [],
        "tenants": ["17"],
        "max_changed_share": 1,
        "max_metric_change": {"bytes": 0.5},
    }
    assert ChangeLimits.parse(given) == ChangeLimits(
        hours=HourRange.parse("1998-04-30T22", "1998-04-30T23"),
        tables=frozenset({"transformed/sessions"}),
        columns=frozenset(),
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
    ],
)
def test_what_is_no_change_limits_is_refused_with_the_reason(given: object, says: str) -> None:
    with pytest.raises(UsageError) as error:
        ChangeLimits.parse(given)
    assert says in str(error.value)


def test_rows_of_other_tenants_leave_change_limits_of_tenants() -> None:
    change_limits = ChangeLimits.parse({"tenants": ["ada"]})
    change = HourChange("transformed/sessions", HOUR, stored=10, cancelled=1)
    assert change_limits.objections(replace(change, foreign=(0, ""))) == ()
    assert change_limits.objections(replace(change, foreign=(2, "bob"))) == (
        "2 rows of other tenants would be written, such as 'bob'",
    )
    assert "cannot be told apart by tenant" in change_limits.objections(change)[0]
    assert ChangeLimits().objections(replace(change, foreign=(2, "bob"))) == ()
