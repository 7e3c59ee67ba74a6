"""A run whose process is killed tells nobody; its sensor does, once, and not of runs that have told by themselves."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from backfill_platform.orchestration.range_concurrency import repair_job, undo_job_name
from backfill_platform.orchestration.run_request import NOTIFIED_TAG
from backfill_platform.orchestration.sensors.dead_runs import dead_run_sensor
from backfill_platform_tests.adapters.delivery.servers import Hook, hook_server

PIPELINE = clickstream.pipeline
HOURS = HourRange(PIPELINE.start, clickstream.HOURS.end)


REPAIR, UNDO = repair_job(PIPELINE.name), undo_job_name(PIPELINE.name)
OF_THE_WEB_PAGE = "__ASSET_JOB"  # Dagster's own, of which the runs of its page are


@pytest.fixture
def hook() -> Iterator[Hook]:
    with hook_server() as server:
        yield server


def evaluate(hook: Hook, tags: dict[str, str], job: str = REPAIR, asset: str = "", **run_values: Any) -> None:
    """Let the sensor see a run that has failed."""
    recipient = Recipient("web-team", (AppriseChannel(hook.address()),), frozenset({NotificationKind.FAILED}))
    notifier = Notifier(Audience((recipient,), patience=Patience(2, 0.05)), lambda: "https://dagster.example")
    with dg.DagsterInstance.ephemeral() as instance:
        selection = frozenset({dg.AssetKey(asset.split("/"))}) if asset else None
        run = instance.add_run(dg.DagsterRun(job, tags={**range_tags(HOURS), **tags}, asset_selection=selection, **run_values))
        if NOTIFIED_TAG in tags:
            instance.add_run_tags(run.run_id, {NOTIFIED_TAG: tags[NOTIFIED_TAG] or run.run_id})
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
        dead_run_sensor(PIPELINE, notifier)(context)


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
    evaluate(hook, {NOTIFIED_TAG: ""})
    assert hook.requests == []


def test_the_tag_of_the_run_that_it_repeats_does_not_silence_a_run(hook: Hook) -> None:
    evaluate(hook, {NOTIFIED_TAG: "the run before"})
    assert len(hook.requests) == 1


def test_of_a_run_that_dagster_launches_again_the_last_try_is_told(hook: Hook) -> None:
    evaluate(hook, {"dagster/will_retry": "true"})
    assert hook.requests == []


def test_a_run_of_the_web_page_is_told_to_the_recipients_of_its_pipeline(hook: Hook) -> None:
    evaluate(hook, {}, OF_THE_WEB_PAGE, "transformed/transactions")
    assert hook.requests == []
    evaluate(hook, {}, OF_THE_WEB_PAGE, "transformed/sessions")
    assert len(hook.requests) == 1


def test_a_killed_undo_is_told_as_one(hook: Hook) -> None:
    config = {"ops": {f"{UNDO}_op": {"config": {"repair": "r7"}}}}
    evaluate(hook, {}, UNDO, run_config=config)
    ((_, _, body),) = hook.requests
    assert body["title"] == "[backfill] clickstream: undo of r7 failed"


def test_the_web_pages_job_is_called_as_in_dagster() -> None:
    assets = dg.Definitions(assets=[dg.AssetSpec("a")])
    assert OF_THE_WEB_PAGE in [job.name for job in assets.resolve_all_job_defs()]
