"""The commands that make plans and walk them: `plan`, `dry-run` and `run`.

All three work on the same value: a tuple of plans, one per contiguous range of hours, in the order in which they are run.
`plan` explains it, the others walk it, one Dagster run per plan.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TextIO

import click

from backfill_platform.cli import terminal
from backfill_platform.cli.options import (
    allow_open_hours_option,
    change_limits_option,
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
from backfill_platform.domain.hours import HourRange, format_hour
from backfill_platform.domain.impact import Damage, Impact
from backfill_platform.domain.plan import Action, Plan, make_plan
from backfill_platform.settings import Settings, load_settings

Plans = tuple[Impact | None, tuple[Plan, ...]]


@click.command()
@on_range(required=False)
@on_damage
@select
def plan(
    pipeline: str,
    start: str | None,
    end: str | None,
    output: str,
    damaged_from: str | None,
    damaged_to: str | None,
    tenants: tuple[str, ...],
    names: tuple[str, ...],
) -> None:
    """Say what a run would read and do, without doing it: over a range, or over all hours that damaged events have changed."""
    damage = parse_damage(start, end, damaged_from, damaged_to, tenants)
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.planning.explain import explain

    settings = load_settings()
    declared, hours = pipeline_and_hours(settings, pipeline, start, end)
    declared.check_tenants(tenants)
    lake = Connections(settings).lake()
    impact, plans = _repair(declared, hours, damage, names)(lake)
    with warehouse_of(settings) as warehouse:
        explained = [(one, [asdict(step) for step in explain(one, declared, lake, warehouse)]) for one in plans]
    if output == "json":
        steps = [{"from": one.hours.start, "to": one.hours.end, **step} for one, found in explained for step in found]
        asked = {"from": hours.start, "to": hours.end} if impact is None else _damage_facts(impact)
        terminal.show_json({"pipeline": declared.name, **asked, "tenants": list(tenants), "runs": len(plans), "steps": steps})
        return
    if impact is not None:
        reasons = [(str(one.node.table), hour, one.why[hour]) for one in impact.tables for hour in one.hours]
        terminal.show_table(f"{declared.name}: damaged {impact.damage}", ("table", "hour (UTC)", "why"), reasons)
    columns = ("asset", "action", "reads", "files (pruned)", "kB (pruned)", "rows now", "what it does")
    for number, (one, found) in enumerate(explained, 1):
        title = f"{declared.name} {one.hours}: {len(one.hours)} hour{'s' * (len(one.hours) > 1)}"
        title += f", only rows of {', '.join(tenants)}" if tenants else ""
        title += f" (run {number} of {len(plans)})" if len(plans) > 1 else ""
        rows = [
            (
                *(step["asset"], step["action"], step["reads"], f"{step['files']} ({step['pruned']})"),
                f"{step['bytes'] / 1000:,.0f} ({step['bytes_pruned'] / 1000:,.0f})",
                *(step["rows_now"], step["explanation"]),
            )
            for step in found
        ]
        terminal.show_table(title, columns, rows)


@click.command("dry-run")
@on_range(required=False)
@on_damage
@reason_text
@change_limits_option
@rewrite_inconsistent_option
def dry_run(
    pipeline: str,
    start: str | None,
    end: str | None,
    output: str,
    damaged_from: str | None,
    damaged_to: str | None,
    tenants: tuple[str, ...],
    reason: str,
    change_limits: TextIO | None,
    rewrite_inconsistent: bool,
) -> None:
    """Compute and report, hour by hour, what a run would change in ClickHouse. Exit 1 if anything would.

    Nothing is landed: raw hours are taken as they are in the lake, also those that are damaged.
    """
    from backfill_platform.planning.impact import find_impact
    from backfill_platform.planning.scope import dry_run_assets

    damage = parse_damage(start, end, damaged_from, damaged_to, tenants)
    settings = load_settings()
    declared, hours = pipeline_and_hours(settings, pipeline, start, end)
    declared.check_tenants(tenants)
    asked = {
        "reason": reason,
        "change_limits": read_change_limits(change_limits),
        "rewrite_inconsistent": rewrite_inconsistent,
        "tenants": tenants,
    }

    def choose(lake: Any) -> Plans:
        if damage is None:
            return None, (make_plan(declared.name, declared.nodes, hours, dry_run_assets(declared)),)
        impact = find_impact(declared, lake, damage, datetime.now(UTC))
        return impact, impact.plans(dry_run=True)

    reports = _run(settings, declared, choose, output, asked)
    changes = any(one.facts.get("cancels") or one.facts.get("states") for report in reports for one in report.outcomes)
    sys.exit(1 if changes or not _all_well(reports) else 0)


@click.command()
@on_range(required=False)
@on_damage
@select
@reason_text
@change_limits_option
@rewrite_inconsistent_option
@allow_open_hours_option
def run(
    pipeline: str,
    start: str | None,
    end: str | None,
    output: str,
    damaged_from: str | None,
    damaged_to: str | None,
    tenants: tuple[str, ...],
    names: tuple[str, ...],
    reason: str,
    change_limits: TextIO | None,
    rewrite_inconsistent: bool,
    allow_open_hours: bool,
) -> None:
    """Rebuild hours and publish them, as Dagster runs: the UI shows them.

    Over a range, raw hours of it and of its margins are landed where they have not landed yet. Over damage, the raw hours that
    hold it are landed again, and all hours that it may have changed are rebuilt, one run per contiguous range.
    """
    damage = parse_damage(start, end, damaged_from, damaged_to, tenants)
    settings = load_settings()
    declared, hours = pipeline_and_hours(settings, pipeline, start, end)
    declared.check_tenants(tenants)
    # Hours that have landed are closed: they are landed again only when they are damaged, or somebody names the raw table.
    landing = {"landing": "missing"} if damage is None and not names else {}
    # The plans have their margins already; who names assets wants none.
    asked = {
        "reason": reason,
        "change_limits": read_change_limits(change_limits),
        "rewrite_inconsistent": rewrite_inconsistent,
        "allow_open_hours": allow_open_hours,
        "margins": "none",
    }
    asked |= {"tenants": tenants, **landing}
    reports = _run(settings, declared, _repair(declared, hours, damage, names), output, asked)
    sys.exit(0 if _all_well(reports) else 1)


def _repair(declared: Any, hours: HourRange, damage: Damage | None, names: Sequence[str]) -> Callable[[Any], Plans]:
    """What to do, once the lake is there to look at. Raises UsageError for assets that the pipeline does not have."""
    from backfill_platform.planning.impact import find_impact
    from backfill_platform.planning.scope import named_assets, repair_assets, with_margins

    chosen = named_assets(names)
    make_plan(declared.name, declared.nodes, hours, chosen)
    now = datetime.now(UTC)

    def plans(lake: Any) -> Plans:
        impact = None if damage is None else find_impact(declared, lake, damage, now)
        if impact is not None:
            found = impact.plans(chosen)
        else:
            found = (make_plan(declared.name, declared.nodes, hours, chosen or repair_assets(declared, lake, hours)),)
        # Who names assets gets these and nothing else.
        return impact, found if chosen else with_margins(found, declared, lake, now)

    return plans


def _run(settings: Settings, declared: Any, choose: Callable[[Any], Plans], output: str, asked: dict[str, Any]) -> list[Any]:
    """Walk the plans one after the other and report. After an interrupt, or damaged hours that do not land, the rest waits."""
    from backfill_platform.cli.platform import open_platform
    from backfill_platform.orchestration.run_request import Request

    reports: list[Any] = []
    left: list[Plan] = []
    with terminal.StepProgress() as progress:
        progress.say("opening the lake, the warehouse and Dagster")
        with open_platform(settings) as platform:
            platform.listen = progress
            impact, plans = choose(platform.lake)
            for number, one in enumerate(plans, 1):
                if len(plans) > 1:
                    progress.say(f"run {number} of {len(plans)}: {one.hours}")
                lands_only = all(step.action is Action.LAND for step in one.steps)
                # That margins have landed is no news to recipients; what is built from them is.
                routine = lands_only and number < len(plans)
                reports.append(platform.run(declared, one.hours, one.assets, Request(**asked, routine=routine)))
                if reports[-1].interrupted or (impact is not None and lands_only and not reports[-1].success):
                    left = list(plans[number:])
                    break
    if output == "json":
        facts = [terminal.outcome_facts(outcome) for report in reports for outcome in report.outcomes]
        errors = "\n".join(report.error for report in reports if report.error)
        runs = [report.run_id for report in reports]
        told = {"run": runs[-1] if runs else "", "runs": runs, "success": _all_well(reports), "error": errors, "hours": facts}
        terminal.show_json(told)
        return reports
    for report in reports:
        _show(report)
    for one in left:
        why = "" if reports[-1].interrupted else ", because damaged raw hours did not land (--select leaves raw as it is)"
        terminal.show_error(f"not begun{why}: {one.hours}")
    return reports


def _show(report: Any) -> None:
    for step in report.steps:
        terminal.show_outcomes(step)
        for outcome in step.outcomes:
            for rows in outcome.tables:
                terminal.out.print(f"{'/'.join(outcome.asset)} {format_hour(outcome.hour)}", style="bold")
                terminal.show_rows(rows)
    if report.error:
        terminal.show_error(report.error)


def _all_well(reports: Sequence[Any]) -> bool:
    return all(report.success for report in reports)


def _damage_facts(impact: Impact) -> dict[str, Any]:
    affected = [
        {"table": str(one.node.table), "hour": hour, "why": one.why[hour]} for one in impact.tables for hour in one.hours
    ]
    damage = impact.damage
    return {"damaged_from": damage.start, "damaged_to": damage.end, "affected": affected}
