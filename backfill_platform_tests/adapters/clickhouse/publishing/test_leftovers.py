"""What is known of an attempt that died while it published, and what becomes of rows that live writers wrote meanwhile."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing import publish as protocol
from backfill_platform.adapters.clickhouse.publishing import replacing
from backfill_platform.adapters.clickhouse.publishing.patches import load_undone, patched_hours, undoable
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.domain.tables import Table, TargetTable
from backfill_platform.errors import OpenHour, PreconditionError, ProofFailed, WarehouseUnavailable
from backfill_platform_tests.adapters.clickhouse.conftest import MakeTable
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    KINDS,
    MIDNIGHT,
    OTHER_ENGINES,
    TEN,
    Row,
    as_counter,
    assert_holds,
    attempt,
    counts,
    create_kind,
    net_rows,
    statuses,
    visit,
    write_live,
)

pytestmark = pytest.mark.whole

HOURS = [TEN, ELEVEN, MIDNIGHT]
BEFORE = [visit(TEN, "kept"), visit(TEN, "edited"), visit(ELEVEN, "dropped"), visit(MIDNIGHT, "edited", country=None)]
AFTER = [BEFORE[0], BEFORE[1] | {"pages": 4}, visit(ELEVEN, "added"), BEFORE[3] | {"country": "de"}]


class Death(Exception):
    """Stands for the end of the process."""


def dying_publish(warehouse: Warehouse, table: Table, name: str, rows: list[Row], dies: Callable[[str], bool]) -> None:
    """Publish under the name until the process dies, right after the first step of which `dies` is true."""

    def on_step(step: str) -> None:
        if dies(step):
            raise Death

    staging = Staging(warehouse, table, name, HOURS)
    staging.open()  # without `with`: a killed process cleans nothing up
    staging.load_rows(rows, counts(rows))
    with pytest.raises(Death):
        publish(prepare(staging, HOURS), on_step=on_step)
    staging.lease.release()  # instead of waiting until it runs out


def publish_as(warehouse: Warehouse, table: Table, name: str, rows: list[Row], **options: Any) -> dict[Any, HourPublish]:
    with Staging(warehouse, table, name, HOURS) as staging:
        staging.load_rows(rows, counts(rows))
        return {result.hour: result for result in publish(prepare(staging, HOURS, **options))}


def undo(warehouse: Warehouse, table: Table, name: str) -> int:
    """Undo all that the attempt is known to have published; returns the number of rows that were left alone."""
    hours = patched_hours(warehouse, table, name, unsure=True)
    with Staging(warehouse, table, attempt(), hours) as staging:
        known = patched_hours(warehouse, table, name)
        conflicts = undoable(warehouse, table, name, known).conflicts
        load_undone(staging, name, known)
        publish(prepare(staging, known))
    return conflicts


@pytest.fixture(params=[*KINDS, *OTHER_ENGINES])
def target(request: pytest.FixtureRequest, warehouse: Warehouse, declared: MakeTable) -> Table:
    """A target of each kind that holds BEFORE."""
    table = replace(declared(), target=OTHER_ENGINES.get(request.param, TargetTable()))
    create_kind(warehouse, table, request.param)
    write_live(warehouse, table, BEFORE, **({"version": 1} if "versioned" in request.param else {}))
    return table


# --- what a dead attempt published can be undone, whoever looks next ---


@pytest.mark.parametrize("again", ["the same repair runs again", "it is undone at once"])
def test_a_publish_that_died_before_its_patch_was_confirmed_is_undone_completely(
    warehouse: Warehouse, target: Table, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = attempt()

    def die(*_: Any) -> None:
        raise Death

    with monkeypatch.context() as patched:
        patched.setattr(protocol, "confirm_patch", die)
        patched.setattr(protocol, "confirm_partition", die)
        patched.setattr(replacing, "confirm_partition", die)
        dying_publish(warehouse, target, name, AFTER, lambda step: False)
    if again.startswith("the same"):
        publish_as(warehouse, target, name, AFTER)
        assert_holds(warehouse, target, AFTER)
    assert undo(warehouse, target, name) == 0
    assert_holds(warehouse, target, BEFORE)


def test_a_patch_of_several_partitions_is_confirmed_one_by_one(warehouse: Warehouse, declared: MakeTable) -> None:
    """r1 dies after its first partition, r2 publishes the rest: an undo of r1 takes back the first and nothing of r2."""
    table = declared()
    create_kind(warehouse, table, "insert, with a view")
    write_live(warehouse, table, BEFORE)
    r1, r2 = attempt(), attempt()
    dying_publish(warehouse, table, r1, AFTER, lambda step: step == "inserted")
    halfway = [*AFTER[:3], BEFORE[3]]
    assert net_rows(warehouse, table) == as_counter(halfway)
    publish_as(warehouse, table, r2, AFTER)
    assert patched_hours(warehouse, table, r1) == (TEN, ELEVEN)
    assert patched_hours(warehouse, table, r2) == (MIDNIGHT,)
    assert undo(warehouse, table, r1) == 0
    assert_holds(warehouse, table, [*BEFORE[:3], AFTER[3]])


def test_cancels_without_their_states_are_known_to_an_undo(
    warehouse: Warehouse, declared: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers that sort equal keys unstably get cancels and states with two statements; the process dies between them."""
    monkeypatch.setattr("backfill_platform.adapters.clickhouse.preconditions.STABLE_SORT_SINCE", (999,))
    table, name = declared(), attempt()
    create_kind(warehouse, table, "insert, with a view")
    write_live(warehouse, table, BEFORE)
    dying_publish(warehouse, table, name, AFTER, lambda step: step == "inserted")
    assert net_rows(warehouse, table) == as_counter([BEFORE[0], BEFORE[3]])
    publish_as(warehouse, table, name, AFTER)
    assert undo(warehouse, table, name) == 0
    assert_holds(warehouse, table, BEFORE)


def test_what_another_repair_published_after_the_death_is_not_taken_for_the_dead_ones(
    warehouse: Warehouse, target: Table
) -> None:
    dead, living = attempt(), attempt()
    dying_publish(warehouse, target, dead, AFTER, lambda step: step == "kept")
    publish_as(warehouse, target, living, AFTER)
    with pytest.raises(PreconditionError, match="published nothing"):
        patched_hours(warehouse, target, dead, unsure=True)
    assert undo(warehouse, target, living) == 0
    assert_holds(warehouse, target, BEFORE)


# --- a repair that published several times ---


def test_the_same_repair_published_twice_is_undone_once_and_completely(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, BEFORE)
    name = attempt()
    publish_as(warehouse, visits, name, AFTER)
    publish_as(warehouse, visits, attempt(), BEFORE)  # somebody else puts it back
    publish_as(warehouse, visits, name, AFTER)
    assert undo(warehouse, visits, name) == 0
    assert_holds(warehouse, visits, BEFORE)


def test_an_undo_gives_back_what_another_repair_wrote_in_between(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, [visit(TEN, "ada", pages=1), visit(TEN, "bob", pages=1)])
    name = attempt()
    publish_as(warehouse, visits, name, [visit(TEN, "ada", pages=2), visit(TEN, "bob", pages=2)])
    theirs = [visit(TEN, "ada", pages=3), visit(TEN, "bob", pages=2)]
    publish_as(warehouse, visits, attempt(), theirs)
    publish_as(warehouse, visits, name, [visit(TEN, "ada", pages=4), visit(TEN, "bob", pages=4)])
    assert undo(warehouse, visits, name) == 0
    assert_holds(warehouse, visits, [theirs[0], visit(TEN, "bob", pages=1)])


def test_a_repair_that_came_back_to_where_it_began_has_nothing_to_undo(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, BEFORE)
    name = attempt()
    for rows in (AFTER, BEFORE):
        publish_as(warehouse, visits, name, rows)
    assert patched_hours(warehouse, visits, name) == ()


# --- what live writers write between the last look and the publish ---


class WrittenMeanwhile(Warehouse):
    """A live writer writes just before the statement that publishes reaches the server."""

    write: Callable[[], None] = staticmethod(lambda: None)
    prefix = ""

    def command(self, sql: str, **options: Any) -> None:
        if self.prefix and sql.startswith(self.prefix):
            self.prefix = ""
            self.write()
        super().command(sql, **options)


def published_beside_a_writer(
    warehouse: Warehouse, warehouse_url: str, table: Table, rows: list[Row], write: Callable[[], None]
) -> dict[Any, HourPublish]:
    connection = WrittenMeanwhile(warehouse_url)
    connection.prefix, connection.write = f"ALTER TABLE {target_name(table)} ATTACH", write
    try:
        return publish_as(connection, table, attempt(), rows)
    finally:
        connection.close()


ADA, OURS, THEIRS = visit(TEN, "ada", pages=1), visit(TEN, "ada", pages=2), visit(TEN, "ada", pages=7)
NEW, KEPT = visit(TEN, "new"), visit(TEN, "kept")


@pytest.mark.parametrize("rewrite", [False, True])
@pytest.mark.parametrize(
    ("cancelled", "written"),
    [([ADA], [THEIRS]), ([], [NEW]), ([ADA], []), ([KEPT], [])],
    ids=["it changes a row of the repair", "it adds a row", "it removes a row of the repair", "it removes another row"],
)
def test_what_lands_in_the_window_is_never_silently_undone(
    warehouse: Warehouse, warehouse_url: str, visits: Table, cancelled: list[Row], written: list[Row], rewrite: bool
) -> None:
    write_live(warehouse, visits, [ADA, KEPT, visit(ELEVEN, "ada")])

    def write() -> None:
        write_live(warehouse, visits, cancelled, sign=-1)
        write_live(warehouse, visits, written)

    rows = [OURS, KEPT, visit(ELEVEN, "ada", pages=9)]
    results = published_beside_a_writer(warehouse, warehouse_url, visits, rows, write)
    assert statuses(results) == {TEN: "unverified", ELEVEN: "published", MIDNIGHT: "unchanged"}
    left = net_rows(warehouse, visits)
    results = publish_as(warehouse, visits, attempt(), rows, rewrite_inconsistent=rewrite)
    assert statuses(results)[TEN] == "refused"
    assert net_rows(warehouse, visits) == left
    if rewrite or ADA not in cancelled:  # else the hour is inconsistent, which is refused before
        assert isinstance(results[TEN].error, OpenHour)
        assert "a live writer wrote or removed 1 of its rows" in results[TEN].reason


def test_an_hour_that_is_not_as_it_should_be_keeps_its_staging_tables_for_inspection(
    warehouse: Warehouse, warehouse_url: str, visits: Table
) -> None:
    write_live(warehouse, visits, [ADA])
    results = published_beside_a_writer(warehouse, warehouse_url, visits, [OURS], lambda: write_live(warehouse, visits, [NEW]))
    assert isinstance(results[TEN].error, ProofFailed)
    delta = re.search(r"`backfill_staging`.`\w+_delta`", results[TEN].reason)
    assert delta is not None
    assert warehouse.rows(f"SELECT count() FROM {delta[0]}", doing="looking whether it was kept") == [(2,)]


def test_the_hour_is_repaired_when_the_lake_has_the_writers_rows_or_a_person_gives_them_up(
    warehouse: Warehouse, warehouse_url: str, visits: Table
) -> None:
    write_live(warehouse, visits, [ADA])
    published_beside_a_writer(warehouse, warehouse_url, visits, [OURS], lambda: write_live(warehouse, visits, [NEW]))
    assert statuses(publish_as(warehouse, visits, attempt(), [OURS]))[TEN] == "refused"
    with_theirs = [OURS | {"pages": 3}, NEW]
    assert statuses(publish_as(warehouse, visits, attempt(), with_theirs))[TEN] == "published"
    assert_holds(warehouse, visits, with_theirs)
    assert statuses(publish_as(warehouse, visits, attempt(), [OURS], remove_foreign=True))[TEN] == "published"
    assert_holds(warehouse, visits, [OURS])


def test_what_lands_in_the_window_of_an_attempt_that_dies_is_not_undone_either(
    warehouse: Warehouse, warehouse_url: str, visits: Table
) -> None:
    write_live(warehouse, visits, [ADA])
    connection = WrittenMeanwhile(warehouse_url)
    connection.prefix = f"ALTER TABLE {target_name(visits)} ATTACH"
    connection.write = lambda: write_live(warehouse, visits, [NEW])
    dying_publish(connection, visits, attempt(), [OURS], lambda step: step == "attached")
    connection.close()
    results = publish_as(warehouse, visits, attempt(), [OURS])
    assert isinstance(results[TEN].error, OpenHour)
    assert_holds(warehouse, visits, [OURS, NEW])


def test_a_dry_run_beside_a_dead_attempt_leaves_the_evidence(warehouse: Warehouse, warehouse_url: str, visits: Table) -> None:
    write_live(warehouse, visits, [ADA])
    name = attempt()
    dying_publish(warehouse, visits, name, [OURS], lambda step: step == "attached")
    write_live(warehouse, visits, [NEW])
    with Staging(warehouse, visits, attempt(), HOURS, exclusive=False) as staging:
        staging.load_rows([OURS], counts([OURS]))
        prepare(staging, HOURS)
    assert isinstance(publish_as(warehouse, visits, attempt(), [OURS])[TEN].error, OpenHour)


def test_a_partition_that_comes_late_is_looked_at_again_before_it_is_inserted(
    warehouse: Warehouse, declared: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live writer changes a row of the second partition while the first one is inserted; that takes long."""
    table, theirs = declared(), BEFORE[3] | {"country": "it"}
    create_kind(warehouse, table, "insert, with a view")
    write_live(warehouse, table, BEFORE)
    name = attempt()

    def interfere(step: str) -> None:
        if step == "inserted":
            monkeypatch.setattr(protocol, "MOST_SECONDS", 0.0)
            write_live(warehouse, table, [BEFORE[3]], sign=-1)
            write_live(warehouse, table, [theirs])

    with Staging(warehouse, table, name, HOURS) as staging:
        staging.load_rows(AFTER, counts(AFTER))
        results = {result.hour: result for result in publish(prepare(staging, HOURS), on_step=interfere)}
    assert statuses(results) == {TEN: "published", ELEVEN: "published", MIDNIGHT: "refused"}
    assert_holds(warehouse, table, [*AFTER[:3], theirs])
    assert patched_hours(warehouse, table, name) == (TEN, ELEVEN)


STOPPED = """
import os, signal, sys
from dataclasses import replace
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.prepare import prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform_tests.adapters.clickhouse.publishing.test_leftovers import OURS, TEN
from backfill_platform_tests.adapters.clickhouse.visits import VISITS, counts

url, name, seconds = sys.argv[1:]

def stop(step):
    if step == "rechecked" and not os.path.exists(name):
        open(name, "w").close()
        os.kill(os.getpid(), signal.SIGSTOP)

table = replace(VISITS, name=name.rpartition("/")[2])
with Staging(Warehouse(url), table, "stopped", [TEN], lease_seconds=int(seconds)) as staging:
    staging.load_rows([OURS], counts([OURS]))
    (result,) = publish(prepare(staging, [TEN]), on_step=stop)
    print(result.status, result.reason)
"""


@pytest.mark.parametrize(("lease_seconds", "says"), [(1, "has run out"), (60, "refused")])
def test_a_process_that_is_stopped_after_its_last_look_looks_again(
    warehouse: Warehouse, warehouse_url: str, visits: Table, tmp_path: Any, lease_seconds: int, says: str
) -> None:
    """Stopped by a signal, for longer than its lease or shorter; a live writer changes the row meanwhile."""
    write_live(warehouse, visits, [ADA])
    command = [sys.executable, "-c", STOPPED, warehouse_url, str(tmp_path / visits.name), str(lease_seconds)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 60
        while not _is_stopped(process.pid):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        write_live(warehouse, visits, [ADA], sign=-1)
        write_live(warehouse, visits, [THEIRS])
        time.sleep(2.5 if lease_seconds == 1 else 0)
        process.send_signal(signal.SIGCONT)
        told, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert says in told
    assert_holds(warehouse, visits, [THEIRS])


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2].startswith("T")


def test_a_lost_answer_to_the_publish_can_be_undone_by_the_next_attempt(
    warehouse: Warehouse, warehouse_url: str, visits: Table
) -> None:
    class Cut(Warehouse):
        def command(self, sql: str, **options: Any) -> None:
            super().command(sql, **options)
            if sql.startswith(f"ALTER TABLE {target_name(visits)} ATTACH"):
                raise WarehouseUnavailable("the line went dead")

    write_live(warehouse, visits, BEFORE)
    connection, name = Cut(warehouse_url), attempt()
    with pytest.raises(WarehouseUnavailable):
        publish_as(connection, visits, name, AFTER)
    connection.close()
    assert undo(warehouse, visits, name) == 0
    assert_holds(warehouse, visits, BEFORE)
