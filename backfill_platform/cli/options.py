"""Options and look-ups that several commands share. Nothing heavy is imported before a command needs it."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TextIO

import click

from backfill_platform.domain.change_limits import NO_LIMITS, ChangeLimits
from backfill_platform.domain.hours import HourRange, parse_hour, parse_moment
from backfill_platform.domain.impact import Damage
from backfill_platform.domain.plan import WAREHOUSE, AssetPath
from backfill_platform.errors import UsageError
from backfill_platform.settings import Settings

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _together(*options: Decorator) -> Decorator:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def on_range(required: bool = True) -> Decorator:
    """The pipeline, a range of its hours, and how to report."""
    return _together(
        click.argument("pipeline"),
        click.option("--from", "start", metavar="HOUR", required=required, help="first hour of the range (UTC)"),
        click.option("--to", "end", metavar="HOUR", required=required, help="end of the range, not included (UTC)"),
        click.option(
            "--output",
            type=click.Choice(["text", "json", "jsonl"]),
            default="text",
            help="how to report; jsonl: a line of JSON for each record",
        ),
    )


on_damage = _together(
    click.option(
        "--damaged-from",
        metavar="TIME",
        help="instead of a range: the first event time (UTC) of raw events that are missing or wrong; all hours they may have "
        "changed are taken, contiguous or not",
    ),
    click.option("--damaged-to", metavar="TIME", help="end of the damaged event times, not included (UTC)"),
    click.option(
        "--tenant",
        "tenants",
        multiple=True,
        help="repair only rows of this tenant, those of others stay as they are; repeatable. With --damaged-from, only its "
        "events are damaged",
    ),
)
select = click.option(
    "--select", "names", multiple=True, metavar="ASSET", help="an asset to materialize, such as warehouse/sessions; repeatable"
)
change_limits_option = click.option(
    "--change-limits",
    type=click.File(),
    help="YAML file with what may change: hours, tables, columns, limits; - for standard input",
)
details_option = click.option("--details", is_flag=True, help="show every hour, with what differs in it and its history")
reason_text = click.option("--reason", default="", help="why; kept in the ledger")
rewrite_inconsistent_option = click.option(
    "--rewrite-inconsistent",
    is_flag=True,
    help="also repair hours whose states and cancels do not match: their partitions are written anew",
)
allow_open_hours_option = click.option(
    "--allow-open-hours", is_flag=True, help="also publish to hours that live writers may still write"
)


def parse_damage(
    start: str | None, end: str | None, damaged_from: str | None, damaged_to: str | None, tenants: tuple[str, ...]
) -> Damage | None:
    """The damage that is asked for instead of a range, None for a range. Raises UsageError unless it is one of the two."""
    if damaged_from is None and damaged_to is None:
        for name, value in (("--from", start), ("--to", end)):
            if value is None:
                raise UsageError(f"Missing option '{name}'; or give --damaged-from and --damaged-to instead of a range")
        return None
    if start is not None or end is not None:
        raise UsageError("give a range (--from, --to) or damage (--damaged-from, --damaged-to), not both")
    if damaged_from is None or damaged_to is None:
        raise UsageError("give both --damaged-from and --damaged-to")
    return Damage(parse_moment(damaged_from), parse_moment(damaged_to), tenants)


def pipeline_and_hours(settings: Settings, pipeline: str, start: str | None, end: str | None) -> tuple[Any, HourRange]:
    """The declared pipeline and the asked hours, which must be hours that it has; all of them where no end is given."""
    asked = (None if start is None else parse_hour(start), None if end is None else parse_hour(end))
    if asked[0] is not None and asked[1] is not None:
        HourRange(asked[0], asked[1])
    from backfill_platform.pipelines.registry import find_pipeline, load_pipelines

    declared = find_pipeline(load_pipelines(settings.pipelines), pipeline)
    every = declared.hours_until(datetime.now(UTC))
    hours = HourRange(asked[0] or every.start, asked[1] or every.end)
    if hours.intersect(every) != hours:
        raise UsageError(f"{pipeline} has the hours {every}; {hours} is not within them")
    return declared, hours


def warehouse_of(settings: Settings) -> Any:
    """The warehouse of the settings, as a context; an embedded one is started for the while unless it is running."""
    from backfill_platform.cli.platform import open_warehouse

    return open_warehouse(settings)


def named_assets(names: Iterable[str]) -> tuple[AssetPath, ...]:
    """Assets from texts such as `warehouse/sessions`. Raises UsageError for a text that names none."""
    assets = []
    for name in names:
        prefix, slash, table = name.partition("/")
        if not (prefix and slash and table):
            raise UsageError(f"'{name}' names no asset; write it like transformed/sessions or {WAREHOUSE}/sessions")
        assets.append((prefix, table))
    return tuple(assets)


def read_change_limits(file: TextIO | None) -> ChangeLimits:
    """The limits of a file of YAML, none without a file. Raises UsageError naming the file."""
    if file is None:
        return NO_LIMITS
    from backfill_platform.cli.yaml_files import read_yaml

    return ChangeLimits.parse(read_yaml(file))
