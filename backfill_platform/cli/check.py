"""The command that evaluates every check, for CI: `check`."""

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import click

from backfill_platform.cli import terminal
from backfill_platform.cli.options import (
    change_limits_option,
    named_assets,
    on_range,
    pipeline_and_hours,
    read_change_limits,
    warehouse_of,
)
from backfill_platform.domain.fingerprint import repair_id
from backfill_platform.domain.hours import HourRange, merge_hours
from backfill_platform.domain.plan import make_plan
from backfill_platform.domain.request import RepairRequest
from backfill_platform.settings import load_settings

_SHOWN = 3


@click.command()
@on_range()
@click.option(
    "--select", "names", multiple=True, metavar="ASSET", help="check only this asset, such as raw/clickstream; repeatable"
)
@change_limits_option
@click.option(
    "--junit", type=click.Path(dir_okay=False), help="also write JUnit XML to this file, a test case for each check and hour"
)
@click.option("--strict", is_flag=True, help="let checks that only warn fail the command, too")
def check(
    pipeline: str,
    start: str,
    end: str,
    output: str,
    names: tuple[str, ...],
    change_limits: TextIO | None,
    junit: str | None,
    strict: bool,
) -> None:
    """Evaluate every asset check over a range, without UI or daemon. Exit 0 if all passed, 1 if one failed, 2 for wrong use.

    The rows in the lake are judged by the rules of their schemas, and compared with the warehouse by a dry run; nothing is
    built or published. Hours that are not there fail the check no_gap, and skip the others.
    """
    request = RepairRequest(reason="backfill check", requester="command line", change_limits=read_change_limits(change_limits))
    settings = load_settings()
    declared, hours = pipeline_and_hours(settings, pipeline, start, end)
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.cli.platform import open_spark
    from backfill_platform.detection.validation import Verdict, check_pipeline
    from backfill_platform.repair.job import RepairIdentity, RepairJob
    from backfill_platform.repair.publish import Publishing
    from backfill_platform.repair.wiring import Services

    chosen = named_assets(names)
    make_plan(declared.name, declared.nodes, hours, chosen)  # refuses assets that are not there
    connections = Connections(settings)
    began = datetime.now(UTC)
    identity = RepairIdentity(repair_id(began, os.urandom(3)), version("backfill-platform"))
    job = RepairJob(declared, request, identity, lambda: datetime.now(UTC))
    with terminal.StepProgress() as progress, warehouse_of(settings) as warehouse:
        progress.say(f"checking {len(hours)} hours of {declared.name}")
        with open_spark(settings) as spark:
            services = Services(
                connections.lake(),
                lambda: spark,
                lambda: warehouse,
                job.clock,
                publishing=Publishing(connections.loading, connections.patch_days),
            )
            found = [one for one in check_pipeline(job, services, hours) if not chosen or one.asset in chosen]
    bad = (Verdict.FAILED, Verdict.WARNED) if strict else (Verdict.FAILED,)
    if junit is not None:
        from backfill_platform.cli.junit import write_junit

        write_junit(Path(junit), declared.name, found, bad, (datetime.now(UTC) - began).total_seconds())
    if output != "text":
        records = (
            {"asset": "/".join(one.asset), "check": one.check, "hour": hour, "verdict": str(verdict), "text": text}
            for one in found
            for hour, (verdict, text) in one.hours.items()
        )
        terminal.show_records(records, output)
    else:
        _show(declared.name, hours, found)
    sys.exit(1 if any(one.count(verdict) for one in found for verdict in bad) else 0)


def _show(pipeline: str, hours: HourRange, found: Sequence[Any]) -> None:
    from backfill_platform.detection.validation import Verdict

    rows = []
    for one in found:
        counts = [one.count(verdict) for verdict in Verdict]
        wrong = {hour: text for hour, (verdict, text) in one.hours.items() if verdict in (Verdict.FAILED, Verdict.WARNED)}
        spans = ", ".join(str(span) for span in merge_hours(wrong)[:_SHOWN])
        first = f"{spans}: {next(iter(wrong.values()))}" if wrong else ""
        rows.append(("/".join(one.asset), one.check, *counts, first))
    columns = ("asset", "check", *(str(verdict) for verdict in Verdict), "where, and the first reason")
    terminal.show_table(f"{pipeline} {hours}: {len(found)} checks of {len(hours)} hours", columns, rows)
