from dataclasses import replace

import pytest

from backfill_platform.domain.change_limits import Contract, HourChange
from backfill_platform.domain.hours import HourRange, parse_hour
from backfill_platform.errors import UsageError

HOUR = parse_hour("1998-04-30T22")
CHANGE = HourChange("transformed/sessions", HOUR, 100, 20, frozenset({"bytes"}), {"bytes": (1000, 1500)})


def test_the_default_contract_allows_everything() -> None:
    assert Contract().objections(CHANGE) == ()


@pytest.mark.parametrize(
    ("allows", "refuses", "says"),
    [
        (
            Contract(hours=HourRange.parse("1998-04-30T22", "1998-04-30T23")),
            Contract(hours=HourRange.parse("1998-04-30T23", "1998-05-01T00")),
            "not within the contract's hours",
        ),
        (
            Contract(tables=frozenset({CHANGE.table})),
            Contract(tables=frozenset({"a/b"})),
            "not one of the contract's tables a/b",
        ),
        (Contract(columns=frozenset({"bytes"})), Contract(columns=frozenset()), "bytes would change, the contract allows none"),
        (Contract(max_changed_share=0.2), Contract(max_changed_share=0.19), "20 of 100 stored rows"),
        (Contract(max_metric_change={"bytes": 0.5}), Contract(max_metric_change={"bytes": 0.49}), "from 1000 to 1500"),
    ],
)
def test_each_limit_allows_up_to_itself_and_says_what_broke_it(allows: Contract, refuses: Contract, says: str) -> None:
    assert allows.objections(CHANGE) == ()
    (objection,) = refuses.objections(CHANGE)
    assert says in objection


def test_filling_an_empty_hour_breaks_no_limit_of_share_or_metric() -> None:
    empty = replace(CHANGE, stored=0, cancelled=0, columns=frozenset(), totals={"bytes": (0, 1500)})
    assert Contract(max_changed_share=0, max_metric_change={"bytes": 0}).objections(empty) == ()


def test_a_contract_is_read_from_a_mapping() -> None:
    given = {
        "hours": {"from": "1998-04-30T22", "to": "1998-04-30T23"},
        "tables": ["transformed/sessions"],
        "columns": [],
        "tenants": ["17"],
        "max_changed_share": 1,
        "max_metric_change": {"bytes": 0.5},
    }
    assert Contract.parse(given) == Contract(
        HourRange.parse("1998-04-30T22", "1998-04-30T23"),
        frozenset({"transformed/sessions"}),
        frozenset(),
        frozenset({"17"}),
        1.0,
        {"bytes": 0.5},
    )
    assert Contract.parse({}) == Contract()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["bytes"], "a contract is a mapping"),
        ({"max_share": 0.1}, "no max_share; it has hours, tables"),
        ({"max_changed_share": 20}, "from 0 to 1, not 20"),
        ({"max_changed_share": True}, "from 0 to 1, not True"),
        ({"max_metric_change": {"bytes": "half"}}, "maps columns to numbers"),
        ({"hours": "1998-04-30T22"}, "{from: HOUR, to: HOUR}"),
        ({"hours": {"from": "yesterday", "to": "today"}}, "'yesterday' is not an hour"),
        ({"tables": "transformed/sessions"}, "tables of a contract is a list"),
    ],
)
def test_what_is_no_contract_is_refused_with_the_reason(given: object, says: str) -> None:
    with pytest.raises(UsageError) as error:
        Contract.parse(given)
    assert says in str(error.value)


def test_rows_of_other_tenants_leave_a_contract_of_tenants() -> None:
    contract = Contract.parse({"tenants": ["ada"]})
    change = HourChange("transformed/sessions", HOUR, stored=10, cancelled=1)
    assert contract.objections(replace(change, foreign=(0, ""))) == ()
    assert contract.objections(replace(change, foreign=(2, "bob"))) == (
        "2 rows of other tenants would be written, such as 'bob'",
    )
    assert "cannot be told apart by tenant" in contract.objections(change)[0]
    assert Contract().objections(replace(change, foreign=(2, "bob"))) == ()
