"""The commands that make plans and walk them: `plan`, `dry-run` and `run`.

All three make the same value, a tuple of plans, one per contiguous range of hours. `plan` explains it; the others hand each
plan to a Dagster run of its own, which walks it as it is.
"""

import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

from backfill_platform.cli import terminal
from backfill_platform.cli.following import following_facts, show_following
from backfill_platform.cli.options import (
    allow_open_hours_option,
    change_limits_option,
    details_option,
    named_assets,
    on_damage,
    on_range,
    parse_damage,
    pipeline_and_hours,
    read_change_limits,
    reason_text,
    rewrite_inconsistent_option,
    select,
    warehouse_of,
)
from backfill_platform.domain.hours import merge_hours
from backfill_platform.domain.impact import Impact
from backfill_platform.domain.plan import Plan
from backfill_platform.domain.request import RepairRequest
from backfill_platform.settings import Settings, load_settings

if TYPE_CHECKING:
    from backfill_platform.cli.platform import Platform, RunResult
    from backfill_platform.pipelines.spec import Pipeline
    from backfill_platform.planning.downstream import Following
    from backfill_platform.planning.repair_plans import RepairPlans, Scope
    from backfill_platform.repair.outcomes import Event


@dataclass(frozen=True)
class _Arguments:
    """What was typed, as the three commands share it; a command leaves out what it has no option for."""

    pipeline: str
    output: str
    start: str | None
    end: str | None
    damaged_from: str | None
    damaged_to: str | None
    tenants: tuple[str, ...]
    names: tuple[str, ...] = ()
    reason: str = ""
    change_limits: TextIO | None = None
    rewrite_inconsistent: bool = False
    allow_open_hours: bool = False
    details: bool = False
    downstream: bool = False

    def scope(self, settings: Settings, *, dry_run: bool = False) -> "tuple[Pipeline, Scope]":
        """The pipeline, and what to repair of it. Raises UsageError for what does not fit together."""
        damage = parse_damage(self.start, self.end, self.damaged_from, self.damaged_to, self.tenants)
        declared, hours = pipeline_and_hours(settings, self.pipeline, self.start, self.end)
        declared.check_tenants(self.tenants)
        from backfill_platform.planning.repair_plans import Scope

        return declared, Scope(hours, damage, named_assets(self.names), dry_run)

    def request(self) -> RepairRequest:
        """The request of the repair. Raises UsageError for change limits that cannot be used."""
        return RepairRequest(
            reason=self.reason,
            requester="command line",
            change_limits=read_change_limits(self.change_limits),
            rewrite_inconsistent=self.rewrite_inconsistent,
            allow_open_hours=self.allow_open_hours,
            tenants=self.tenants,
        )


@click.command()
@on_range(required=False)
@on_damage
@select
def plan(**given: Any) -> None:
    """Say what a run would read and do, without doing it: over a range, or over all hours that damaged events have changed."""
    arguments, settings = _Arguments(**given), load_settings()
    declared, scope = arguments.scope(settings)
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.pipelines.registry import load_pipelines
    from backfill_platform.planning.downstream import follow_all, planned_hours
    from backfill_platform.planning.explain import explain
    from backfill_platform.planning.repair_plans import plan_repair

    lake = Connections(settings).lake()
    now = datetime.now(UTC)
    planned = plan_repair(declared, lake, scope, now)
    hours = planned_hours(planned.plans)
    following = follow_all(declared, load_pipelines(settings.pipelines).values(), hours, hours, lake, now)
    with warehouse_of(settings) as warehouse:
        explained = [[asdict(step) for step in explain(one, declared, lake, warehouse)] for one in planned.plans]
    if arguments.output != "text":
        steps = [
            {"from": one.hours.start, "to": one.hours.end, **step}
            for one, found in zip(planned.plans, explained, strict=True)
            for step in found
        ]
        if arguments.output == "jsonl":
            terminal.show_records(steps, arguments.output)
            return
        about = {"from": scope.hours.start, "to": scope.hours.end} if planned.impact is None else _impact_facts(planned.impact)
        facts = {"runs": len(planned.plans), "plans": [one.to_document() for one in planned.plans], "steps": steps}
        facts["following"] = [following_facts(one) for one in following]
        terminal.show_json({"pipeline": declared.name, **about, "tenants": list(arguments.tenants), **facts})
        return
    _show_plans(arguments, planned, explained)
    show_following(following, "what reads these hours, and is stale if they get other rows")


@click.command("dry-run")
@on_range(required=False)
@on_damage
@reason_text
@change_limits_option
@rewrite_inconsistent_option
@details_option
def dry_run(**given: Any) -> None:
    """Compute and report, hour by hour, what a run would change in ClickHouse. Exit 1 if anything would.

    Nothing is landed: raw hours are taken as they are in the lake, also those that are damaged.
    """
    arguments, settings = _Arguments(**given), load_settings()
    results = _walk(settings, arguments, dry_run=True)
    changes = any(
        outcome.target is not None and outcome.target.changes_rows for result in results for outcome in result.outcomes
    )
    sys.exit(1 if changes or not _all_well(results) else 0)


@click.command()
@on_range(required=False)
@on_damage
@select
@reason_text
@change_limits_option
@rewrite_inconsistent_option
@allow_open_hours_option
@details_option
@click.option(
    "--downstream", is_flag=True, help="then repair also what reads these hours, in other pipelines, where they have changed"
)
def run(**given: Any) -> None:
    """Rebuild hours and publish them, as Dagster runs: the UI shows them.

    Over a range, raw hours of it and of its margins are landed where they have not landed yet. Over damage, the raw hours that
    hold it are landed again, and all hours that it may have changed are rebuilt, one run per contiguous range.
    """
    arguments, settings = _Arguments(**given), load_settings()
    sys.exit(0 if _all_well(_walk(settings, arguments)) else 1)


def _walk(settings: Settings, arguments: _Arguments, *, dry_run: bool = False) -> "list[RunResult]":
    """Make the plans, walk them one after the other, and report."""
    declared, scope = arguments.scope(settings, dry_run=dry_run)
    request = arguments.request()
    declared.check_change_limits(request.change_limits)
    from backfill_platform.cli.following import Walk
    from backfill_platform.cli.platform import open_platform
    from backfill_platform.cli.run_output import show_document, show_line, show_results, show_verdict
    from backfill_platform.planning.repair_plans import plan_repair

    with terminal.StepProgress() as progress:

        def both(event: "Event") -> None:
            progress(event)
            show_line(event)

        progress.say("opening the lake, the warehouse and Dagster")
        with open_platform(settings) as platform:
            platform.listen = both if arguments.output == "jsonl" else progress
            started = datetime.now(UTC)
            planned = plan_repair(declared, platform.lake, scope, started)
            results = _walk_plans(platform, declared, planned, request, progress)
            following: tuple[Following, ...] = ()
            if not dry_run and results and not results[-1].interrupted:
                walk = Walk(platform, declared, request, started, progress.say)
                following = walk.follow(planned.plans, results, go_on=arguments.downstream)
    if arguments.output == "json":
        show_document(results, following)
    elif arguments.output == "jsonl":
        show_verdict(results, following)
    else:
        show_results(results, details=arguments.details)
        show_following(following, "stale since, because they were computed from what has changed")
        for one in planned.plans[len(results) :]:
            why = "" if results[-1].interrupted else ", because damaged raw hours did not land (--select leaves raw as it is)"
            terminal.show_error(f"not begun{why}: {one.hours}")
    return results


def _walk_plans(
    platform: "Platform",
    declared: "Pipeline",
    planned: "RepairPlans",
    request: RepairRequest,
    progress: terminal.StepProgress,
) -> "list[RunResult]":
    """One run for each plan. After an interrupt, or damaged hours that do not land, the rest is not begun."""
    results: list[RunResult] = []
    for number, one in enumerate(planned.plans, 1):
        if len(planned.plans) > 1:
            progress.say(f"run {number} of {len(planned.plans)}: {one.hours}")
        # That raw hours have landed is no news to recipients; what is built from them is.
        routine = one.only_lands and number < len(planned.plans)
        results.append(platform.run(declared, one, request.model_copy(update={"routine": routine})))
        did_not_land = planned.impact is not None and one.only_lands and not results[-1].success
        if results[-1].interrupted or did_not_land:
            break
    return results


def _all_well(results: "list[RunResult]") -> bool:
    return all(result.success for result in results)


def _show_plans(arguments: _Arguments, planned: "RepairPlans", explained: list[list[dict[str, Any]]]) -> None:
    if planned.impact is not None:
        impact = planned.impact
        reasons = [
            (str(one.node.table), str(hours), len(hours), one.why[hours.start])
            for one in impact.tables
            for hours in merge_hours(one.hours)
        ]
        headings = ("table", "hours (UTC)", "hours", "why the first")
        terminal.show_table(f"{impact.pipeline}: damaged {impact.damage}", headings, reasons)
    columns = ("asset", "action", "reads", "files (pruned)", "kB (pruned)", "rows now", "what it does")
    for number, (one, found) in enumerate(zip(planned.plans, explained, strict=True), 1):
        rows = [
            (
                *(step["asset"], step["action"], step["reads"], f"{step['files']} ({step['pruned']})"),
                f"{step['bytes'] / 1000:,.0f} ({step['bytes_pruned'] / 1000:,.0f})",
                *(step["rows_now"], step["explanation"]),
            )
            for step in found
        ]
        terminal.show_table(_title(arguments, one, number, len(planned.plans)), columns, rows)


def _title(arguments: _Arguments, one: Plan, number: int, runs: int) -> str:
    title = f"{one.pipeline} {one.hours}: {len(one.hours)} hour{'s' * (len(one.hours) > 1)}"
    title += f", only rows of {', '.join(arguments.tenants)}" if arguments.tenants else ""
    return title + (f" (run {number} of {runs})" if runs > 1 else "")


def _impact_facts(impact: Impact) -> dict[str, Any]:
    affected = [
        {"table": str(one.node.table), "hour": hour, "why": one.why[hour]} for one in impact.tables for hour in one.hours
    ]
    return {"damaged_from": impact.damage.start, "damaged_to": impact.damage.end, "affected": affected}
