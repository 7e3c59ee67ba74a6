"""The commands of topics: `replay`, `replay-limits`, `drain` and `handover`."""

import sys
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

import click

from backfill_platform.cli import terminal
from backfill_platform.domain.hours import HourRange, format_hour, parse_hour
from backfill_platform.domain.pacing import Limits
from backfill_platform.errors import UsageError
from backfill_platform.settings import load_settings

_RATES = (
    click.option("--messages-per-second", type=click.FloatRange(min=0, min_open=True), help="the most messages per second"),
    click.option("--bytes-per-second", type=click.FloatRange(min=0, min_open=True), help="the most bytes of keys and payloads"),
)


@click.command()
@click.argument("pipelines", nargs=-1, required=True)
@click.option("--from", "start", metavar="HOUR", required=True, help="first owning hour (UTC)")
@click.option("--to", "end", metavar="HOUR", required=True, help="end of the owning hours, not included (UTC)")
@click.option("--name", default="", help="names the replay; asking for the same name again goes on where it ended")
@click.option(
    "--topic", "topics", multiple=True, metavar="[PIPELINE=]TOPIC", help="another topic than <topic>.backfill; repeatable"
)
@click.option("--live-topic", "live", multiple=True, metavar="TOPIC", help="say the name of a live topic twice to write to it")
@click.option("--partitions", type=click.IntRange(min=1), help="of a topic that is made; as many as the live topic has")
@click.option(
    "--keep-days", type=click.IntRange(min=1), default=7, show_default=True, help="how long a topic that is made keeps them"
)
@click.option("--tenant", "tenants", multiple=True, help="only rows of this tenant; repeatable")
@click.option(
    "--no-margins", is_flag=True, help="only events of the hours, without those around that sessions and windows need"
)
@click.option(
    "--max-misalignment",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="MINUTES",
    help="the most event time by which any message may be ahead of one that is still to come, in all topics together",
)
@_RATES[0]
@_RATES[1]
@click.option("--lag-group", default="", metavar="GROUP", help="pause while this consumer group is too far behind")
@click.option(
    "--max-lag", type=click.IntRange(min=1), default=100_000, show_default=True, help="messages that it may be behind"
)
@click.option(
    "--transactional",
    is_flag=True,
    help="send in transactions, for consumers that read what is committed: none comes twice when a broker dies",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="while it runs, serve its figures for Prometheus on this port of the loopback address",
)
@click.option("--reason", default="", help="why; kept in the ledger")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="how to report")
def replay(**given: Any) -> None:
    """Send hours of the lake to backfill topics, in the order of event time, and count every message.

    Several pipelines are sent side by side and advance together. Exit 1 if some messages were not acknowledged.
    """
    settings = load_settings()
    hours = HourRange.parse(given["start"], given["end"])
    from backfill_platform.adapters.clickhouse.state.ledger import Ledger
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.adapters.kafka.metrics import served
    from backfill_platform.adapters.kafka.sender import Options, Progress
    from backfill_platform.cli.platform import open_spark, open_warehouse
    from backfill_platform.pipelines.registry import find_pipeline, load_pipelines
    from backfill_platform.topics.replay import Replay, ReplayEngines, replay_hours

    declared = load_pipelines(settings.pipelines)
    chosen = tuple(find_pipeline(declared, name) for name in given["pipelines"])
    now = datetime.now(UTC)
    asked = Replay(
        given["name"] or f"replay-{now:%Y%m%dT%H%M%S}",
        chosen,
        hours,
        topics=_topics(given["topics"], [one.name for one in chosen]),
        live=given["live"],
        partitions=given["partitions"] or 0,
        keep=timedelta(days=given["keep_days"]),
        tenants=given["tenants"],
        margins=not given["no_margins"],
        options=Options(
            max_misalignment=round(given["max_misalignment"] * 60_000_000),
            limits=Limits(given["messages_per_second"], given["bytes_per_second"]),
            lag_group=given["lag_group"],
            max_lag=given["max_lag"],
            transactional=given["transactional"],
        ),
        reason=given["reason"],
        requester="command line",
        code_version=version("backfill-platform"),
    )
    connections = Connections(settings)
    with (
        closing(connections.cluster()) as cluster,
        open_warehouse(settings) as warehouse,
        terminal.StepProgress() as progress,
        ExitStack() as stack,
    ):
        port = given["metrics_port"]
        figures = None if port is None else stack.enter_context(served(port, asked.name))

        def tell(one: Progress) -> None:
            progress.say(str(one))
            if figures is not None:
                figures(one)

        counts = replay_hours(
            asked,
            ReplayEngines(
                # A replay that goes on has selected its rows already, and needs no Spark.
                lambda: stack.enter_context(open_spark(settings)),
                connections.lake(),
                cluster,
                Ledger(warehouse),
                lambda: datetime.now(UTC),
            ),
            every=tuple(declared.values()),
            say=progress.say,
            tell=tell,
        )
    rows = [(one.pipeline, one.topic, format_hour(one.hour), one.selected, one.margin, one.acknowledged) for one in counts]
    names = ("pipeline", "topic", "hour (UTC)", "rows selected", "of these around", "acknowledged")
    if given["output"] == "json":
        terminal.show_json({"replay": asked.name, "hours": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        terminal.show_table(f"replay {asked.name}", names, rows)
        terminal.out.print(f"consume it with: backfill drain {chosen[0].name} --name {asked.name}", soft_wrap=True)
    sys.exit(0 if all(one.selected == one.acknowledged for one in counts) else 1)


@click.command("replay-limits")
@click.argument("name")
@click.argument("pipeline")
@_RATES[0]
@_RATES[1]
@click.option("--pause", is_flag=True, help="hold it back until the limits are set again without this")
def replay_limits(
    name: str, pipeline: str, messages_per_second: float | None, bytes_per_second: float | None, pause: bool
) -> None:
    """Change the limits of a replay, also while it runs: within a second or so. Without options there are none.

    PIPELINE is the first one that the replay sends.
    """
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.adapters.kafka.replay_selection import Selection

    root = Connections(load_settings()).lake().root_uri
    Selection(root, name, pipeline).set_limits(Limits(messages_per_second, bytes_per_second, pause))


@click.command()
@click.argument("pipeline")
@click.option("--name", required=True, help="names the drain: one of the same name goes on where it ended, or takes over")
@click.option("--topic", default="", help="the topic; without, that of the pipeline's replays")
@click.option("--handler", default="persist", show_default=True, help="a handler of the pipeline; persist keeps the messages")
@click.option("--reason", default="", help="why; kept in the ledger")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="how to report")
def drain(pipeline: str, name: str, topic: str, handler: str, reason: str, output: str) -> None:
    """Consume what a topic has at this moment, then end; compare what was persisted with what was replayed.

    Exit 1 if the counts of an hour disagree.
    """
    settings = load_settings()
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.cli.platform import open_warehouse
    from backfill_platform.pipelines.registry import find_pipeline, load_pipelines
    from backfill_platform.topics.drain import Drain, drain_topic

    declared = find_pipeline(load_pipelines(settings.pipelines), pipeline)
    with (
        closing(Connections(settings).cluster()) as cluster,
        open_warehouse(settings) as warehouse,
        terminal.StepProgress() as progress,
    ):
        report = drain_topic(
            Drain(name, topic, handler, reason, "command line", version("backfill-platform")),
            declared,
            cluster,
            warehouse,
            clock=lambda: datetime.now(UTC),
            tell=lambda done, total: progress.say(f"{done:,} of {total:,} messages"),
        )
    names = ("replay", "hour (UTC)", "rows selected", "acknowledged", "persisted")
    rows = [(one.replay, format_hour(one.hour), one.selected, one.acknowledged, one.persisted) for one in report.hours]
    if output == "json":
        found = {"handled": report.drained.handled, "sent": report.drained.sent}
        terminal.show_json({"drain": name, **found, "hours": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        terminal.show_table(f"drain {name}: {report.drained.handled:,} messages handled", names, rows)


@click.command()
@click.argument("pipeline")
@click.option("--at", "end", metavar="HOUR", required=True, help="the moment (UTC): the end of the range that was repaired")
@click.option("--table", default="", help="the table of sessions, where the pipeline has several")
@click.option("--repair", default="", help="name of the repair, for whoever reads the states")
def handover(pipeline: str, end: str, table: str, repair: str) -> None:
    """Send the sessions that are open at a moment to a state topic, so that a live job goes on with them."""
    settings = load_settings()
    moment = parse_hour(end)
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.cli.platform import open_spark
    from backfill_platform.pipelines.registry import find_pipeline, load_pipelines
    from backfill_platform.topics.handover import hand_over

    declared = find_pipeline(load_pipelines(settings.pipelines), pipeline)
    connections = Connections(settings)
    with closing(connections.cluster()) as cluster, open_spark(settings) as spark:
        topic, count = hand_over(spark, connections.lake(), cluster, declared, table, moment, repair)
    terminal.out.print(f"{count:,} open sessions of {end} are in {topic}", soft_wrap=True)


def _topics(given: tuple[str, ...], pipelines: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, _, topic = text.rpartition("=")
        if not name and len(pipelines) > 1:
            raise UsageError(f"--topic {text}: say of which pipeline, as in --topic {pipelines[0]}={text}")
        name = name or pipelines[0]
        if name not in pipelines:
            raise UsageError(f"--topic {text}: {name} is not replayed; replayed are {', '.join(pipelines)}")
        found[name] = topic
    return found
