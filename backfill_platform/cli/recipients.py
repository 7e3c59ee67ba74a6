"""The command that shows who is told of the repairs of a pipeline, and tries it: `recipients`."""

import sys

import click

from backfill_platform.cli import terminal
from backfill_platform.settings import load_settings


@click.command()
@click.argument("pipeline")
@click.option("--test", "tries", is_flag=True, help="send a test message by every channel, and say who got it")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="how to report")
def recipients(pipeline: str, tries: bool, output: str) -> None:
    """Show who is told of the repairs of a pipeline, by which channels. Exit 1 if somebody cannot be reached."""
    settings = load_settings()
    from backfill_platform.notifications.messages import trial
    from backfill_platform.notifications.recipients import audience_of
    from backfill_platform.pipelines.registry import find_pipeline, load_pipelines

    declared = find_pipeline(load_pipelines(settings.pipelines), pipeline)
    watch = audience_of(declared, settings)
    dispatcher = watch.dispatcher()
    if tries:
        dispatcher.post(trial(declared))
    became = {(one.recipient, one.channel): one.problem or "told" for one in dispatcher.close()}
    found = [
        {
            "recipient": recipient.name,
            "channel": channel.name,
            "events": sorted(map(str, recipient.kinds)),
            "test": became.get((recipient.name, channel.name), ""),
        }
        for recipient in watch.recipients
        for channel in recipient.channels
    ]
    lacking = "is not in BACKFILL_RECIPIENTS"
    found += [{"recipient": name, "channel": "", "events": [], "test": lacking} for name in watch.missing]
    if output == "json":
        terminal.show_json(found)
    elif found:
        rows = [(one["recipient"], one["channel"], ", ".join(one["events"]), one["test"]) for one in found]
        terminal.show_table(f"recipients of {pipeline}", ("recipient", "channel", "told of", "test" if tries else ""), rows)
    else:
        terminal.out.print(f"{pipeline} names no recipients: nobody is told of its repairs")
    sys.exit(1 if any(one["test"] not in ("", "told") for one in found) else 0)
