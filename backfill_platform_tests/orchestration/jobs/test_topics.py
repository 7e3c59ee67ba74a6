"""Launches of the jobs of topics are the requests to replay and to drain: they tell every hour's counts, and end."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.event_api import PartitionKeyFilter

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.definitions import build_definitions
from backfill_platform.detection.validation import Verdict, check_pipeline
from backfill_platform.domain.hours import HOUR, HourRange, format_hour, partition_key
from backfill_platform.orchestration.assets import asset_specs
from backfill_platform.orchestration.checks.delivery_counts import delivery_count_checks
from backfill_platform.orchestration.jobs.topics import drain_job, drain_job_name, replay_job, replay_job_name
from backfill_platform.orchestration.partitions import partitions_of, range_tags
from backfill_platform.settings import Settings
from backfill_platform.topics.delivery_counts import DELIVERY_COUNTS
from backfill_platform_tests.adapters.kafka.scrape import scraping
from backfill_platform_tests.fixtures_kafka import Broker, free_ports
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.fixtures_stack import ROOT
from backfill_platform_tests.orchestration.holders import Opened, SparkHolder
from backfill_platform_tests.pipelines.messages import T0, Visit, pipeline_over, send
from backfill_platform_tests.world import World

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")]

KEYS = [partition_key(T0), partition_key(T0 + HOUR)]


@pytest.fixture
def world(tmp_path: Path, spark: Any, warehouse: Any, broker: Broker) -> Iterator[World]:
    """Seventy visits in two hours of a topic."""
    topic = broker.topic()
    send(broker.producer(), topic, [Visit("user-1", 60 * number, number) for number in range(70)])
    with closing(Cluster(broker.config)) as cluster:
        yield World(tmp_path, spark, warehouse, pipeline_over(topic, 2), open_lake(tmp_path), lambda: cluster)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as found:
        yield found


def definitions(world: World) -> dg.Definitions:
    pipeline, partitions = world.pipeline, partitions_of(world.pipeline)
    return dg.Definitions(
        assets=asset_specs(pipeline, partitions),
        asset_checks=[delivery_count_checks(pipeline, partitions)],
        jobs=[
            replay_job(pipeline, [pipeline]),
            drain_job(pipeline),
            dg.define_asset_job("count", dg.AssetSelection.checks(delivery_count_checks(pipeline, partitions))),
        ],
        resources={"connections": Opened(world), "spark": SparkHolder(world.spark)},
    )


def launch(world: World, instance: dg.DagsterInstance, job: str, **config: Any) -> dg.ExecuteInProcessResult:
    name = world.pipeline.name
    found = definitions(world).resolve_job_def(job)
    op = f"{name}_replay_op" if job == replay_job_name(name) else f"{name}_drain_op"
    run_config = {"ops": {op: {"config": config}}}
    return found.execute_in_process(instance=instance, run_config=run_config, raise_on_error=False)


def drain(world: World, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    name = world.pipeline.name
    return launch(world, instance, drain_job_name(name), **{"drain": f"d-{name}", **config})


def resend(world: World, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    hours = {"start": format_hour(T0), "end": format_hour(T0 + 2 * HOUR)}
    return launch(world, instance, replay_job_name(world.pipeline.name), **{**hours, **config})


def verdicts(world: World, instance: dg.DagsterInstance) -> dict[str, bool]:
    """The newest verdict of `delivery_counts` of each hour that has one."""
    key = dg.AssetCheckKey(dg.AssetKey(list(world.pipeline.raw.table.path)), DELIVERY_COUNTS)
    log, found = instance.event_log_storage, {}
    for info in log.get_asset_check_partition_info([key]):
        chosen = PartitionKeyFilter(key=info.partition_key)
        for one in log.get_asset_check_execution_history(key, 1, partition_filter=chosen) if info.partition_key else ():
            if one.evaluation is not None:
                found[str(info.partition_key)] = one.evaluation.passed
    return found


def failure(result: dg.ExecuteInProcessResult) -> str:
    (found,) = [event for event in result.all_events if event.is_step_failure]
    told = found.step_failure_data.user_failure_data
    return (told and told.description) or ""


def test_a_launch_drains_the_topic_and_shows_the_counts(world: World, instance: dg.DagsterInstance) -> None:
    topic = world.topic.topic
    result = drain(world, instance, topic=topic)
    assert result.success
    assert result.output_for_node(f"{world.pipeline.name}_drain_op") == {"handled": 70, "sent": 0}
    (output,) = [event for event in result.all_events if event.event_type_value == "STEP_OUTPUT"]
    table = output.step_output_data.metadata["counts"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [(row.data["hour (UTC)"], row.data["messages persisted"]) for row in table.records] == [
        ("2026-03-01T10", 60),
        ("2026-03-01T11", 10),
    ]
    again = drain(world, instance, topic=topic)
    assert again.output_for_node(f"{world.pipeline.name}_drain_op") == {"handled": 0, "sent": 0}
    assert not verdicts(world, instance), "nothing was replayed"


def test_a_replay_and_its_drain_are_counted_by_a_check_of_the_raw_hours(world: World, instance: dg.DagsterInstance) -> None:
    hours = HourRange(T0, T0 + 2 * HOUR)
    world.run([world.pipeline.raw.table.path])
    sent = resend(world, instance, name="again")
    assert sent.success
    assert sent.output_for_node(f"{world.pipeline.name}_replay_op") == {"replay": "again", "acknowledged": 70}
    assert verdicts(world, instance) == dict.fromkeys(KEYS, True)

    assert drain(world, instance).success
    assert verdicts(world, instance) == dict.fromkeys(KEYS, True)
    found = [one for one in check_pipeline(world.job(), world.services, hours) if one.check == DELIVERY_COUNTS]
    assert [one.count(Verdict.PASSED) for one in found] == [2]
    assert "10 selected, 10 acknowledged, 10 persisted" in found[0].hours[T0 + HOUR][1]

    # Somebody sends a message of the second hour once more, under the name of the replay.
    topic = world.pipeline.backfill_topic
    headers = [("backfill-repair", b"again"), ("backfill-hour", format_hour(T0 + HOUR).encode())]
    with closing(Cluster(world.kafka().config)) as cluster:
        from confluent_kafka import Producer

        producer = Producer(cluster.config)
        producer.produce(topic, b"{}", b"user-1", headers=headers)
        assert producer.flush(30) == 0
    wrong = drain(world, instance)
    assert "10 selected, 10 acknowledged, 11 persisted" in failure(wrong)
    assert verdicts(world, instance) == {KEYS[0]: True, KEYS[1]: False}
    (judged,) = [one for one in check_pipeline(world.job(), world.services, hours) if one.check == DELIVERY_COUNTS]
    assert (judged.count(Verdict.PASSED), judged.count(Verdict.FAILED)) == (1, 1)

    # The check by itself says the same.
    counted = definitions(world).resolve_job_def("count")
    looked = counted.execute_in_process(instance=instance, tags=range_tags(hours), raise_on_error=False)
    told = [one.description for one in looked.get_asset_check_evaluations() if one.partition is None]
    assert told == [f"1 of 2 replayed hours of {hours} have counts that differ"]


def test_the_same_name_goes_on_and_sends_nothing_twice(world: World, instance: dg.DagsterInstance) -> None:
    world.run([world.pipeline.raw.table.path])
    for _ in range(2):
        assert resend(world, instance, name="again", messages_per_second=1000).success
    with closing(Cluster(world.kafka().config)) as cluster:
        assert sum(log.end for log in cluster.logs(world.pipeline.backfill_topic).values()) == 70


def test_the_figures_of_a_launch_are_served_while_it_runs(world: World, instance: dg.DagsterInstance) -> None:
    world.run([world.pipeline.raw.table.path])
    (port,) = free_ports(1)
    with scraping(port, "again") as found:
        assert resend(world, instance, name="again", messages_per_second=20, metrics_port=port).success
    assert 0 < found.result()["messages_acknowledged"] <= found.result()["messages_selected"] == 70


def test_what_cannot_be_done_fails_once_with_one_sentence(world: World, instance: dg.DagsterInstance) -> None:
    topic = world.topic.topic
    for result, said in (
        (drain(world, instance, topic="nobody-has-it"), "no topic nobody-has-it"),
        (drain(world, instance, handler="other"), "has no handler 'other'"),
        (resend(world, instance, topic=topic), f"{topic} is a live topic"),
        (resend(world, instance, end="tomorrow"), "tomorrow"),
        (resend(world, instance, beside=["other"]), "other"),
        (resend(world, instance), "which the lake lacks"),
    ):
        assert not result.success
        assert said in failure(result)
        assert not [event for event in result.all_events if event.is_step_up_for_retry]


def test_a_launch_without_a_name_is_that_of_its_run(world: World, instance: dg.DagsterInstance) -> None:
    world.run([world.pipeline.raw.table.path])
    result = resend(world, instance, max_misalignment_minutes=1)
    assert result.output_for_node(f"{world.pipeline.name}_replay_op")["replay"] == f"replay-{result.run_id}"
    (entry, *_) = Ledger(world.warehouse).read(target=f"kafka/{world.pipeline.backfill_topic}", modes=["replay"])
    assert entry.repair_id == f"replay-{result.run_id}"
    assert replace(entry, finished_at=datetime.now(UTC)).rows_kept in (10, 60)


def test_jobs_of_topics_are_there_where_a_cluster_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(kafka: str) -> tuple[set[str], set[str]]:
        monkeypatch.setenv("BACKFILL_KAFKA", kafka)
        repository = build_definitions(Settings(home=tmp_path, project=ROOT)).get_repository_def()
        return {job.name for job in repository.get_all_jobs()}, {key.name for key in repository.asset_graph.asset_check_keys}

    jobs, checks = names("{}")
    more_jobs, more_checks = names('{"bootstrap.servers": "127.0.0.1:1"}')
    assert {name.partition("_")[2] for name in more_jobs - jobs} == {"replay", "drain"}
    assert more_checks - checks == {DELIVERY_COUNTS}
