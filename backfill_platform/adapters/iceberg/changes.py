"""Changes of an Iceberg table that replace hours: each is planned anew on the newest metadata when somebody else was faster."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import datetime
from typing import TYPE_CHECKING

from backfill_platform.domain.hours import HourRange, merge_hours
from backfill_platform.domain.tables import Table
from backfill_platform.errors import HourLeased

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

Change = Callable[["IcebergTable"], None]

MAIN = "main"
_EMPTY_HOURS = "backfill.empty-hours"  # table property: ranges of hours that were built and have no rows


def replacing(
    table: Table, hours: Collection[datetime], uris: list[str], branch: str, empty: Collection[datetime] = ()
) -> Change:
    """The change that replaces the hours by files, and on `main` records which of the hours are `empty`."""
    filter_ = within(table.hour, merge_hours(hours))

    def change(iceberg_table: IcebergTable) -> None:
        with iceberg_table.transaction() as transaction:
            scan = iceberg_table.scan(row_filter=filter_)
            scan = scan if branch == MAIN else scan.use_ref(branch)
            if any(True for _ in scan.plan_files()):
                transaction.delete(filter_, branch=branch)
            if uris:
                transaction.add_files(uris, branch=branch, check_duplicate_files=False)
            known_empty = empty_hours(iceberg_table)
            now_empty = (known_empty - set(hours)) | set(empty)
            if branch == MAIN and now_empty != known_empty:
                ranges = [[span.start.isoformat(), span.end.isoformat()] for span in merge_hours(now_empty)]
                transaction.set_properties({_EMPTY_HOURS: json.dumps(ranges)})

    return change


def if_made_of(table: Table, hours: Collection[datetime], uris: Collection[str], change: Change) -> Change:
    """The change, refused where `main` has other files of the hours than these."""
    filter_ = within(table.hour, merge_hours(hours))

    def checked(iceberg_table: IcebergTable) -> None:
        if {task.file.file_path for task in iceberg_table.scan(row_filter=filter_).plan_files()} != set(uris):
            raise HourLeased(f"another repair has written hours of {table} since they were read; run this one again")
        change(iceberg_table)

    return checked


def empty_hours(iceberg_table: IcebergTable) -> set[datetime]:
    """The hours that were built and have no rows."""
    ranges = json.loads(iceberg_table.properties.get(_EMPTY_HOURS, "[]"))
    return {hour for start, end in ranges for hour in HourRange.parse(start, end)}


def between(column: str, start: datetime, end: datetime) -> str:
    """Iceberg's filter for a column in `[start, end)`."""
    return f"({column} >= '{start.isoformat()}' and {column} < '{end.isoformat()}')"


def within(column: str, ranges: tuple[HourRange, ...]) -> str:
    """Iceberg's filter for a column within some ranges of hours."""
    return " or ".join(between(column, hours.start, hours.end) for hours in ranges)
