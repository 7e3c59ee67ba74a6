"""What Prometheus gets of a replay while it runs: real broker, scraped over HTTP."""

import math
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.metrics import served
from backfill_platform.adapters.kafka.replay_selection import Selection
from backfill_platform.adapters.kafka.sender import Options, Progress
from backfill_platform.domain.pacing import Limits
from backfill_platform.errors import UsageError
from backfill_platform_tests.adapters.kafka.scrape import scrape
from backfill_platform_tests.fixtures_kafka import Broker, free_ports
from backfill_platform_tests.pipelines.messages import T0
from backfill_platform_tests.topics.replays import HOURS, ask, do, landed

pytestmark = pytest.mark.whole


def test_the_figures_are_those_of_its_progress(
    tmp_path: Path, spark: Any, warehouse: Any, broker: Broker, topics: Cluster
) -> None:
    world = landed(tmp_path, spark, warehouse, broker, topics)
    asked = ask(world, options=Options(limits=Limits(messages=150)))
    selection = Selection(world.lake.root_uri, asked.name, world.pipeline.name)
    seen: list[tuple[Progress, dict[str, float]]] = []
    (port,) = free_ports(1)
    with served(port, asked.name) as figures:
        before = scrape(port, asked.name)

        def tell(one: Progress) -> None:
            figures(one)
            seen.append((one, scrape(port, asked.name)))
            selection.set_limits(Limits(messages=150, paused=len(seen) == 1))

        do(world, topics, asked, tell)
    for one, found in seen:
        assert found["messages_selected"] == one.total == 400
        assert found["messages_acknowledged"] == one.acknowledged
        assert found["sent_bytes"] == one.bytes
        assert found["messages_per_second"] == one.per_second
        assert found["remaining_seconds"] == one.seconds_left or (math.isnan(found["remaining_seconds"]) and not one.per_second)
    assert [found["paused"] for _, found in seen[:3]] == [0, 1, 0]
    assert math.isnan(before["remaining_seconds"])
    assert math.isnan(before["watermark_timestamp_seconds"])
    last = [found["watermark_timestamp_seconds"] - T0.timestamp() for _, found in seen]
    assert 0 <= last[0] < last[-2] == last[-1] < HOURS * 3600
    assert (seen[-1][1]["messages_acknowledged"], seen[-1][1]["remaining_seconds"]) == (400, 0)
    with pytest.raises(URLError):
        scrape(port, asked.name)


def test_a_port_that_is_taken_is_named() -> None:
    (port,) = free_ports(1)
    with served(port, "one"), pytest.raises(UsageError, match=rf"on port {port} .*choose another"), served(port, "two"):
        pass
    with served(port, "two"):
        assert scrape(port, "two")["paused"] == 0
