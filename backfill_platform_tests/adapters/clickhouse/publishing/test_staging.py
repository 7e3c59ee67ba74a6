"""Staging: what the lake holds arrives exactly, and an attempt that was given up cannot publish any more."""

import threading
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from backfill_platform.adapters.clickhouse import client, fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing import push
from backfill_platform.adapters.clickhouse.publishing.desired_rows import validate
from backfill_platform.adapters.clickhouse.publishing.patches import patched_hours, undoable
from backfill_platform.adapters.clickhouse.publishing.prepare import prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Loading, Staging, fence
from backfill_platform.adapters.clickhouse.schema import STAGING_DATABASE, create_target
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.domain.tables import Table
from backfill_platform.errors import (
    BackfillError,
    CheckFailed,
    PermanentError,
    PreconditionError,
    UsageError,
    WarehouseError,
    WarehouseUnavailable,
)
from backfill_platform_tests.adapters.clickhouse.conftest import MakeTable
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    TEN,
    TWELVE,
    Row,
    as_counter,
    attempt,
    net_rows,
    repair,
    staged,
    statuses,
    visit,
    write_live,
    write_parquet,
)


def desired_rows(warehouse: Warehouse, staging: Staging) -> int:
    ((rows,),) = warehouse.rows(f"SELECT count() FROM {staging.desired}", doing="counting")
    return int(rows)


def staging_tables(warehouse: Warehouse, table: Table) -> list[str]:
    rows = warehouse.rows(
        "SELECT name FROM system.tables WHERE database = {database:String} AND comment = {target:String} ORDER BY name",
        parameters={"database": STAGING_DATABASE, "target": str(table)},
        doing="looking",
    )
    return [name for (name,) in rows]


def load(warehouse: Warehouse, table: Table, paths: list[str], expected: dict[datetime, int], loading: Loading) -> int:
    with Staging(warehouse, table, attempt(), [TEN, ELEVEN]) as staging:
        return staging.load_files(paths, expected, loading)


# --- loading files: the same tests for both ways ---

both_ways = pytest.mark.parametrize("loading", list(Loading))


@both_ways
def test_hundreds_of_files_are_loaded_with_one_statement(
    warehouse: Warehouse, visits: Table, tmp_path: Path, loading: Loading
) -> None:
    folder = tmp_path / "a rather long folder name, with a comma, as object stores like them" / "it's 100%"
    rows = [visit(TEN if number % 2 else ELEVEN, f"visitor {number}") for number in range(400)]
    paths = [
        write_parquet(folder / f"part-{number:05d}-0f7cbb0c-5bb1-4a4e-9b1a-6f2a0c8d7e1b.c000.zstd.parquet", [row])
        for number, row in enumerate(rows)
    ]
    with Staging(warehouse, visits, attempt(), [TEN, ELEVEN]) as staging:
        assert staging.load_files(paths, {TEN: 200, ELEVEN: 200}, loading) == 400
        assert net_rows(warehouse, visits, f"(SELECT *, 1 AS sign FROM {staging.desired})") == as_counter(rows)


@both_ways
def test_the_names_of_folders_do_not_replace_values(
    warehouse: Warehouse, visits: Table, tmp_path: Path, loading: Loading
) -> None:
    rows = [visit(TEN, "ada", pages=3, country=None)]
    path = write_parquet(tmp_path / "pages=77" / "country=xx" / "hour=1998-04-30-11%3A00" / "part-0.parquet", rows)
    with Staging(warehouse, visits, attempt(), [TEN, ELEVEN]) as staging:
        staging.load_files([path], {TEN: 1}, loading)
        assert net_rows(warehouse, visits, f"(SELECT *, 1 AS sign FROM {staging.desired})") == as_counter(rows)


@both_ways
def test_without_files_the_desired_state_is_empty(warehouse: Warehouse, visits: Table, loading: Loading) -> None:
    assert load(warehouse, visits, [], {TEN: 0}, loading) == 0


@both_ways
def test_row_counts_that_differ_from_the_lake_are_refused(
    warehouse: Warehouse, visits: Table, tmp_path: Path, loading: Loading
) -> None:
    path = write_parquet(tmp_path / "part-0.parquet", [visit(TEN, "ada"), visit(ELEVEN, "bob"), visit(ELEVEN, "cyd")])
    with pytest.raises(CheckFailed, match="1998-04-30T10 1 instead of 2, 1998-04-30T11 2 instead of 0"):
        load(warehouse, visits, [path], {TEN: 2}, loading)


@both_ways
@pytest.mark.parametrize(
    ("types", "row", "said"),
    [
        ({"pages": pa.int64()}, {"pages": 5_000_000_000}, "cannot be safely converted into type Int32|does not fit its column"),
        ({}, {"pages": None}, "Cannot convert NULL value to non-Nullable type|rows without a value of pages"),
        ({"pages": None}, {}, "Cannot convert NULL value to non-Nullable type|has no column pages"),
    ],
    ids=["too large", "NULL", "no such column"],
)
def test_values_that_do_not_fit_their_column_are_refused(
    warehouse: Warehouse,
    visits: Table,
    tmp_path: Path,
    types: dict[str, pa.DataType | None],
    row: Row,
    said: str,
    loading: Loading,
) -> None:
    path = write_parquet(tmp_path / "part-0.parquet", [visit(TEN, "ada", **row)], **types)
    with pytest.raises(PermanentError, match=said):
        load(warehouse, visits, [path], {TEN: 1}, loading)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("relative/part.parquet", "absolute paths"),
        ("s3://bucket/part.parquet", "object storage not yet"),
        ("/lake/{a,b}.parquet", "reads as a pattern"),
        ("/lake/*.parquet", "reads as a pattern"),
    ],
)
def test_paths_that_the_server_does_not_read_literally_are_refused(
    warehouse: Warehouse, visits: Table, path: str, said: str
) -> None:
    with pytest.raises(PreconditionError, match=said):
        load(warehouse, visits, [path], {}, Loading.PULL)


@both_ways
def test_a_file_listed_twice_is_refused(warehouse: Warehouse, visits: Table, loading: Loading) -> None:
    with pytest.raises(PreconditionError, match="listed twice"):
        load(warehouse, visits, ["/lake/part.parquet", "file:///lake/part.parquet"], {}, loading)


@both_ways
def test_a_missing_file_is_an_error(warehouse: Warehouse, visits: Table, tmp_path: Path, loading: Loading) -> None:
    path = write_parquet(tmp_path / "part-0.parquet", [visit(TEN, "ada")])
    with pytest.raises(PermanentError, match=r"doesn't exist|gone.parquet cannot be read"):
        load(warehouse, visits, [path, str(tmp_path / "gone.parquet")], {TEN: 1}, loading)


@both_ways
def test_every_type_arrives_as_it_is(warehouse: Warehouse, visits: Table, tmp_path: Path, loading: Loading) -> None:
    rows = [
        visit(TEN, "", pages=-(2**31), revenue=-(2**63), score=float("nan"), country="", is_open=True, seen_at=None),
        visit(ELEVEN, "\x00ü'\\", pages=2**31 - 1, revenue=None, score=-0.0, country=None, seen_at=TEN),
    ]
    path = write_parquet(tmp_path / "part-0.parquet", rows)
    with Staging(warehouse, visits, attempt(), [TEN, ELEVEN]) as staging:
        staging.load_files([path], {TEN: 1, ELEVEN: 1}, loading)
        assert net_rows(warehouse, visits, f"(SELECT *, 1 AS sign FROM {staging.desired})") == as_counter(rows)


def test_a_batch_without_an_answer_is_sent_again_and_stored_once(
    warehouse_url: str, visits: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Losing(Warehouse):
        lost, most = 0, 2

        def insert_arrow(self, destination: str, rows: pa.Table, **options: Any) -> None:
            super().insert_arrow(destination, rows, **options)
            if self.lost < self.most:
                self.lost += 1
                raise WarehouseUnavailable("the line went dead")

    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(push, "ROWS_PER_BATCH", 4)
    # Two equal batches of one file: a token names a batch, not its content.
    rows = [visit(TEN, "ada")] * 8
    path = write_parquet(tmp_path / "part-0.parquet", rows)
    connection = Losing(warehouse_url)
    with Staging(connection, visits, attempt(), [TEN]) as staging:
        assert staging.load_files([path], {TEN: 8}, Loading.PUSH) == 8
    assert connection.lost == 2
    connection.most = 99
    with Staging(connection, visits, attempt(), [TEN]) as staging, pytest.raises(WarehouseUnavailable):
        staging.load_files([path], {TEN: 8}, Loading.PUSH)
    connection.close()


# --- loading rows ---


def test_rows_must_have_the_declared_columns(warehouse: Warehouse, visits: Table) -> None:
    wrong = visit(TEN, "ada", extra=1)
    del wrong["country"]
    with Staging(warehouse, visits, attempt(), [TEN, ELEVEN]) as staging, pytest.raises(UsageError, match="country, extra"):
        staging.load_rows([wrong], {TEN: 1})


# --- validation ---


def test_a_repeated_key_is_found_even_after_a_merge(warehouse: Warehouse, visits: Table) -> None:
    """A collapsing staging table would have merged the two rows into one before anybody counts."""
    rows = [visit(TEN, "ada"), visit(TEN, "ada"), visit(TEN, "bob", pages=1), visit(TEN, "bob", pages=2), visit(ELEVEN, "ada")]
    staging = staged(warehouse, visits, rows)
    warehouse.command(f"OPTIMIZE TABLE {staging.desired} FINAL", doing="merging")
    problems = validate(staging, [TEN, ELEVEN])
    assert list(problems) == [TEN]
    assert "2 desired rows repeat a key (hour, visitor)" in str(problems[TEN])


def test_rows_outside_the_hours_stop_the_attempt(warehouse: Warehouse, visits: Table) -> None:
    staging = staged(warehouse, visits, [visit(TEN, "ada"), visit(TWELVE, "bob"), visit(ELEVEN, "cyd")])
    with pytest.raises(CheckFailed, match="1 desired rows lie outside the hours of the repair"):
        validate(staging, [TEN, TWELVE])


def test_rows_whose_hour_is_not_a_full_hour_stop_the_attempt(warehouse: Warehouse, visits: Table) -> None:
    row = visit(TEN + timedelta(milliseconds=500), "ada")
    staging = Staging(warehouse, visits, attempt(), [TEN, ELEVEN])
    staging.open()
    staging.load_rows([row], {TEN: 1})
    with pytest.raises(CheckFailed, match="the hour of 1 desired rows is not on the full hour"):
        validate(staging, [TEN])


# --- fences ---


@pytest.mark.whole
def test_a_new_attempt_drops_what_earlier_ones_left(warehouse: Warehouse, visits: Table) -> None:
    for _ in range(2):
        staged(warehouse, visits, [visit(TEN, "ada")])
    assert len(staging_tables(warehouse, visits)) == 5
    with Staging(warehouse, visits, attempt(), [TEN, ELEVEN]):
        assert len(staging_tables(warehouse, visits)) == 5
    assert staging_tables(warehouse, visits) == []


def test_a_fence_leaves_other_targets_alone(warehouse: Warehouse, declared: MakeTable) -> None:
    table = declared()
    longer = replace(table, name=f"{table.name}_daily")
    for each in (table, longer):
        create_target(warehouse, each)
    try:
        staging = staged(warehouse, longer, [visit(TEN, "ada")])
        assert fence(warehouse, table) == 0
        assert desired_rows(warehouse, staging) == 1
    finally:
        fence(warehouse, longer)
        warehouse.command(f"DROP TABLE {target_name(longer)} SYNC", doing="cleaning up")


def test_a_fence_waits_for_the_publish_of_a_zombie(warehouse: Warehouse, visits: Table) -> None:
    """What the zombie writes is there before the new attempt looks, never after."""
    zombie = staged(warehouse, visits, [visit(TEN, f"visitor {number}") for number in range(20)])
    slow = f"INSERT INTO {target_name(visits)} SELECT *, 1 + sleepEachRow(0.05) FROM {zombie.desired}"
    started = threading.Event()

    def publish_slowly() -> None:
        started.set()
        warehouse.command(slow, settings={"max_block_size": 1}, doing="being slow")

    thread = threading.Thread(target=publish_slowly)
    thread.start()
    started.wait()
    running = "SELECT query FROM system.processes WHERE query LIKE 'INSERT INTO%sleepEachRow(0.05)%'"
    while not warehouse.rows(running, doing="waiting for the zombie's statement to run"):
        assert thread.is_alive()
    fence(warehouse, visits)
    published = fingerprints.net(warehouse, visits, [TEN])[TEN]
    thread.join()
    assert published.rows == 20
    assert fingerprints.net(warehouse, visits, [TEN])[TEN] == published


def test_a_zombie_that_wakes_up_cannot_publish(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, [visit(TEN, "ada")])
    zombie = prepare(staged(warehouse, visits, [visit(TEN, "ada", pages=99)]), [TEN])
    # The process that takes over may well use the same name for the attempt, and have a delta of its own half-written.
    successor = Staging(warehouse, visits, zombie.staging.attempt, [TEN])
    successor.open()
    warehouse.command(
        f"INSERT INTO {successor.delta} SELECT * REPLACE (-1 AS sign) FROM {target_name(visits)}", doing="half a delta"
    )
    with pytest.raises(WarehouseError, match="a newer attempt has taken over"):
        publish(zombie)
    assert net_rows(warehouse, visits) == as_counter([visit(TEN, "ada")])


def test_a_zombie_does_not_take_the_patch_of_its_successor_away(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, [visit(TEN, "ada")])
    zombie = prepare(staged(warehouse, visits, [visit(TEN, "ada", pages=99)]), [TEN])
    with Staging(warehouse, visits, zombie.staging.attempt, [TEN]) as successor:
        successor.load_rows([visit(TEN, "ada", pages=7)], {TEN: 1})
        publish(prepare(successor, [TEN]))
    with pytest.raises(WarehouseError, match="a newer attempt has taken over"):
        publish(zombie)
    assert patched_hours(warehouse, visits, zombie.staging.attempt) == (TEN,)
    assert undoable(warehouse, visits, zombie.staging.attempt, [TEN]).conflicts == 0


def test_a_zombie_that_builds_its_delta_again_is_fenced_as_well(warehouse: Warehouse, visits: Table) -> None:
    zombie = prepare(staged(warehouse, visits, [visit(TEN, "ada"), visit(ELEVEN, "bob")]), [TEN, ELEVEN])
    fence(warehouse, visits)
    with pytest.raises(WarehouseError):
        publish(zombie, refuse=lambda prepared: {TEN: CheckFailed("not this one")})
    assert staging_tables(warehouse, visits) == []
    assert net_rows(warehouse, visits) == as_counter([])


def test_kept_tables_stay_until_the_next_attempt(warehouse: Warehouse, visits: Table) -> None:
    with Staging(warehouse, visits, attempt(), [TEN, ELEVEN]) as staging:
        staging.keep()
    assert len(staging_tables(warehouse, visits)) == 5
    assert statuses(repair(warehouse, visits, [TEN], [visit(TEN, "ada")])) == {TEN: "published"}
    assert staging_tables(warehouse, visits) == []


def test_an_error_in_the_block_is_not_hidden_by_an_error_of_the_cleanup(
    warehouse: Warehouse, warehouse_url: str, visits: Table
) -> None:
    class Unreachable(Warehouse):
        def command(self, sql: str, **options: object) -> None:
            if sql.startswith("DROP TABLE"):
                raise WarehouseError("gone")
            super().command(sql, **options)  # type: ignore[arg-type]

    connection = Unreachable(warehouse_url)
    with pytest.raises(BackfillError, match="the real one"), Staging(connection, visits, attempt(), [TEN, ELEVEN]):
        raise CheckFailed("the real one")
    connection.close()


@pytest.mark.parametrize("name", ["", "has-dash", "Upper", "x" * 65, "a.b"])
def test_a_name_that_no_table_can_have_is_refused_for_an_attempt(warehouse: Warehouse, visits: Table, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name an attempt"):
        Staging(warehouse, visits, name, [TEN])


def test_an_unfit_target_is_refused_before_anything_is_staged(warehouse: Warehouse, declared: MakeTable) -> None:
    table = declared()
    with pytest.raises(PreconditionError, match="does not exist"), Staging(warehouse, table, attempt(), [TEN, ELEVEN]):
        pass
    assert staging_tables(warehouse, table) == []
