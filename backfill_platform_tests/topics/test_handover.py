"""A live job that takes over open sessions ends with the sessions of plain Python, though it sees only later events."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.domain.hours import HOUR
from backfill_platform.errors import UsageError
from backfill_platform.topics.handover import hand_over, session_table
from backfill_platform_tests.fixtures_kafka import Broker
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.pipelines.messages import GAP, T0, Session, Visit, add_visits, pipeline_over, send, sessions_of
from backfill_platform_tests.topics.replays import read_all
from backfill_platform_tests.topics.test_land_topic import some_visits
from backfill_platform_tests.world import World

pytestmark = pytest.mark.whole

EDGE = T0 + 2 * HOUR


def go_on(states: list[dict[str, Any]], later: list[Visit]) -> dict[tuple[str, datetime], Session]:
    """The consumer's side, as docs/how-to/topics.md has it: a state is the open session of its key, and is continued."""
    found: dict[tuple[str, datetime], Session] = {}
    open_: dict[str, tuple[str, datetime]] = {}
    for one in states:
        row = one["session"]
        key = (row["user"], datetime.fromisoformat(row["started_at"]))
        found[key] = (datetime.fromisoformat(row["ended_at"]), row["visits"], row["numbers"])
        open_[row["user"]] = key
    add_visits(found, open_, later)
    return found


def test_a_live_job_continues_the_sessions_that_were_open(
    tmp_path: Path, spark: Any, warehouse: Any, broker: Broker, topics: Cluster
) -> None:
    topic, visits = broker.topic(partitions=2), some_visits(9, 300, 4)
    send(broker.producer(), topic, [*visits, *visits[::7]])
    world = World(tmp_path, spark, warehouse, pipeline_over(topic, 4), open_lake(tmp_path), lambda: topics)
    raw = world.pipeline.raw.table
    world.run([raw.path])
    name, count = hand_over(spark, world.lake, topics, world.pipeline, "", EDGE, "repair-1")
    states = [json.loads(one.value()) for one in read_all(topics, name)]
    assert len(states) == count > 3
    assert {(one["as_of"], one["repair"], one["begins_earlier"]) for one in states} == {(EDGE.isoformat(), "repair-1", False)}
    found = go_on(states, [one for one in visits if one.at >= EDGE])
    wanted = {key: value for key, value in sessions_of(visits).items() if value[0] + GAP > EDGE}
    assert found == wanted
    alone = go_on([], [one for one in visits if one.at >= EDGE])
    assert alone != wanted, "no session crosses the edge: the test shows nothing"
    assert topics.topic_config(name)["cleanup.policy"] == "compact"


def test_a_table_that_has_no_sessions_is_named() -> None:
    pipeline = pipeline_over("none", 1)
    with pytest.raises(UsageError, match=pipeline.derived[0].name):
        session_table(pipeline, "other")
