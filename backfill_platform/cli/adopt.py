"""The command that declares a table that is there: `adopt`."""

import sys
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backfill_platform.cli import terminal
from backfill_platform.cli.options import warehouse_of
from backfill_platform.domain.hours import HOUR, format_hour, parse_hour
from backfill_platform.errors import BackfillError, PreconditionError, SpecError, UsageError
from backfill_platform.settings import Settings, load_settings

if TYPE_CHECKING:
    from backfill_platform.cli.adopt_source import Sample
    from backfill_platform.pipelines.adoption import Adoption

_STILL_WRITTEN = timedelta(days=7)  # a table without newer rows is taken for one that nobody writes any more


@click.command()
@click.argument("table", metavar="DATABASE.TABLE")
@click.option("--sample", type=click.Path(path_type=Path, dir_okay=False), help="a file with its events")
@click.option("--from-lake", metavar="TABLE", help="the Iceberg table that its rows come from, with its namespace")
@click.option("--connection", default="lake", show_default=True, help="where that is, by its name in BACKFILL_CONNECTIONS")
@click.option("--key", help="the columns that identify a row, with commas between them; guessed without")
@click.option("--tenant", default="", help="the column with the owner of a row")
@click.option(
    "--hour", default="", metavar="EXPRESSION", help="what the hour of a row is computed from, as ClickHouse writes it"
)
@click.option("--start", metavar="HOUR", help="the first hour; that of the table's first row without")
@click.option("--folder", default=".", type=click.Path(path_type=Path, file_okay=False), help="where the files are written")
def adopt(table: str, **said: Any) -> None:
    """Write a pipeline, and a test of it, for a table that is in ClickHouse.

    Nothing in ClickHouse is changed. What was guessed is shown, and what is left to fill in.
    """
    from backfill_platform.adapters.clickhouse.sql import hour_of
    from backfill_platform.adapters.clickhouse.table_facts import read_facts, times_of
    from backfill_platform.pipelines.adoption import Wishes

    database, dot, name = table.partition(".")
    if not (database and dot and name):
        raise UsageError(f"'{table}' names no table; write it like shop.orders")
    if said["sample"] and said["from_lake"]:
        raise UsageError("its events come from a file or from a table of the lake: give --sample or --from-lake, not both")
    key = tuple(part.strip() for part in (said["key"] or "").split(",") if part.strip())
    settings = load_settings()
    with warehouse_of(settings) as warehouse:
        facts = read_facts(warehouse, database, name)
        adoption, left = _adopted(warehouse, facts, Wishes(key, said["tenant"], said["hour"]))
        sample = _sample(settings, adoption, said)
        times = [*(times_of(warehouse, facts, hour_of(adoption.table)) or ()), *sample.times]
        start, end, how = _span(times, sample, said["start"])
    _write(adoption, sample, (start, end), said["folder"])
    _show(adoption, sample, [how, *left], said["folder"], start)


def _adopted(warehouse: Any, facts: Any, wishes: Any) -> tuple["Adoption", list[str]]:
    """The declaration, proven against the table, and what to look at in it. Raises UsageError where there is none."""
    from backfill_platform.adapters.clickhouse.preconditions import check_target
    from backfill_platform.adapters.clickhouse.table_facts import repeated
    from backfill_platform.pipelines.adoption import adopt as declare

    try:
        adoption = declare(facts, wishes)
        check_target(warehouse, adoption.table)
    except (SpecError, PreconditionError) as error:
        raise UsageError(f"{error}; nothing was written") from None
    twice, looked = repeated(warehouse, facts, adoption.table.key)
    if not twice:
        return adoption, []
    return adoption, [
        f"the key ({', '.join(adoption.table.key)}) does not identify a row: {twice:,} of {looked:,} rows have the key of "
        "another one, and hours with such rows are refused; name columns that do with --key, or let `build` give one row for "
        "each key"
    ]


def _sample(settings: Settings, adoption: "Adoption", said: dict[str, Any]) -> "Sample":
    from backfill_platform.adapters.connections import Connections
    from backfill_platform.cli.adopt_source import no_sample, of_file, of_lake

    sample = no_sample()
    if said["sample"]:
        sample = of_file(said["sample"], adoption.time)
    elif said["from_lake"]:
        properties = Connections(settings).named(said["connection"])
        sample = of_lake(said["connection"], said["from_lake"], adoption.time, properties)
    if sample.columns is not None and adoption.time not in sample.columns:
        have = ", ".join(sorted(sample.columns))
        raise UsageError(f"the source has no column {adoption.time}, which says the hour of a row; it has {have}")
    return sample


def _span(times: Collection[datetime], sample: "Sample", start: str | None) -> tuple[datetime, datetime | None, str]:
    """The first hour, the end of the last one (None: it goes on), and where they are from; `times` are those of rows."""
    now = datetime.now(UTC)
    if not times:
        first = parse_hour(start) if start else now.replace(minute=0, second=0, microsecond=0) - HOUR
        return (
            first,
            first + HOUR if sample.ends else None,
            "START: the table is empty, so its first hour is not known; --start says it",
        )
    first, last = (one.replace(minute=0, second=0, microsecond=0) for one in (min(times), max(times)))
    over = sample.ends or last < now - _STILL_WRITTEN
    text = "START and END: the first and the last row" if over else "START: the first row; END is None, as it is still written"
    return parse_hour(start) if start else first, last + HOUR if over else None, text


def _write(adoption: "Adoption", sample: "Sample", span: tuple[datetime, datetime | None], folder: Path) -> None:
    """Write both files, and load the pipeline. Raises UsageError when one is there already, or the pipeline is not sound."""
    from backfill_platform.cli.adopt_files import pipeline_file, test_file
    from backfill_platform.pipelines.registry import load_pipelines

    module = adoption.table.name
    texts = {
        folder / f"{module}.py": pipeline_file(adoption, sample, *span),
        folder / f"test_{module}.py": test_file(adoption, sample, module),
    }
    if there := [str(path) for path in texts if path.exists()]:
        raise UsageError(f"{there[0]} is there already; name another --folder, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to: {error.strerror}") from error
    sys.path.insert(0, str(folder.resolve()))
    try:
        load_pipelines([module])
    except BackfillError as error:
        for path in texts:
            path.unlink()
        raise UsageError(
            f"{'.'.join(adoption.table.stored_in)} cannot be adopted as it is: {error}; nothing was written"
        ) from None
    finally:
        sys.path.remove(str(folder.resolve()))


def _show(adoption: "Adoption", sample: "Sample", left: list[str], folder: Path, start: datetime) -> None:
    from backfill_platform.cli.adopt_files import is_by_day, missing

    module, span = adoption.table.name, f"--from {format_hour(start)} --to {format_hour(start + HOUR)}"
    rows = [(guess.what, guess.value, guess.because) for guess in adoption.guesses]
    terminal.show_table(f"{'.'.join(adoption.table.stored_in)}: what it is taken for", ("", "is", "because"), rows)
    if lacking := missing(adoption, sample):
        left = [
            *left,
            f"columns that the source does not give under a name of its own, marked TODO in `build`: {', '.join(lacking)}",
        ]
    if is_by_day(adoption):
        left = [*left, f"{adoption.time} must be a day in the source, too: an event belongs to the first hour of its day"]
    if sample.columns is None:
        left = [*left, "source: files of JSON lines in events/ beside the module; let it name yours"]
    terminal.out.print("look at:")
    for one in left:
        terminal.out.print(f"  - {one}", soft_wrap=True, markup=False)
    terminal.out.print(
        f"made {folder / f'{module}.py'} and {folder / f'test_{module}.py'}; next:", soft_wrap=True, markup=False
    )
    for step in (
        *([f"cd {folder}"] if folder != Path() else []),
        f'export PYTHONPATH="$PWD" BACKFILL_PIPELINES=\'["{module}"]\'',
        f"python -m pytest test_{module}.py",
        f"backfill plan {module} {span}",
        f"backfill dry-run {module} {span}",
    ):
        terminal.out.print(f"    {step}", soft_wrap=True, markup=False)
