"""The rules of walking a plan, over engines in memory; `test_runner` walks the same plans over the real ones."""

from dataclasses import replace
from datetime import datetime

import pytest

from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import Branch, BuildHours, LandHours, Landing, LandMargin, PublishHours, requeue_plan
from backfill_platform.domain.request import RepairRequest
from backfill_platform.domain.windows import UntilClosed
from backfill_platform.errors import UsageError
from backfill_platform.repair.job import RepairIdentity, RepairJob
from backfill_platform.repair.outcomes import HourOutcome, HoursCommitted, StepFinished, StepStarted
from backfill_platform.repair.runner import PartLimits, run_plan
from backfill_platform_tests.repair.fakes import SmallWorld

SESSIONS, HOURLY = "transformed/sessions", "aggregated/site_hourly"


@pytest.fixture
def world() -> SmallWorld:
    return SmallWorld()


@pytest.fixture
def published(world: SmallWorld) -> SmallWorld:
    """A world whose hours are landed, built and published."""
    assert not errors(world.run(*world.everything))
    return world


def errors(outcomes: dict[str, dict[datetime, HourOutcome]]) -> dict[str, list[int]]:
    """The numbers of the hours that failed, by asset."""
    start = SmallWorld().hours.start
    numbers = {
        asset: [(hour - start) // HOUR for hour, outcome in by_hour.items() if outcome.error]
        for asset, by_hour in outcomes.items()
    }
    return {asset: bad for asset, bad in numbers.items() if bad}


def test_everything_is_landed_built_and_published_in_the_order_of_the_flow(world: SmallWorld) -> None:
    started = [event.step.asset[0] for event in world.events(world.plan(*world.everything)) if isinstance(event, StepStarted)]
    assert started == ["raw", "transformed", "warehouse", "aggregated", "warehouse"]
    for table in world.pipeline.published:
        assert world.publisher.tables[table.path] == dict.fromkeys(world.hours, 10)
    assert len(world.audit_log.plans) == 1


def test_running_again_writes_nothing_new(published: SmallWorld) -> None:
    outcomes = published.run(*published.everything)
    for asset in ("warehouse/sessions", "warehouse/site_hourly"):
        assert {one.target.result.status for one in outcomes[asset].values() if one.target} == {"unchanged"}


def test_an_hour_that_fails_is_named_and_holds_back_what_is_computed_from_it_and_nothing_else(published: SmallWorld) -> None:
    second = published.hours.start + HOUR
    published.builder.broken = {(SESSIONS, second)}
    published.builder.source = dict.fromkeys(published.hours, 11)
    outcomes = published.run(*published.everything)
    assert errors(outcomes) == {asset: [1] for asset in (SESSIONS, "warehouse/sessions", HOURLY, "warehouse/site_hourly")}
    assert published.lake.rows(published.pipeline.derived[0].table)[second] == 10, "the hour stays as it was"
    assert published.publisher.tables["transformed", "sessions"] == {
        hour: 10 if hour == second else 11 for hour in published.hours
    }


def test_an_hour_that_waits_names_the_first_cause_and_not_a_chain(world: SmallWorld) -> None:
    second = world.hours.start + HOUR
    world.builder.broken = {("raw/clickstream", second)}
    outcomes = world.run(*world.everything)
    texts = {asset: outcomes[asset][second].error for asset in (SESSIONS, HOURLY, "warehouse/site_hourly")}
    assert set(texts.values()) == {"it needs raw/clickstream of 1998-04-30T23: failed odd"}


def test_only_sound_hours_are_committed_and_each_commit_is_told(world: SmallWorld) -> None:
    world.builder.broken = {("raw/clickstream", world.hours.start)}
    events = world.events(world.plan("raw/clickstream"))
    (committed,) = [event for event in events if isinstance(event, HoursCommitted)]
    assert committed.hours == tuple(world.hours)[1:]
    assert set(world.lake.rows(world.pipeline.raw.table)) == set(tuple(world.hours)[1:])


def test_a_commit_is_told_after_it_is_in_the_ledger(world: SmallWorld) -> None:
    for event in world.stream(world.plan("raw/clickstream")):
        if isinstance(event, HoursCommitted):
            assert world.audit_log.steps == [("land", event.hours)]
            return
    pytest.fail("nothing was committed")


def test_a_step_without_a_sound_hour_tells_of_no_commit(world: SmallWorld) -> None:
    world.builder.broken = {("raw/clickstream", hour) for hour in world.hours}
    assert not [event for event in world.events(world.plan("raw/clickstream")) if isinstance(event, HoursCommitted)]


def test_a_read_that_its_cap_ends_is_told_from_one_at_the_end_of_the_landed_hours(published: SmallWorld) -> None:
    node = published.pipeline.nodes[1]
    assert isinstance(node.window.lookahead, UntilClosed)
    capped = replace(node, window=replace(node.window, lookahead=replace(node.window.lookahead, cap=HOUR)))
    first = HourRange(published.hours.start, published.hours.start + HOUR)
    plan = replace(published.plan(SESSIONS), steps=(BuildHours(capped, first),))
    published.events(plan)
    assert published.builder.runs[-1].available_until > first.end + HOUR


def test_an_hour_without_a_source_is_named_and_the_others_land(world: SmallWorld) -> None:
    del world.builder.source[world.hours.start + 2 * HOUR]
    outcomes = world.run("raw/clickstream")
    assert errors(outcomes) == {"raw/clickstream": [2]}
    assert outcomes["raw/clickstream"][world.hours.start + 2 * HOUR].error == "there is no file"


@pytest.mark.parametrize(
    ("landing", "rows", "failed"), [(Landing.SAFE, 10, True), (Landing.MISSING, 10, False), (Landing.REPLACE, 7, False)]
)
def test_landing_again_keeps_rows_unless_it_is_to_replace_them(
    published: SmallWorld, landing: Landing, rows: int, failed: bool
) -> None:
    published.builder.source = dict.fromkeys(published.hours, 7)
    plan = published.plan("raw/clickstream")
    step = LandHours(published.pipeline.nodes[0], published.hours, landing)
    events = published.events(replace(plan, steps=(step,)))
    assert any(isinstance(event, HourOutcome) and event.error for event in events) is failed
    assert set(published.lake.rows(published.pipeline.raw.table).values()) == {rows}


def test_margins_land_only_what_is_missing(world: SmallWorld) -> None:
    first = HourRange(world.hours.start, world.hours.start + HOUR)
    world.run("raw/clickstream", hours=first)
    margin = LandMargin(world.pipeline.nodes[0], world.hours)
    world.events(replace(world.plan(SESSIONS), steps=(margin,)))
    assert world.builder.built[-1] == ("raw/clickstream", tuple(world.hours)[1:])


def test_what_has_not_landed_is_not_taken_for_silence(world: SmallWorld) -> None:
    world.run("raw/clickstream", hours=HourRange(world.hours.start, world.hours.start + HOUR))
    outcomes = world.run(SESSIONS)
    assert errors(outcomes) == {SESSIONS: [1, 2, 3]}
    assert "never built, or is lost" in outcomes[SESSIONS][world.hours.start + HOUR].error


def test_an_hour_whose_window_is_not_over_is_due_later_and_has_not_failed(published: SmallWorld) -> None:
    last = published.hours.end - HOUR
    del published.lake.rows(published.pipeline.raw.table)[last]
    published.now = last
    outcomes = published.run(SESSIONS, "warehouse/sessions")
    assert outcomes[SESSIONS][last].due == published.hours.end
    assert not outcomes[SESSIONS][last].failed
    assert outcomes["warehouse/sessions"][last].due == published.hours.end
    assert all(last not in hours for _, hours in published.audit_log.steps[-1:])


def test_files_that_are_gone_are_never_read_as_empty(published: SmallWorld) -> None:
    second = published.hours.start + HOUR
    published.lake.unreadable = {(("transformed", "sessions"), second)}
    outcomes = published.run("warehouse/sessions", HOURLY)
    assert errors(outcomes) == {"warehouse/sessions": [1], HOURLY: [1]}
    assert "gone from the lake's storage" in outcomes["warehouse/sessions"][second].error
    assert published.publisher.tables["transformed", "sessions"][second] == 10


def test_a_dry_run_builds_on_the_branch_compares_it_and_leaves_nothing(published: SmallWorld) -> None:
    published.builder.source = dict.fromkeys(published.hours, 12)
    raw = published.pipeline.raw.table
    published.lake.rows(raw).update(dict.fromkeys(published.hours, 12))
    outcomes = published.run("dry_run/sessions", "dry_run/site_hourly")
    assert [one.target.result.desired.rows for one in outcomes["dry_run/site_hourly"].values() if one.target] == [12] * 4
    assert not [key for key in published.lake.branches if key[1] is Branch.REPAIR]
    for table in published.pipeline.published:
        assert set(published.lake.rows(table).values()) == set(published.publisher.tables[table.path].values()) == {10}


def test_the_branch_of_a_dry_run_goes_when_somebody_stops_it(published: SmallWorld) -> None:
    plan = published.plan("dry_run/sessions")
    job = RepairJob(published.pipeline, RepairRequest(), RepairIdentity("r2", "0"), lambda: published.now)
    events = run_plan(plan, job, published.services)
    next(event for event in events if isinstance(event, StepFinished))
    assert ("transformed", "sessions") in {path for path, branch in published.lake.branches if branch is Branch.REPAIR}
    events.close()  # type: ignore[attr-defined]
    assert not [key for key in published.lake.branches if key[1] is Branch.REPAIR]


def test_refused_hours_are_told_from_failed_ones(published: SmallWorld) -> None:
    published.publisher.refused = {published.hours.start}
    outcome = published.run("warehouse/sessions")["warehouse/sessions"][published.hours.start]
    assert outcome.refused
    assert outcome.failed


def test_targets_are_looked_at_before_the_lake_is_read(world: SmallWorld) -> None:
    """Whatever a live writer adds while the repair computes is not known to the rows that it computes."""
    world.run(*world.everything)
    sessions = next(task for task in world.publisher.tasks if isinstance(task.step, PublishHours))
    assert set(sessions.stored_before) == set(world.hours)
    assert {print_.rows for print_ in sessions.stored_before.values()} == {0}


@pytest.mark.parametrize(("limits", "parts"), [(PartLimits(hours=2), 2), (PartLimits(rows_staged=10), 4)])
def test_long_steps_are_done_in_parts(published: SmallWorld, limits: PartLimits, parts: int) -> None:
    plan = published.plan("warehouse/sessions")
    finished = [event.step.hours for event in published.events(plan, limits) if isinstance(event, StepFinished)]
    assert len(finished) == parts
    assert [hour for hours in finished for hour in hours] == list(published.hours)


def test_tenants_and_rewriting_do_not_go_together(published: SmallWorld) -> None:
    with pytest.raises(UsageError, match="do it without tenants"):
        published.run("warehouse/sessions", tenants=("1",), rewrite_inconsistent=True)


def test_a_repair_of_tenants_does_not_build_hours_that_were_never_built(world: SmallWorld) -> None:
    world.run("raw/clickstream")
    assert "build it for all tenants first" in world.run(SESSIONS, tenants=("1",))[SESSIONS][world.hours.start].error


def test_requeueing_commits_hours_that_have_something_and_names_those_that_are_lost(published: SmallWorld) -> None:
    hours, raw = list(published.hours), published.pipeline.raw.table
    published.requeuer.rejects = {hours[0]: 2, hours[1]: 3, hours[2]: 4}
    published.requeuer.gone = {hours[1]}
    del published.lake.rows(raw)[hours[2]]
    events = published.events(requeue_plan(published.pipeline.name, published.pipeline.nodes[0], published.hours))
    outcomes = {event.hour: event for event in events if isinstance(event, HourOutcome)}
    assert sorted(outcomes) == hours[:3]
    assert [event.hours for event in events if isinstance(event, HoursCommitted)] == [(hours[0],)]
    assert published.lake.rows(raw)[hours[0]] == 12
    assert outcomes[hours[0]].lake is not None
    assert outcomes[hours[0]].lake.source_version == "version 1"  # type: ignore[union-attr]
    assert "gone from the lake's storage" in outcomes[hours[1]].error
    assert "never built, or is lost" in outcomes[hours[2]].error
    assert published.audit_log.steps[-1] == ("requeue", (hours[1], hours[2], hours[0]))
