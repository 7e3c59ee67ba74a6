"""What is asked of a repair besides its hours: one parser for the web page, the command line and the API."""

from typing import Any

import dagster as dg
import pytest

from backfill_platform.domain.change_limits import NO_LIMITS, ChangeLimits
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import Landing, make_plan
from backfill_platform.domain.request import RepairRequest
from backfill_platform.errors import UsageError
from backfill_platform.examples import clickstream, payments
from backfill_platform.orchestration.run_request import Margins, Mode, RepairConfig, RunRequest, plan_config

BYTES_ONLY = ChangeLimits(columns=frozenset({"bytes"}))
PIPELINE = clickstream.pipeline


def said(**fields: Any) -> RepairConfig:
    """The configuration of a run, of which most fields are left out."""
    return RepairConfig(**fields)


@pytest.mark.parametrize(
    "request_",
    [
        RunRequest(),
        RunRequest(
            RepairRequest(
                reason="a broker was down",
                requester="ada",
                change_limits=BYTES_ONLY,
                rewrite_inconsistent=True,
                allow_open_hours=True,
            ),
            landing=Landing.REPLACE,
        ),
        RunRequest(RepairRequest(reason="", requester=""), landing=Landing.MISSING),
        RunRequest(RepairRequest(reason="live", routine=True)),
        RunRequest(RepairRequest(reason="one client", requester="ada", tenants=("17505", "a, b"))),
        RunRequest(mode=Mode.DRY_RUN, margins=Margins.NONE),
    ],
)
def test_what_is_written_to_tags_is_read_from_them(request_: RunRequest) -> None:
    own = {"dagster/partition": "x", "backfill/process": "y", "backfill/repair": "z", "backfill/notified": "true"}
    assert RunRequest.from_tags({**request_.to_tags(), **own}) == request_


def test_a_run_without_tags_may_do_what_is_safe() -> None:
    request = RunRequest.from_tags({})
    assert request.landing is Landing.SAFE
    assert request.repair == RepairRequest(change_limits=NO_LIMITS)


def test_a_sensor_is_the_requester_of_its_runs() -> None:
    assert RunRequest.from_tags({"dagster/sensor_name": "gaps"}).repair.requester == "gaps"


def test_the_change_limits_are_those_of_the_tag() -> None:
    request = RunRequest.from_tags({"backfill/change_limits": '{"max_changed_share": 0.5}'})
    assert request.repair.change_limits == ChangeLimits(max_changed_share=0.5)


def test_a_plan_in_the_configuration_is_the_one_that_is_walked() -> None:
    plan = make_plan(PIPELINE.name, PIPELINE.nodes, clickstream.HOURS, [("transformed", "sessions"), ("dry_run", "sessions")])
    config = said(**plan_config(PIPELINE, plan)["ops"][PIPELINE.name]["config"])
    assert config.given_plan(PIPELINE, RunRequest(), clickstream.HOURS, plan.assets) == plan
    assert said().given_plan(PIPELINE, RunRequest(), clickstream.HOURS, plan.assets) is None


def test_the_failed_assets_of_a_run_take_their_steps_of_its_plan() -> None:
    assets = [("transformed", "sessions"), ("warehouse", "sessions"), ("aggregated", "site_hourly")]
    plan = make_plan(PIPELINE.name, PIPELINE.nodes, clickstream.HOURS, assets)
    config = said(**plan_config(PIPELINE, plan)["ops"][PIPELINE.name]["config"])
    again = config.given_plan(PIPELINE, RunRequest(), clickstream.HOURS, assets[1:])
    assert again is not None
    assert set(again.assets) == set(assets[1:])


def test_a_plan_for_other_assets_or_another_pipeline_is_refused() -> None:
    hours = HourRange(clickstream.HOURS.start, clickstream.HOURS.end)
    plan = make_plan(PIPELINE.name, PIPELINE.nodes, hours, [("transformed", "sessions")])
    config = said(**plan_config(PIPELINE, plan)["ops"][PIPELINE.name]["config"])
    plain = RunRequest()
    with pytest.raises(UsageError, match="materializes transformed/sessions: select no other assets"):
        config.given_plan(PIPELINE, plain, hours, [("warehouse", "sessions")])
    with pytest.raises(UsageError, match="of pipeline clickstream, not of payments"):
        config.given_plan(payments.pipeline, plain, hours, plan.assets)
    with pytest.raises(UsageError, match=r"the plan in the configuration is of .*, and the run of .*: choose its hours"):
        config.given_plan(PIPELINE, plain, HourRange(hours.start, hours.start + HOUR), plan.assets)
    for ignored in (RunRequest(landing=Landing.REPLACE), RunRequest(margins=Margins.NONE)):
        with pytest.raises(UsageError, match="ask for no other landing or margins"):
            config.given_plan(PIPELINE, ignored, hours, plan.assets)


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ({"backfill/heel": "true"}, "no tag backfill/heel; there are .*backfill/rewrite_inconsistent"),
        ({"backfill/rewrite_inconsistent": "yes"}, "backfill/rewrite_inconsistent is true or false, not 'yes'"),
        ({"backfill/landing": "all"}, "backfill/landing is one of safe, missing, replace, not 'all'"),
        ({"backfill/tenants": "17505"}, r'backfill/tenants is a list of texts in JSON, such as \["17505"\], not 17505'),
        ({"backfill/tenants": "[17505]"}, "backfill/tenants is a list of texts"),
        ({"backfill/tenants": "[]"}, "backfill/tenants is a list of texts"),
        ({"backfill/mode": "rehearse"}, "backfill/mode is one of publish, dry-run, not 'rehearse'"),
        ({"backfill/margins": "3"}, "backfill/margins is one of land, none, not '3'"),
        ({"backfill/change_limits": "{"}, "backfill/change_limits is no JSON"),
        ({"backfill/change_limits": '{"hour": 1}'}, "change limits: hour: extra inputs"),
    ],
)
def test_a_tag_that_cannot_be_read_is_named(tags: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        RunRequest.from_tags(tags)


def test_the_launchpad_says_the_same_as_the_tags() -> None:
    config = said(
        mode="dry-run",
        reason="why",
        change_limits={"columns": ["bytes"]},
        tenants=["17505"],
        margins="none",
        landing="replace",
        rewrite_inconsistent=True,
    )
    wanted = RunRequest(
        RepairRequest(reason="why", change_limits=BYTES_ONLY, rewrite_inconsistent=True, tenants=("17505",)),
        Mode.DRY_RUN,
        Margins.NONE,
        Landing.REPLACE,
    )
    assert RunRequest.from_tags(config.with_tags({"dagster/partition": "x"})) == wanted
    assert RunRequest.from_tags(config.with_tags({"backfill/reason": "why"})) == wanted


def test_an_empty_launchpad_changes_nothing() -> None:
    tags = {"backfill/reason": "why", "backfill/rewrite_inconsistent": "true"}
    assert said().with_tags(tags) == tags


def test_a_launchpad_and_tags_that_disagree_are_refused() -> None:
    with pytest.raises(UsageError, match="reason is 'one' in the configuration of the run and 'other' in its tag"):
        said(reason="one").with_tags({"backfill/reason": "other"})


@pytest.mark.parametrize(
    ("field", "choices"),
    [("mode", ["publish", "dry-run"]), ("margins", ["land", "none"]), ("landing", ["safe", "missing", "replace"])],
)
def test_the_launchpad_offers_the_choices_and_takes_no_other(field: str, choices: list[str]) -> None:
    """Dagster's page completes what its schema enumerates, and checks it before anything is launched."""

    @dg.op
    def asked(config: RepairConfig) -> None: ...

    @dg.job
    def job() -> None:
        asked()

    for choice in choices:
        assert dg.validate_run_config(job, {"ops": {"asked": {"config": {field: choice}}}})
        assert said(**{field: choice}).with_tags({})[f"backfill/{field}"] == choice
    with pytest.raises(dg.DagsterInvalidConfigError, match="not in enum type"):
        dg.validate_run_config(job, {"ops": {"asked": {"config": {field: "rehearse"}}}})


def test_a_dry_run_takes_the_dry_runs_of_the_chosen_tables() -> None:
    chosen = [("raw", "clickstream"), ("transformed", "sessions"), ("warehouse", "sessions"), ("warehouse", "site_hourly")]
    assert RunRequest().assets(chosen, {}) == tuple(chosen)
    assert RunRequest(mode=Mode.DRY_RUN).assets(chosen, {}) == (("dry_run", "sessions"), ("dry_run", "site_hourly"))
    with pytest.raises(UsageError, match="choose a table that is published"):
        RunRequest(mode=Mode.DRY_RUN).assets(chosen[:1], {})


def test_a_backfill_that_would_leave_its_assets_as_they_are_is_refused_with_what_to_launch() -> None:
    backfill, rehearsal = {"dagster/backfill": "abcdefgh"}, RunRequest(mode=Mode.DRY_RUN)
    with pytest.raises(
        UsageError, match=r"for warehouse/sessions with the tag backfill/mode=dry-run.* for the assets dry_run/\*"
    ):
        rehearsal.assets([("dry_run", "sessions"), ("warehouse", "sessions")], backfill)
    assert rehearsal.assets([("dry_run", "sessions")], backfill) == (("dry_run", "sessions"),)
    assert RunRequest().assets([("warehouse", "sessions")], backfill) == (("warehouse", "sessions"),)
