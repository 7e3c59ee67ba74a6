"""The command that tries what an installation needs: `doctor`."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from typing import Any

import click

from backfill_platform.cli import terminal
from backfill_platform.settings import load_settings


@click.command()
@click.argument("pipeline", required=False)
@click.option("--output", type=click.Choice(["text", "json", "jsonl"]), default="text", help="how to report")
def doctor(pipeline: str | None, output: str) -> None:
    """Try what repairs of a pipeline, or of all, need: routes, rights, versions, clocks, targets, files that all see.

    No table of yours is changed: Spark writes one small file below the lake, which is deleted again, and a catalog that is not
    there is made. Exit 1 if anything is missing; its line says what to do.
    """
    rows: list[Any] = []
    for finding in _findings(pipeline):
        if output == "text":
            mark = "ok  " if finding.good else "MISS"
            terminal.out.print(f"{mark} {finding.part}, {finding.need}: {finding.text}", soft_wrap=True, markup=False)
        rows.append(finding)
    missing = [finding for finding in rows if not finding.good]
    if output != "text":
        terminal.show_records((asdict(finding) for finding in rows), output)
    else:
        terminal.out.print(f"{len(missing)} of {len(rows)} are missing" if missing else f"all {len(rows)} are there")
    sys.exit(1 if missing else 0)


def _findings(pipeline: str | None) -> Iterator[Any]:
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.cli.platform import open_spark
    from backfill_platform.detection.preflight import examine
    from backfill_platform.devstack.embedded_clickhouse.server import connect_or_start
    from backfill_platform.pipelines.registry import find_pipeline, load_pipelines

    settings = load_settings()
    pipelines = load_pipelines(settings.pipelines)
    chosen = list(pipelines.values()) if pipeline is None else [find_pipeline(pipelines, pipeline)]
    settings.make_home()
    with ExitStack() as stack:
        if settings.clickhouse_url is None:
            stack.enter_context(connect_or_start(settings.warehouse_dir))
        spark = cache(lambda: stack.enter_context(open_spark(settings)))
        yield from examine(chosen, Connections(settings), spark)
