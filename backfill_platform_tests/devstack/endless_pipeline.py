"""The clickstream pipeline under names of its own, whose sessions are never done while a file `endless` lies in the home."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.examples import clickstream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_sessions, _ = clickstream.pipeline.derived


def flag(home: Path) -> Path:
    """The file that makes it endless."""
    return home / "endless"


def build(rows: "DataFrame") -> "DataFrame":
    sessions = _sessions.build(rows)
    if not flag(Path(os.environ["BACKFILL_HOME"])).exists():
        return sessions
    days_of_counting = rows.sparkSession.range(10**15).agg(F.sum(F.col("id") % 7).alias("sum"))
    return sessions.crossJoin(days_of_counting).drop("sum")


pipeline = replace(
    clickstream.pipeline,
    name="endless",
    raw=replace(clickstream.pipeline.raw, name="endless"),
    derived=(replace(_sessions, name="endless_sessions", reads="endless", build=build),),
)
