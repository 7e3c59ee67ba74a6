"""Crashes: after any of them, running the repair again gives the desired state, once."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.prepare import prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.domain.tables import Table
from backfill_platform.errors import WarehouseUnavailable
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    MIDNIGHT,
    TEN,
    as_counter,
    assert_holds,
    attempt,
    counts,
    final_rows,
    net_rows,
    repair,
    statuses,
    visit,
    write_live,
)

pytestmark = pytest.mark.whole

STAGING_STEPS = ("leased", "fenced", "created", "loaded")
PREPARE_STEPS = ("validated", "fingerprinted", "cancels", "states", "merged", "proven")
PUBLISH_STEPS = ("kept", "rechecked", "attached", "verified")
STEPS = (*STAGING_STEPS, *PREPARE_STEPS, *PUBLISH_STEPS)


class Crash(Exception):
    """Stands for the end of the process at a step."""


def crashing_at(step: str) -> Callable[[str], None]:
    def crash(name: str) -> None:
        if name == step:
            raise Crash(step)

    return crash


BEFORE = [visit(TEN, "kept"), visit(TEN, "edited"), visit(ELEVEN, "dropped"), visit(MIDNIGHT, "edited", country=None)]
AFTER = [BEFORE[0], BEFORE[1] | {"pages": 4}, visit(ELEVEN, "added"), BEFORE[3] | {"country": "de"}]
HOURS = [TEN, ELEVEN, MIDNIGHT]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_after_any_step_is_repaired_by_running_again(warehouse: Warehouse, visits: Table, step: str) -> None:
    write_live(warehouse, visits, BEFORE)
    crash = crashing_at(step)
    staging = Staging(warehouse, visits, attempt(), HOURS, on_step=crash)

    def publish_until_the_crash() -> None:
        staging.open()  # without `with`: a killed process cleans nothing up
        staging.load_rows(AFTER, counts(AFTER))
        publish(prepare(staging, HOURS, on_step=crash), on_step=crash)

    with pytest.raises(Crash):
        publish_until_the_crash()
    staging.lease.release()  # instead of waiting until it runs out
    done = step in ("attached", "verified")
    assert net_rows(warehouse, visits) == as_counter(AFTER if done else BEFORE) == final_rows(warehouse, visits)
    results = repair(warehouse, visits, HOURS, AFTER)
    assert set(statuses(results).values()) == {"unchanged" if done else "published"}
    assert_holds(warehouse, visits, AFTER)


def test_a_repair_takes_exactly_these_steps_in_order(warehouse: Warehouse, visits: Table) -> None:
    taken: list[str] = []
    repair(warehouse, visits, [TEN], [visit(TEN, "ada")], on_step=taken.append)
    assert tuple(taken) == STEPS


PUBLISHER = """
import os, signal, sys
from dataclasses import replace
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform_tests.adapters.clickhouse.publishing.test_publish_crashes import AFTER, HOURS
from backfill_platform_tests.adapters.clickhouse.visits import VISITS, repair

url, name, last = sys.argv[1:]

def die(step):
    if step == last:
        os.kill(os.getpid(), signal.SIGKILL)

repair(Warehouse(url), replace(VISITS, name=name), HOURS, AFTER, on_step=die)
"""


@pytest.mark.parametrize("step", ["cancels", "attached"])
def test_a_killed_publisher_is_replaced_by_another(warehouse: Warehouse, warehouse_url: str, visits: Table, step: str) -> None:
    write_live(warehouse, visits, BEFORE)
    command = [sys.executable, "-c", PUBLISHER, warehouse_url, visits.name, step]
    killed = subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    results = repair(warehouse, visits, HOURS, AFTER)
    assert set(statuses(results).values()) == {"unchanged" if step == "attached" else "published"}
    assert_holds(warehouse, visits, AFTER)


def test_a_lost_answer_to_the_attach_is_transient_and_found_out_by_the_next_attempt(
    warehouse: Warehouse, warehouse_url: str, visits: Table
) -> None:
    class Cut(Warehouse):
        def command(self, sql: str, **options: object) -> None:
            super().command(sql, **options)  # type: ignore[arg-type]
            if sql.startswith(f"ALTER TABLE {target_name(visits)} ATTACH"):
                raise WarehouseUnavailable("the line went dead")

    connection = Cut(warehouse_url)
    with pytest.raises(WarehouseUnavailable):
        repair(connection, visits, [TEN], [visit(TEN, "ada")])
    connection.close()
    assert statuses(repair(warehouse, visits, [TEN], [visit(TEN, "ada")])) == {TEN: "unchanged"}
    assert_holds(warehouse, visits, [visit(TEN, "ada")])
