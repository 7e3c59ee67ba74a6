"""Leases: one publisher for each hour, and none for ever."""

import threading
import time
from collections.abc import Collection
from datetime import datetime
from typing import Any

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.leases import Lease, live_holders
from backfill_platform.adapters.clickhouse.publishing.prepare import prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.domain.tables import Table
from backfill_platform.errors import HourLeased, LeaseLost
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    LATE,
    TEN,
    TWELVE,
    as_counter,
    attempt,
    dry_run,
    net_rows,
    repair,
    statuses,
    visit,
)
from backfill_platform_tests.fixtures_warehouse import wait_until


def lease(warehouse: Warehouse, table: Table, hours: Collection[datetime], name: str, **options: Any) -> Lease:
    return Lease(
        warehouse, table, hours, attempt=name, token="t", **({"exclusive": True, "seconds": 20, "patience": 0} | options)
    )


def test_an_hour_has_only_one_publisher_at_a_time(warehouse: Warehouse, visits: Table) -> None:
    first = lease(warehouse, visits, [TEN, ELEVEN, LATE], "first")
    first.take()
    with pytest.raises(HourLeased, match="the hours from 1998-04-30T10 to 1998-04-30T12 are being repaired by first_t, until"):
        lease(warehouse, visits, [ELEVEN, TWELVE], "second").take()
    lease(warehouse, visits, [TWELVE], "second").take()
    first.release()
    lease(warehouse, visits, [ELEVEN], "third").take()
    assert live_holders(warehouse, visits) == {"second_t", "third_t"}


def test_the_lease_of_a_dead_publisher_expires(warehouse: Warehouse, visits: Table) -> None:
    lease(warehouse, visits, [TEN], "dead", seconds=1).take()
    started = time.monotonic()
    lease(warehouse, visits, [TEN], "next", patience=10).take()
    assert 0.3 < time.monotonic() - started < 5


def test_a_live_publisher_keeps_its_lease(warehouse: Warehouse, visits: Table) -> None:
    alive = lease(warehouse, visits, [TEN], "alive", seconds=1)
    alive.take()
    with alive.renewed():
        with pytest.raises(HourLeased):
            lease(warehouse, visits, [TEN], "next", patience=2.5).take()
        alive.check()
    wait_until(lambda: "alive_t" not in live_holders(warehouse, visits))
    with pytest.raises(LeaseLost):
        alive.check()


def test_a_repair_takes_over_from_its_own_dead_process(warehouse: Warehouse, visits: Table) -> None:
    before = Lease(warehouse, visits, [TEN], attempt="r1", token="before", exclusive=True, seconds=1)
    before.take()
    Lease(warehouse, visits, [TEN], attempt="r1", token="after", exclusive=True, patience=0).take()
    assert live_holders(warehouse, visits) == {"r1_after"}
    with before.renewed():  # not dead after all: it does not come back
        time.sleep(1)
    assert live_holders(warehouse, visits) == {"r1_after"}


def test_of_many_publishers_at_once_one_gets_the_lease(warehouse: Warehouse, visits: Table) -> None:
    inside: list[str] = []
    most: list[int] = []

    def work(name: str) -> None:
        mine = lease(warehouse, visits, [TEN, ELEVEN], name, patience=60)
        mine.take()
        inside.append(name)
        most.append(len(inside))
        time.sleep(0.05)
        inside.remove(name)
        mine.release()

    threads = [threading.Thread(target=work, args=(f"n{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 6


def test_a_dry_run_neither_waits_nor_is_disturbed(warehouse: Warehouse, visits: Table) -> None:
    with Staging(warehouse, visits, attempt(), [TEN], exclusive=False) as looking:
        looking.load_rows([visit(TEN, "ada", pages=1)], {TEN: 1})
        assert statuses(repair(warehouse, visits, [TEN], [visit(TEN, "ada", pages=2)])) == {TEN: "published"}
        assert prepare(looking, [TEN]).diffs[TEN].changed == 1
    with Staging(warehouse, visits, attempt(), [TEN]):
        assert dry_run(warehouse, visits, [TEN], []).diffs[TEN].only_there == 1


def test_publishers_of_other_hours_do_not_disturb_each_other(warehouse: Warehouse, visits: Table) -> None:
    with Staging(warehouse, visits, attempt(), [TEN]) as staging:
        staging.load_rows([visit(TEN, "ada")], {TEN: 1})
        assert statuses(repair(warehouse, visits, [ELEVEN], [visit(ELEVEN, "bob")])) == {ELEVEN: "published"}
        (result,) = publish(prepare(staging, [TEN]))
        assert str(result.status) == "published"
    assert net_rows(warehouse, visits) == as_counter([visit(TEN, "ada"), visit(ELEVEN, "bob")])


def test_a_publisher_whose_lease_ran_out_publishes_nothing(warehouse: Warehouse, visits: Table) -> None:
    sleeper = Staging(warehouse, visits, attempt(), [TEN], lease_seconds=1)
    sleeper.open()
    sleeper.load_rows([visit(TEN, "ada")], {TEN: 1})
    prepared = prepare(sleeper, [TEN])
    wait_until(lambda: sleeper.lease.holder not in live_holders(warehouse, visits))
    with pytest.raises(LeaseLost, match="nothing was published"):
        publish(prepared)
    assert net_rows(warehouse, visits) == as_counter([])


def test_a_clock_that_is_set_back_does_not_keep_a_lease_alive(warehouse: Warehouse, visits: Table) -> None:
    """As if the server's clock had been an hour ahead when the lease was taken."""
    alive = lease(warehouse, visits, [TEN], "ahead")
    alive.take()
    warehouse.command(
        "INSERT INTO backfill.leases SELECT * REPLACE (expires_at + INTERVAL 1 HOUR AS expires_at, "
        f"written_at + INTERVAL 1 HOUR AS written_at) FROM backfill.leases WHERE target = '{visits}'",
        doing="setting the clock back",
    )
    lease(warehouse, visits, [TEN], "next").take()
    alive.release()
    assert live_holders(warehouse, visits) == {"next_t"}
