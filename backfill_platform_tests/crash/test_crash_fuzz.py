"""Publisher and warehouse are killed at every step, with merges in between, in every mode: running again always converges.

Each case follows from its seed alone: `pytest -k "seed-17"` plays it again.
"""

import multiprocessing
import random
from dataclasses import replace
from datetime import datetime

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.preconditions import check_target
from backfill_platform.adapters.clickhouse.publishing.patches import drop_patches
from backfill_platform.adapters.clickhouse.schema import STAGING_DATABASE
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.domain.tables import Partitioning, Table, TargetTable
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    KINDS,
    LATE,
    MIDNIGHT,
    OTHER_ENGINES,
    TEN,
    TWELVE,
    VISITS,
    as_counter,
    assert_holds,
    create_kind,
    final_rows,
    net_rows,
    outside,
    repair,
    statuses,
    view_totals,
    visit,
    write_live,
)
from backfill_platform_tests.crash.conftest import Mortal
from backfill_platform_tests.crash.publisher import Crash, Row, run

pytestmark = pytest.mark.whole

FAST, ALL = 20, 200
HOURS = [TEN, ELEVEN, TWELVE, LATE, MIDNIGHT]
# The steps of a publish, with the most often it is taken.
STEPS = {
    **dict.fromkeys(("leased", "fenced", "created", "loaded", "validated", "fingerprinted", "cancels", "states"), 1),
    **dict.fromkeys(("merged", "proven", "kept", "rechecked", "verified"), 1),
}
# The steps that change the target: all at once, by inserts, by partitions.
ATTACHED, INSERTED, REPLACED = {"attached": 1}, {"inserted": 5}, {"rewritten": 3, "replaced": 3}
SEEDS = [pytest.param(seed, id=f"seed-{seed}", marks=[pytest.mark.slow] if seed >= FAST else []) for seed in range(ALL)]


deaths: list[bool] = []


@pytest.fixture(scope="module")
def processes() -> "multiprocessing.context.ForkServerContext":
    """Starts processes that have imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["backfill_platform_tests.crash.publisher"])
    return context


def some_rows(chance: random.Random, hours: list[datetime]) -> list[Row]:
    return [
        visit(hour, f"visitor {number}", pages=chance.randrange(3), country=chance.choice([None, "fr"]))
        for hour in hours
        for number in range(6)
        if chance.random() < 0.7
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_repair_converges_after_any_process_was_killed_at_any_step(
    mortal: Mortal, processes: "multiprocessing.context.ForkServerContext", seed: int
) -> None:
    chance = random.Random(seed)
    kinds = [*KINDS, *OTHER_ENGINES]
    kind, partitioning = kinds[seed % len(kinds)], chance.choice(list(Partitioning))
    target = OTHER_ENGINES.get(kind, TargetTable())
    added = INSERTED if "view" in kind else ATTACHED
    steps = {**STEPS, **(REPLACED if target.replaces_partitions else added)}
    table = replace(VISITS, name=f"fuzz_{seed}", partitioning=partitioning, target=target)
    hours = sorted(chance.sample(HOURS, chance.randint(1, 4)))
    old, new = some_rows(chance, HOURS), some_rows(chance, hours)
    far = [row for row in old if row["hour"] not in hours]
    create_kind(mortal.warehouse, table, kind)
    for part in (old[::2], old[1::2]):
        write_live(mortal.warehouse, table, part)
    rows_outside = outside(mortal.warehouse, table, hours)[1]
    lost_view = False
    story = []
    for turn in range(chance.randint(1, 3)):
        crash, attempt = draw(chance, steps, seed, turn, mortal.server.pid)
        story.append(f"{kind}, {partitioning}: {crash} as {attempt}")
        arguments = (mortal.server.url, table, hours, new, attempt, crash)
        process = processes.Process(target=run, args=arguments)
        process.start()
        process.join()
        deaths.append(process.exitcode != 0)
        if crash.pid:
            lost_view = True
            mortal.restart()
        assert_sound(mortal.warehouse, table, old, new, hours, story)
        assert outside(mortal.warehouse, table, hours)[1] == rows_outside, story
    results = repair(mortal.warehouse, table, hours, new)
    assert set(statuses(results).values()) <= {"published", "unchanged"}, (story, results)
    if check_target(mortal.warehouse, table).views and not lost_view:
        pages: dict[datetime, tuple[int, int]] = {}
        for row in new + far:
            before = pages.get(row["hour"], (0, 0))
            pages[row["hour"]] = (before[0] + row["pages"], before[1] + 1)
        assert view_totals(mortal.warehouse, table) == pages, story
    assert_holds(mortal.warehouse, table, new + far)
    assert outside(mortal.warehouse, table, hours)[1] == rows_outside, story
    assert staging_tables(mortal.warehouse, table) == 0, story
    drop(mortal.warehouse, table)


def test_most_processes_were_killed() -> None:
    """Most of the processes above did not live to the end."""
    assert sum(deaths) >= 0.6 * len(deaths)


def draw(chance: random.Random, steps: dict[str, int], seed: int, turn: int, warehouse: int) -> tuple[Crash, str]:
    """When who dies; every step has its turn as seeds are counted up."""
    moments = [(step, nth) for step, most in steps.items() for nth in range(1, most + 1)]
    step, nth = moments[(seed + turn * 7) % len(moments)]
    victim = warehouse if chance.random() < 0.4 else 0
    later = chance.choice([0.0, 0.0, chance.random() * 0.05])
    # A repair is run again under its name, or by somebody else.
    name = f"f{seed}" if chance.random() < 0.7 else f"f{seed}x{turn}"
    return Crash(step, nth, victim, later, merges=chance.randrange(1 << 30)), name


def assert_sound(
    warehouse: Warehouse, table: Table, old: list[Row], new: list[Row], hours: list[datetime], story: list[str]
) -> None:
    """Whatever happened: net state and FINAL agree, no key is stored twice, and each row is an old or a new one."""
    net = net_rows(warehouse, table)
    assert net == final_rows(warehouse, table), story
    assert set(net.values()) <= {1}, story
    assert len({row[:2] for row in net}) == len(net), story
    assert net.keys() <= as_counter(old).keys() | as_counter(new).keys(), story
    for hour in hours:  # a partition is published as a whole, hence an hour too
        rows = {row for row in net if row[0] == hour}
        allowed = [{row for row in as_counter(side) if row[0] == hour} for side in (old, new)]
        assert rows in allowed, (hour, story)


def staging_tables(warehouse: Warehouse, table: Table) -> int:
    ((count,),) = warehouse.rows(
        "SELECT count() FROM system.tables WHERE database = {database:String} AND comment = {target:String}",
        parameters={"database": STAGING_DATABASE, "target": str(table)},
        doing="looking",
    )
    return int(count)


def drop(warehouse: Warehouse, table: Table) -> None:
    drop_patches(warehouse, table, older_than_days=0)
    for name in (f"transformed.{table.name}_totals_view", f"transformed.{table.name}_totals", target_name(table)):
        warehouse.command(f"DROP TABLE IF EXISTS {name} SYNC", doing="cleaning up")
