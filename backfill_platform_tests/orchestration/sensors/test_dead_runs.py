"""A run whose process is killed tells nobody; its sensor does, once, and not of runs that have told by themselves."""

import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from backfill_platform.adapters.delivery.channel import AppriseChannel
from backfill_platform.adapters.delivery.dispatcher import Patience, Recipient
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.notification import NotificationKind
from backfill_platform.examples import clickstream
from backfill_platform.notifications.recipients import Audience
from backfill_platform.orchestration.notifications import Notifier
from backfill_platform.orchestration.partitions import range_tags
from backfill_platform.orchestration.run_request import NOTIFIED_TAG
from backfill_platform.orchestration.sensors.dead_runs import dead_run_sensor
from backfill_platform_tests.adapters.delivery.servers import Hook, hook_server

PIPELINE = clickstream.pipeline
HOURS = HourRange(PIPELINE.start, clickstream.HOURS.end)


@dg.job
def repair() -> None:
    """Stands for the pipeline's job: only its name and its run matter here."""


@pytest.fixture
def hook() -> Iterator[Hook]:
    with hook_server() as server:
        yield server


def evaluate(hook: Hook, tags: dict[str, str]) -> object:
    """Let the sensor see a run that has failed."""
    recipient = Recipient("web-team", (AppriseChannel(hook.address()),), frozenset({NotificationKind.FAILED}))
    notifier = Notifier(Audience((recipient,), patience=Patience(2, 0.05)), lambda: "https://dagster.example")
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(repair, tags={**range_tags(HOURS), **tags})
        instance.report_run_failed(run, "The process of this run was killed.")
        failed = instance.get_run_by_id(run.run_id)
        assert failed is not None
        (event,) = [
            entry.dagster_event
            for entry in instance.all_logs(run.run_id)
            if entry.dagster_event and entry.dagster_event.event_type is dg.DagsterEventType.RUN_FAILURE
        ]
        context = dg.build_run_status_sensor_context(
            sensor_name="s", dagster_event=event, dagster_instance=instance, dagster_run=failed
        ).for_run_failure()
        return dead_run_sensor(PIPELINE, [repair], notifier)(context)


def test_a_run_that_was_killed_is_told_with_its_hours_and_why_it_ran(hook: Hook, tmp_path: Path) -> None:
    evaluate(hook, {"backfill/reason": "a broker was down", "backfill/requester": "ada", "backfill/repair": "r7"})
    ((_, _, body),) = hook.requests
    assert body["title"] == "[backfill] clickstream: repair failed"
    assert body["type"] == "failure"
    for text in (
        "What was wrong: a broker was down (asked by ada)",
        "Hours: 1998-04-30 22:00 to 1998-05-01 22:00 UTC, 24 hours",
        "What went wrong: The process of this run was killed.",
        "Repair: r7",
        "https://dagster.example/runs/",
    ):
        assert text in body["message"], json.dumps(body)


def test_a_run_that_has_told_by_itself_is_not_told_again(hook: Hook) -> None:
    assert isinstance(evaluate(hook, {NOTIFIED_TAG: "true"}), dg.SkipReason)
    assert hook.requests == []
