"""The command that removes what the lake and Dagster's history no longer need: `maintain`."""

from dataclasses import asdict

import click

from backfill_platform.cli import terminal
from backfill_platform.settings import load_settings


@click.command()
@click.argument("pipeline", required=False)
@click.option("--rehearse", is_flag=True, help="only say what is not needed any more, and remove nothing")
@click.option(
    "--keep-days",
    type=click.IntRange(min=0),
    help="days for which the lake keeps what was replaced; default: BACKFILL_LAKE_DAYS. With 0, nobody may be reading the lake",
)
@click.option("--output", type=click.Choice(["text", "json", "jsonl"]), default="text", help="how to report")
def maintain(pipeline: str | None, rehearse: bool, keep_days: int | None, output: str) -> None:
    """Remove what the lake tables of a pipeline, or of all, no longer need.

    Snapshots that were replaced expire, branches of repairs that died are dropped, files that nothing names are deleted, and
    patches that are too old for an undo. What a running repair or an undo needs stays. Without a pipeline, detail of old runs
    is removed from Dagster's history, too. Dagster does the same every night.
    """
    from backfill_platform.cli.platform import open_platform
    from backfill_platform.pipelines.registry import find_pipeline
    from backfill_platform.reports.maintenance import COLUMNS, lines

    with terminal.StepProgress() as progress, open_platform(load_settings()) as platform:
        chosen = platform.pipelines.values() if pipeline is None else [find_pipeline(platform.pipelines, pipeline)]
        rows = []
        for one in chosen:
            progress.say(f"maintaining the tables of {one.name}")
            rows += lines(platform.maintain(one, rehearsal=rehearse, keep_days=keep_days))
        history = None if pipeline or rehearse else platform.prune_history()
    if output != "text":
        records = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        terminal.show_records([*records, *([asdict(history)] if history else [])], output)
        return
    terminal.show_table("not needed any more, and kept" if rehearse else "removed, and kept", COLUMNS, rows)
    data, metadata = (sum(int(row[number]) for row in rows) for number in (5, 6))
    terminal.out.print(f"metadata is {metadata / data:.1%} of the data" if data else "there is no data")
    if history:
        terminal.out.print(
            f"Dagster's history: the logs of {history.runs:,} runs and {history.events:,} events removed, "
            f"{history.bytes:,} bytes given back",
            soft_wrap=True,
        )
