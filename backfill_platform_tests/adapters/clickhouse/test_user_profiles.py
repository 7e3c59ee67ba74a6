"""Whatever the profile of our user says, hours are read whole, or not at all."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.domain.tables import Table
from backfill_platform.errors import BackfillError
from backfill_platform_tests.adapters.clickhouse.visits import ELEVEN, TEN, repair, statuses, visit, write_live

ROWS = [visit(TEN, f"v{number}") for number in range(300)] + [visit(ELEVEN, "ada")]

# A profile that limits, and what it says shall happen at the limit.
LIMITS: dict[str, dict[str, Any]] = {
    "read": {"max_rows_to_read": 50, "read_overflow_mode": "break"},
    "read, by leaf": {"max_rows_to_read_leaf": 50, "read_overflow_mode_leaf": "break"},
    "group by": {"max_rows_to_group_by": 5, "group_by_overflow_mode": "any"},
    "sort": {"max_rows_to_sort": 5, "sort_overflow_mode": "break"},
    "result": {"max_result_rows": 1, "result_overflow_mode": "break"},
    "distinct": {"max_rows_in_distinct": 1, "distinct_overflow_mode": "break"},
    "set": {"max_rows_in_set": 1, "set_overflow_mode": "break"},
    "join": {"max_rows_in_join": 1, "join_overflow_mode": "break"},
    "transfer": {"max_rows_to_transfer": 1, "transfer_overflow_mode": "break"},
    "time": {"max_execution_time": 0.000001, "timeout_overflow_mode": "break", "timeout_before_checking_execution_speed": 0},
}
# What must make no difference at all.
ALTERED: list[dict[str, Any]] = [
    {"limit": 1},
    {"offset": 1},
    {"final": 1},
    {"use_query_cache": 1},
    {"additional_result_filter": "1 = 0"},
    {"apply_deleted_mask": 0},
    {"join_use_nulls": 1},
    {"group_by_use_nulls": 1},
    {"transform_null_in": 1},
    {"aggregate_functions_null_for_empty": 1},
    {"prefer_column_name_to_alias": 1},
    {"cast_keep_nullable": 1},
    {"session_timezone": "Asia/Kolkata"},
    {"async_insert": 1, "wait_for_async_insert": 0, "async_insert_busy_timeout_ms": 5_000},
    {"max_block_size": 7, "max_insert_block_size": 7},
]


@pytest.fixture
def damaged(warehouse: Warehouse, visits: Table) -> Table:
    """300 rows in the hour TEN, all of them twice."""
    for _ in range(2):
        write_live(warehouse, visits, ROWS[:-1])
    write_live(warehouse, visits, ROWS[-1:])
    return visits


@pytest.fixture
def connect(warehouse_url: str) -> Iterator[Any]:
    """Connections of a user with a profile, closed at the end."""
    connections: list[Warehouse] = []

    def connected(profile: dict[str, Any]) -> Warehouse:
        connections.append(Warehouse(warehouse_url, settings=profile))
        return connections[-1]

    yield connected
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_of_the_profile_ends_a_statement_and_never_shortens_its_answer(
    warehouse: Warehouse, damaged: Table, connect: Any, limit: str
) -> None:
    connection = connect(LIMITS[limit])
    for read in (fingerprints.net, fingerprints.final):
        right = read(warehouse, damaged, [TEN, ELEVEN])
        with suppress(BackfillError):
            assert read(connection, damaged, [TEN, ELEVEN]) == right
    with suppress(BackfillError):
        assert statuses(repair(connection, damaged, [TEN, ELEVEN], ROWS)) == {TEN: "refused", ELEVEN: "unchanged"}


@pytest.mark.parametrize("profile", ALTERED, ids=lambda profile: next(iter(profile)))
def test_a_setting_of_the_profile_changes_nothing_that_is_read_or_written(
    warehouse: Warehouse, visits: Table, connect: Any, profile: dict[str, Any]
) -> None:
    connection = connect(profile)
    write_live(warehouse, visits, ROWS[:20])
    wanted = [*(row | {"pages": 9} for row in ROWS[:10]), *ROWS[15:25], ROWS[-1]]
    results = repair(connection, visits, [TEN, ELEVEN], wanted)
    assert statuses(results) == {TEN: "published", ELEVEN: "published"}
    assert (results[TEN].cancels, results[TEN].states) == (15, 15)
    assert fingerprints.net(connection, visits, [TEN, ELEVEN]) == fingerprints.final(warehouse, visits, [TEN, ELEVEN])
    assert statuses(repair(warehouse, visits, [TEN, ELEVEN], wanted)) == {TEN: "unchanged", ELEVEN: "unchanged"}
