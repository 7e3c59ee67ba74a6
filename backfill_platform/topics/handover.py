"""Handing open sessions over to a live job: what is known of them at the end of a repaired range, in a state topic.

A live job that began at that moment would cut them in half and contradict the repair. It reads this topic first, and merges
each state into the session of its key (docs/how-to/topics.md has the consumer's side).
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.session_states import State, send_states
from backfill_platform.adapters.spark.events import events_for
from backfill_platform.adapters.spark.hours import between
from backfill_platform.adapters.spark.reader import stored_rows
from backfill_platform.adapters.spark.sessions import micros
from backfill_platform.domain.hours import hour_of
from backfill_platform.domain.windows import UntilClosed
from backfill_platform.errors import UsageError
from backfill_platform.pipelines.spec import DerivedTable, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = 1  # of the states; another one goes to another topic


def state_topic(pipeline: Pipeline, table: str) -> str:
    """The topic of the open sessions of a table; its name has the version of the format."""
    return f"{pipeline.name}.{table}.state.v{FORMAT}"


def session_table(pipeline: Pipeline, name: str = "") -> tuple[DerivedTable, UntilClosed]:
    """The table of sessions of that name, or the only one. Raises UsageError with the tables there are."""
    found = {}
    for one in pipeline.derived:
        ahead = one.window.lookahead
        if isinstance(ahead, UntilClosed):
            found[one.name] = (one, ahead)
    if name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    have = ", ".join(sorted(found)) or "none"
    raise UsageError(f"pipeline {pipeline.name}: name one of its tables of sessions over raw events: {have}")


def open_states(spark: SparkSession, lake: Lake, pipeline: Pipeline, table: str, end: datetime, repair: str) -> list[State]:
    """The sessions that an event at `end` could still continue, as the events before it make them.

    Events are read back to the cap of sessions before `end`; one that began earlier begins there, as `begins_earlier` says.
    """
    declared, ahead = session_table(pipeline, table)
    raw, time, key = pipeline.raw.table, pipeline.raw.event_time, ahead.key
    begin = max(end - ahead.cap - ahead.gap, min(pipeline.start, end))
    paths = [file.uri for file in lake.files_between(raw, time, begin, end)]
    if not paths:
        return []
    events = stored_rows(spark, raw, paths).where(between(time, begin, end))
    active = events.where(between(time, end - ahead.gap, end)).select(key).distinct()
    events = events.join(F.broadcast(active), key, "left_semi")
    events, _ = events_for(declared.window, events, pipeline.raw.same_event, time, [hour_of(end)])
    sessions = declared.build(events)
    gap = int(ahead.gap.total_seconds() * 1_000_000)
    still_open = sessions.where(micros(F.col(ahead.ended)) + gap > micros(F.lit(end)))
    early = micros(F.col(ahead.started)) < micros(F.lit(begin)) + gap
    cut = early & F.lit(begin > pipeline.start)
    rows = still_open.select(
        F.col(key).cast("string").alias("key"), cut.alias("cut"), F.to_json(F.struct(*sessions.columns)).alias("row")
    )
    return [State(found["key"], _value(pipeline, declared, end, repair, found)) for found in rows.collect()]


def hand_over(
    spark: SparkSession, lake: Lake, cluster: Cluster, pipeline: Pipeline, table: str, end: datetime, repair: str
) -> tuple[str, int]:
    """Send the open sessions at `end` to their state topic, made where it is missing; its name, and how many they are."""
    declared, _ = session_table(pipeline, table)
    topic = state_topic(pipeline, declared.name)
    states = open_states(spark, lake, pipeline, table, end, repair)
    send_states(cluster, topic, states)
    return topic, len(states)


def _value(pipeline: Pipeline, declared: DerivedTable, end: datetime, repair: str, found: Any) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "code_version": pipeline.code_version(declared.name),
        "repair": repair,
        "as_of": end.isoformat(),
        "begins_earlier": found["cut"],
        "session": json.loads(found["row"]),
    }
