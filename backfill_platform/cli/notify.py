"""The command that shows who is told of the repairs of a pipeline, and tries it: `watchers`."""

import sys

import click

from backfill_platform.cli import terminal
from backfill_platform.settings import load_settings


@click.command()
@click.argument("pipeline")
@click.option("--test", "tries", is_flag=True, help="send a test message by every channel, and say who got it")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="how to report")
def watchers(pipeline: str, tries: bool, output: str) -> None:
    """Show who is told of the repairs of a pipeline, by which channels. Exit 1 if somebody cannot be reached."""
    settings = load_settings()
    from backfill_platform.notifications.recipients import watch_of
    from backfill_platform.notifications.summary import trial
    from backfill_platform.pipelines.registry import find_pipeline, load_pipelines

    declared = find_pipeline(load_pipelines(settings.pipelines), pipeline)
    watch = watch_of(declared, settings)
    outbox = watch.outbox()
    if tries:
        outbox.post(trial(declared))
    became = {(one.watcher, one.channel): one.problem or "told" for one in outbox.close()}
    found = [
        {
            "watcher": watcher.name,
            "channel": channel.name,
            "events": sorted(map(str, watcher.kinds)),
            "test": became.get((watcher.name, channel.name), ""),
        }
        for watcher in watch.watchers
        for channel in watcher.channels
    ]
    lacking = "is not in BACKFILL_WATCHERS"
    found += [{"watcher": name, "channel": "", "events": [], "test": lacking} for name in watch.missing]
    if output == "json":
        terminal.show_json(found)
    elif found:
        rows = [(one["watcher"], one["channel"], ", ".join(one["events"]), one["test"]) for one in found]
        terminal.show_table(f"watchers of {pipeline}", ("watcher", "channel", "told of", "test" if tries else ""), rows)
    else:
        terminal.out.print(f"{pipeline} names no watchers: nobody is told of its repairs")
    sys.exit(1 if any(one["test"] not in ("", "told") for one in found) else 0)
