"""Where an adopted pipeline gets its events from: a file of records, a table of a lake, or files that are still to come."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from backfill_platform.errors import UsageError

_FORMATS = {
    ".csv": "Csv",
    ".json": "JsonLines",
    ".jsonl": "JsonLines",
    ".ndjson": "JsonLines",
    ".parquet": "Parquet",
    ".orc": "Orc",
}
_ROWS_LOOKED_AT = 10_000


@dataclass(frozen=True)
class Sample:
    """What is known of a source: its `columns`, None where nobody knows them yet, and its `times`, where they were looked at.

    `imports` and `code` are the lines of Python that declare it; `START` and `END` there are those of the pipeline.
    """

    columns: frozenset[str] | None
    imports: tuple[str, ...]
    code: str
    times: tuple[datetime, ...] = ()
    ends: bool = False


def no_sample() -> Sample:
    """Files of JSON lines, one for each hour, in the folder `events` beside the pipeline."""
    imports = (
        "from backfill_platform.adapters.files.formats import JsonLines",
        "from backfill_platform.adapters.files.hourly import HourlyFiles",
    )
    return Sample(None, imports, 'HourlyFiles(f"file://{HERE}/events/%Y-%m-%d/%H.jsonl", format=JsonLines())')


def of_lake(connection: str, table: str, time: str, properties: Mapping[str, str]) -> Sample:
    """A table of the catalog that the connection names. Raises UsageError when it cannot be read."""
    from pyiceberg.catalog import load_catalog

    from backfill_platform.domain.notification import redact

    try:
        given = {"name": connection, **properties}
        catalog = load_catalog(given.pop("name"), **given)
        found = catalog.load_table(table)
        columns = frozenset(field.name for field in found.schema().fields)
        metrics = found.inspect.files().column("readable_metrics").to_pylist() if time in columns else []
    except Exception as error:  # noqa: BLE001 - each kind of catalog raises its own
        why = redact((str(error).strip() or type(error).__name__).partition("\n")[0], set(properties.values()))
        raise UsageError(f"the Iceberg table {table} of {connection} cannot be read: {why}") from None
    imports = ("from backfill_platform.adapters.iceberg.source_table import IcebergTable",)
    ends = (one[time][bound] for one in metrics for bound in ("lower_bound", "upper_bound"))
    times = tuple(filter(None, map(_moment, ends)))
    return Sample(columns, imports, f"IcebergTable({connection!r}, {table!r}, time={time!r})", times)


def of_file(path: Path, time: str) -> Sample:
    """A file of records. Raises UsageError for one that cannot be read, or whose name does not say what it holds."""
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise UsageError(f"--sample: {path} should end in {', '.join(_FORMATS)}, so that it is known what it holds")
    try:
        rows = list(islice(_rows(path, kind), _ROWS_LOOKED_AT))
    except (OSError, ValueError) as error:
        raise UsageError(f"--sample: {path} cannot be read: {str(error).partition(chr(10))[0]}") from error
    if not rows:
        raise UsageError(f"--sample: {path} has no records")
    columns = frozenset(name for row in rows for name in row)
    times = tuple(filter(None, (_moment(row.get(time)) for row in rows)))
    imports = (
        f"from backfill_platform.adapters.files.formats import {kind}",
        "from backfill_platform.adapters.files.hourly import ArchiveFile",
        "from backfill_platform.domain.hours import HourRange",
    )
    code = f"ArchiveFile({f'file://{path.resolve()}'!r}, HourRange(START, END), format={kind}())"
    return Sample(columns, imports, code, times, ends=True)


def _rows(path: Path, kind: str) -> Iterable[dict[str, Any]]:
    if kind == "JsonLines":
        with path.open() as lines:
            for line in lines:
                if line.strip():
                    yield json.loads(line)
        return
    import pyarrow.dataset as ds

    for batch in ds.dataset(path, format=kind.lower()).to_batches(batch_size=_ROWS_LOOKED_AT):
        yield from batch.to_pylist()


def _moment(value: Any) -> datetime | None:
    """A time, in UTC, where the value is one."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
