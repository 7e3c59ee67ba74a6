"""A requeue in a process of its own that kills itself at a point: `python -m ... FOLDER SUFFIX WAREHOUSE POINT`."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import event

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.iceberg.atomic_catalog import AtomicCatalog
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.spark.session import session_options, use_this_interpreter
from backfill_platform.domain.plan import requeue_plan
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.repair.requeue_world import hourly_pipeline, of_today
from backfill_platform_tests.world import World

# Rows are staged; rejects are staged, too; within the transaction of the catalog, when it has named one of the two tables and
# when it has named both; it is committed; and never.
POINTS = ("rows", "rejects", "one named", "both named", "committed", "none")


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(function: Any, times: int) -> Any:
    """The function, which kills the process when it has returned for so many times."""
    calls = []

    def call(*given: Any, **named: Any) -> Any:
        result = function(*given, **named)
        calls.append(1)
        if len(calls) == times:
            die()
        return result

    return call


def main(folder: Path, suffix: str, url: str, point: str) -> None:
    """Requeue with the parser of today, as far as it comes."""
    from pyspark.sql import SparkSession

    use_this_interpreter()
    builder = SparkSession.builder
    for key, value in session_options(master="local[2]", remote=None, driver_memory="1g").items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    world = World(folder, spark, Warehouse(url), hourly_pipeline(folder, suffix), open_lake(folder), repairs=7)
    if point in ("rows", "rejects"):
        Lake.stage = dying_after(Lake.stage, 1 + (point == "rejects"))  # type: ignore[method-assign]
    elif point == "committed":
        AtomicCatalog._swap = dying_after(AtomicCatalog._swap, 1)  # type: ignore[method-assign]
    elif point in ("one named", "both named"):
        swap = AtomicCatalog._swap

        def watched(catalog: Any, held: Any) -> None:
            event.listen(catalog.engine, "after_cursor_execute", dying_after(lambda *_: None, 1 + (point == "both named")))
            swap(catalog, held)

        AtomicCatalog._swap = watched  # type: ignore[method-assign, assignment]
    plan = requeue_plan(world.pipeline.name, world.pipeline.nodes[0], world.hours)
    world.walk([plan], world.job(of_today(world.pipeline)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4])
