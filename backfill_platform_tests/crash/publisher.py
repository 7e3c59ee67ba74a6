"""A publisher in a process of its own that is killed, or kills the warehouse, at a step or a little after it."""

import os
import random
import signal
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.prepare import prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.domain.tables import Table
from backfill_platform.errors import BackfillError
from backfill_platform_tests.adapters.clickhouse.visits import counts

Row = dict[str, Any]


@dataclass(frozen=True)
class Crash:
    """Kill `pid` (0: the publisher itself) at the `nth` time that `step` is over, or so many seconds later."""

    step: str
    nth: int
    pid: int
    later: float
    merges: int  # seed of the merges that happen between steps


def run(url: str, table: Table, hours: list[datetime], rows: list[Row], attempt: str, crash: Crash) -> None:
    """Make the hours hold the rows, as far as it comes."""
    warehouse = Warehouse(url)
    seen: list[str] = []
    chance = random.Random(crash.merges)

    def kill() -> None:
        os.kill(crash.pid or os.getpid(), signal.SIGKILL)

    def on_step(step: str) -> None:
        seen.append(step)
        if chance.random() < 0.15:
            warehouse.command(f"OPTIMIZE TABLE {target_name(table)} {chance.choice(['', 'FINAL'])}", doing="merging")
        if step == crash.step and seen.count(step) == crash.nth:
            if crash.later:
                threading.Timer(crash.later, kill).start()
            else:
                kill()

    try:
        with Staging(warehouse, table, attempt, hours, lease_seconds=1, on_step=on_step) as staging:
            staging.load_rows(rows, counts(rows))
            publish(prepare(staging, hours, on_step=on_step), on_step=on_step)
    except BackfillError:
        os._exit(3)  # as a run that fails does when its warehouse is gone
