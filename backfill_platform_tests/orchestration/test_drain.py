"""A launch of the drain job is the request that creates a consumer: it handles what there is, tells its counts, and ends."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from backfill_platform.orchestration.drain import drain_job, drain_job_name
from backfill_platform.streams.kafka import Cluster
from backfill_platform_tests.fixtures_kafka import Broker
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.orchestration.holders import Opened
from backfill_platform_tests.pipelines.messages import Visit, pipeline_over, send
from backfill_platform_tests.repair.world import World


@pytest.fixture
def world(tmp_path: Path, warehouse: Any, broker: Broker) -> Iterator[World]:
    topic = broker.topic()
    send(broker.producer(), topic, [Visit("user-1", 60 * number, number) for number in range(70)])
    with closing(Cluster(broker.config)) as cluster:
        yield World(tmp_path, None, warehouse, pipeline_over(topic, 2), open_lake(tmp_path), lambda: cluster)


def launch(world: World, **config: str) -> dg.ExecuteInProcessResult:
    name = world.pipeline.name
    definitions = dg.Definitions(jobs=[drain_job(world.pipeline)], resources={"connections": Opened(world)})
    return definitions.resolve_job_def(drain_job_name(name)).execute_in_process(
        instance=dg.DagsterInstance.ephemeral(),
        run_config={"ops": {f"{name}_drain_op": {"config": {"drain": f"d-{name}", **config}}}},
        raise_on_error=False,
    )


def test_a_launch_drains_the_topic_and_shows_the_counts(world: World) -> None:
    topic = world.pipeline.source.topic
    result = launch(world, topic=topic)
    assert result.success
    assert result.output_for_node(f"{world.pipeline.name}_drain_op") == {"handled": 70, "sent": 0}
    (output,) = [event for event in result.all_events if event.event_type_value == "STEP_OUTPUT"]
    table = output.step_output_data.metadata["counts"]
    assert [(row.data["hour (UTC)"], row.data["messages persisted"]) for row in table.records] == [
        ("2026-03-01T10", 60),
        ("2026-03-01T11", 10),
    ]
    again = launch(world, topic=topic)
    assert again.output_for_node(f"{world.pipeline.name}_drain_op") == {"handled": 0, "sent": 0}


def test_what_cannot_be_drained_fails_once_with_one_sentence(world: World) -> None:
    for config, said in (
        ({"topic": "nobody-has-it"}, "no topic nobody-has-it"),
        ({"handler": "other"}, "has no handler 'other'"),
    ):
        result = launch(world, **config)
        assert not result.success
        (failure,) = [event for event in result.all_events if event.is_step_failure]
        assert said in (failure.step_failure_data.user_failure_data.description or "")
        assert not [event for event in result.all_events if event.is_step_up_for_retry]
