"""Faults: lost answers, full disks, read-only tables, servers that restart, concurrent writers."""

import os
import random
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from backfill_platform.adapters.clickhouse import client, fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing import push
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish
from backfill_platform.adapters.clickhouse.publishing.staging import Loading, Staging
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform.domain.tables import Table
from backfill_platform.errors import BackfillError, ConcurrentWriter, LeaseLost, PreconditionError, WarehouseUnavailable
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    KINDS,
    MIDNIGHT,
    TEN,
    VISITS,
    as_counter,
    assert_holds,
    attempt,
    counts,
    create_kind,
    final_rows,
    net_rows,
    outside,
    repair,
    statuses,
    view_totals,
    visit,
    write_live,
    write_parquet,
)
from backfill_platform_tests.crash.conftest import Mortal
from backfill_platform_tests.crash.proxy import Proxy
from backfill_platform_tests.crash.test_crash_fuzz import assert_sound, drop, staging_tables

pytestmark = pytest.mark.whole

HOURS = [TEN, ELEVEN, MIDNIGHT]
OLD = [visit(hour, f"visitor {number}", pages=1) for hour in HOURS for number in range(5)]
NEW = [row | {"pages": 2} for row in OLD[:12]] + [visit(hour, "added", country=None) for hour in HOURS]


@pytest.fixture
def table(mortal: Mortal) -> Iterator[Table]:
    target = replace(VISITS, name=f"faults_{uuid.uuid4().hex[:8]}")
    yield target
    drop(mortal.warehouse, target)


@pytest.fixture
def proxy(mortal: Mortal, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)
    running = Proxy(mortal.server.url)
    yield running
    running.end()


# --- lost answers ---


def is_request(lost: int, number: int, statement: str) -> bool:
    return number == lost


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        pytest.param("attach", 6, id="attach-some"),
        pytest.param("insert, versioned, with a view", 6, id="insert-some"),
        *(pytest.param(kind, 1, id=f"{kind}-each", marks=pytest.mark.slow) for kind in KINDS),
    ],
)
def test_every_answer_may_be_lost(mortal: Mortal, table: Table, proxy: Proxy, kind: str, step: int) -> None:
    """One answer after the other, with everything that the client library sends again by itself."""
    create_kind(mortal.warehouse, table, kind)
    rows, others = OLD, NEW
    write_live(mortal.warehouse, table, rows)
    lost = total = 1
    tried = cut = 0
    while lost <= total:
        with closing(Warehouse(proxy.url)) as line:  # each a process of its own, which creates what is absent
            start = proxy.requests
            proxy.drop = partial(is_request, start + lost)
            tried += 1
            try:
                repair(line, table, HOURS, others, lease_seconds=1)
            except (WarehouseUnavailable, LeaseLost):
                cut += 1
            total = max(total, proxy.requests - start)
            proxy.drop = lambda number, _: False
        assert_sound(mortal.warehouse, table, rows, others, HOURS, [f"answer {lost} lost"])
        results = repair(mortal.warehouse, table, HOURS, others, lease_seconds=60)
        assert set(statuses(results).values()) <= {"published", "unchanged"}
        assert net_rows(mortal.warehouse, table) == as_counter(others) == final_rows(mortal.warehouse, table)
        rows, others = others, rows
        lost += step
    assert total > 20
    assert cut > tried / 5  # the others: the client library asks again, or the answer was not needed


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "view" in kind])
def test_views_see_an_insert_once_whatever_answers_are_lost(mortal: Mortal, table: Table, proxy: Proxy, kind: str) -> None:
    create_kind(mortal.warehouse, table, kind)
    write_live(mortal.warehouse, table, OLD)
    seen: list[int] = []

    def first_of_each(number: int, statement: str) -> bool:
        if "INSERT INTO `transformed`." in statement.replace("%60", "`").replace("+", " ") and len(seen) < 2:
            seen.append(number)
            return True
        return False

    proxy.drop = first_of_each
    with closing(Warehouse(proxy.url)) as line:
        assert set(statuses(repair(line, table, HOURS, NEW)).values()) == {"published"}
    assert len(seen) == 2
    expected = {hour: (sum(r["pages"] for r in NEW if r["hour"] == hour), counts(NEW)[hour]) for hour in HOURS}
    assert view_totals(mortal.warehouse, table) == expected
    assert_holds(mortal.warehouse, table, NEW)


def test_pushed_rows_are_stored_once_whatever_answers_are_lost(
    mortal: Mortal, table: Table, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "ROWS_PER_BATCH", 4)
    create_kind(mortal.warehouse, table, "attach")
    path = write_parquet(tmp_path / "part-0.parquet", NEW)
    chance = random.Random(7)
    with closing(Warehouse(proxy.url)) as line, Staging(line, table, attempt(), HOURS) as staging:
        proxy.drop = lambda _, statement: "INSERT" in statement and chance.random() < 0.4
        assert staging.load_files([path], counts(NEW), Loading.PUSH) == len(NEW)
        proxy.drop = lambda number, _: False


def test_a_server_that_restarts_is_found_again(mortal: Mortal, table: Table, proxy: Proxy) -> None:
    """At the same address, in the middle of a publish: the publish goes on, or fails and is run again."""
    create_kind(mortal.warehouse, table, "attach")
    write_live(mortal.warehouse, table, OLD)

    def restart(step: str) -> None:
        if step == "proven":
            mortal.restart()
            proxy.upstream = mortal.server.url

    with closing(Warehouse(proxy.url)) as line:
        results = repair(line, table, HOURS, NEW, on_step=restart, lease_seconds=30)
    assert set(statuses(results).values()) == {"published"}
    assert_holds(mortal.warehouse, table, NEW)


def test_a_year_of_single_hours_fits_into_every_statement(mortal: Mortal, table: Table, proxy: Proxy) -> None:
    """Servers limit what a URL may hold, so the hours are not in it."""
    create_kind(mortal.warehouse, table, "attach")
    hours = [TEN + timedelta(hours=2 * number) for number in range(8760)]
    longest: list[int] = []

    def listen(number: int, path_and_statement: str) -> bool:
        longest.append(len(path_and_statement.partition(" ")[0]) if path_and_statement else 0)
        return False

    proxy.drop = listen
    with closing(Warehouse(proxy.url)) as line:
        results = repair(line, table, hours, [visit(TEN, "ada"), visit(hours[-1], "bob")], lease_seconds=60)
    assert [hour for hour, result in results.items() if str(result.status) == "published"] == [TEN, hours[-1]]
    assert 200 < max(longest) < 10_000
    mortal.warehouse.command(f"TRUNCATE TABLE {target_name(table)}", doing="cleaning up")


# --- targets that cannot be written ---


def test_a_read_only_table_is_refused_with_what_to_do(mortal: Mortal, table: Table) -> None:
    create_kind(mortal.warehouse, table, "attach")
    write_live(mortal.warehouse, table, OLD)
    alter = f"ALTER TABLE {target_name(table)} MODIFY SETTING table_readonly = "
    mortal.warehouse.command(alter + "1", doing="preparing")
    with pytest.raises(PreconditionError, match="MODIFY SETTING table_readonly = 0"):
        repair(mortal.warehouse, table, HOURS, NEW)
    mortal.warehouse.command(alter + "0", doing="preparing")

    def lock(step: str) -> None:
        if step == "kept":
            mortal.warehouse.command(alter + "1", doing="locking it meanwhile")

    with pytest.raises(BackfillError):
        repair(mortal.warehouse, table, HOURS, NEW, on_step=lock)
    assert net_rows(mortal.warehouse, table) == as_counter(OLD)
    mortal.warehouse.command(alter + "0", doing="preparing")
    assert set(statuses(repair(mortal.warehouse, table, HOURS, NEW)).values()) == {"published"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], check=False, capture_output=True)
    if made.returncode:
        pytest.skip("a disk of its own can be mounted by root only")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    table = replace(VISITS, name="full_disk")
    many = [visit(TEN, f"{number} {os.urandom(700).hex()}", pages=1) for number in range(6000)]
    with embedded.start(small_disk / "warehouse") as server, closing(Warehouse(server.url)) as warehouse:
        create_kind(warehouse, table, "attach")
        write_live(warehouse, table, OLD)
        rows_outside = outside(warehouse, table, [TEN])[1]
        ballast = small_disk / "ballast"
        used = os.statvfs(small_disk)
        ballast.write_bytes(b"x" * (used.f_bavail * used.f_bsize - (14 << 20)))
        with pytest.raises(BackfillError) as refused:
            repair(warehouse, table, [TEN], many)
        assert (
            "No space left" in str(refused.value)
            or "Cannot reserve" in str(refused.value)
            or "NOT_ENOUGH_SPACE" in str(refused.value)
        ), refused.value
        assert net_rows(warehouse, table) == as_counter(OLD) == final_rows(warehouse, table)
        ballast.unlink()
        new = NEW[:5]
        assert statuses(repair(warehouse, table, [TEN], new)) == {TEN: "published"}
        assert outside(warehouse, table, [TEN])[1] == rows_outside
        assert staging_tables(warehouse, table) == 0


# --- concurrent writers ---


@pytest.mark.parametrize("seed", range(6))
def test_neither_the_writer_nor_the_repair_loses_anything(mortal: Mortal, table: Table, seed: int) -> None:
    """A live writer adds and updates rows of its own while hours are repaired over and over from a lake that knows them.

    Hours that it wrote while they were repaired are refused or not verified. In the end each hour is consistent, holds every
    row of the writer in its last state, and, once the writer is done, has the rows that the repair desires.
    """
    chance = random.Random(seed)
    create_kind(mortal.warehouse, table, "attach")
    write_live(mortal.warehouse, table, OLD)
    written: dict[tuple[object, str], dict[str, object]] = {}
    done, lake = threading.Event(), threading.Lock()

    def write() -> None:
        with closing(Warehouse(mortal.server.url)) as own:
            while not done.is_set():
                hour = chance.choice(HOURS)
                row = visit(hour, f"live {chance.randrange(3)}", pages=chance.randrange(100))
                with lake:
                    before = written.get((hour, row["visitor"]))
                    if before is not None:
                        write_live(own, table, [before], sign=-1)
                    write_live(own, table, [row])
                    written[hour, row["visitor"]] = row
                done.wait(chance.random() * 0.3)

    thread = threading.Thread(target=write)
    thread.start()
    failed: list[HourPublish] = []
    done_hours = 0
    rows = NEW
    try:
        for _ in range(4):
            with lake:
                since = fingerprints.net(mortal.warehouse, table, HOURS)
                live_rows = list(written.values())
            results = repair(mortal.warehouse, table, HOURS, rows + live_rows, since=since)
            failed += [result for result in results.values() if result.error]
            done_hours += sum(not result.error for result in results.values())
            rows = OLD if rows is NEW else NEW
    finally:
        done.set()
        thread.join()
    assert all(isinstance(result.error, ConcurrentWriter) or result.status == "unverified" for result in failed), failed
    assert done_hours, "the writer prevented all repairs"
    hours = {TEN, ELEVEN, MIDNIGHT}
    net = fingerprints.net(mortal.warehouse, table, hours)
    assert net == fingerprints.final(mortal.warehouse, table, hours)
    live = as_counter(row for row in written.values())
    assert not live - net_rows(mortal.warehouse, table), "a row of the writer was lost"
    final = repair(mortal.warehouse, table, HOURS, NEW + list(written.values()))
    assert set(statuses(final).values()) <= {"published", "unchanged"}
    assert_holds(mortal.warehouse, table, NEW + list(written.values()))
