"""Warming a new Spark server: `python -m backfill_platform.devstack.warm` builds a few sessions in a temporary lake.

A JVM loads and compiles code when a query first needs it: without this the first repair takes three times as long.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from backfill_platform.adapters.connections import Connections
from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.adapters.spark.session import open_session
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import BuildHours, LandHours
from backfill_platform.domain.request import RepairRequest
from backfill_platform.domain.uris import local_uri
from backfill_platform.domain.windows import contiguous_runs
from backfill_platform.examples import clickstream
from backfill_platform.repair.iceberg_lake import IcebergLake
from backfill_platform.repair.job import RepairIdentity, RepairJob
from backfill_platform.repair.sources import OutsideWorld
from backfill_platform.repair.spark_builder import SparkBuilder
from backfill_platform.settings import load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLIENTS = 50
_TURNS = 3  # code that runs often is compiled better
_HOURS = HourRange(clickstream.HOURS.start, clickstream.HOURS.start + 3 * HOUR)


def warm(spark: SparkSession) -> int:
    """Land, and build in turns, the hours of a small clickstream; returns how many sessions were built."""
    sessions = 0
    with tempfile.TemporaryDirectory(prefix="backfill-warm-") as name:
        folder = Path(name)
        (folder / "requests.csv").write_text("".join(_lines()))
        source = ArchiveFile(local_uri(folder / "requests.csv"), _HOURS)
        pipeline = replace(clickstream.pipeline, source=source, end=_HOURS.end)
        lake = Lake(f"sqlite:///{folder}/catalog.db", local_uri(folder / "lake"))
        for table in pipeline.tables:
            lake.ensure(table)
            lake.ensure(quarantine_of(table))
        hours = HourRange(_HOURS.start, _HOURS.start + HOUR)
        for turn in range(_TURNS):
            job = RepairJob(pipeline, RepairRequest(), RepairIdentity(f"warm-{turn}", ""), lambda: _HOURS.end)
            port = IcebergLake(lake, job.repair_id)
            builder = SparkBuilder(job, lake, lambda: spark, OutsideWorld(), _no_ledger)
            raw = pipeline.nodes[0]
            builder.land(LandHours(raw, _HOURS), list(_HOURS))
            port.promote(raw.table, list(_HOURS))
            for node in pipeline.nodes[1:]:
                runs, _ = contiguous_runs(hours, set(_HOURS), node.window, pipeline.start, pipeline.end)
                built = builder.build(BuildHours(node, hours), runs)
                port.promote(node.table, list(hours))
                sessions += sum(audit.written for audit in built.audits.values())
    return sessions


def _no_ledger() -> NoReturn:
    raise AssertionError("files have no offsets to look up")


def _lines() -> list[str]:
    """A request of each client every twenty minutes, so that sessions go on beyond the hour."""
    at = [f"30/Apr/1998,{second // 3600 + 22:02}:{second // 60 % 60:02}:{second % 60:02}" for second in range(0, 7200, 1200)]
    return [f"{client},{moment},/{client}.html,200,100\n" for moment in at for client in range(_CLIENTS)]


def main() -> None:
    """Warm the Spark server of the settings; stop when standard input ends, which the parent process keeps open."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    settings = load_settings()
    options = Connections(settings).spark_options()
    spark = open_session(options, settings.spark_log)
    try:
        warm(spark)
    finally:
        spark.stop()


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
