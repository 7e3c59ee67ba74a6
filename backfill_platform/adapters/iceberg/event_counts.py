"""How many events files hold of each hour, counted without Spark: what Spark makes of them is held against it."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.records.storage import located
from backfill_platform.domain.hours import HOUR, HourRange, hour_of
from backfill_platform.domain.tables import Table

_HOUR_MICROS = HOUR // timedelta(microseconds=1)
_READERS = 4


def events_by_hour(lake: Lake, table: Table, time: str, uris: Collection[str], hours: HourRange) -> dict[datetime, int]:
    """The rows of files on `main` by the hours of the timestamp column `time`, of those within `hours`; others are left out.

    A file whose bounds lie within one hour is counted from metadata; of others the column is read. Raises FileNotFoundError
    where a file is gone.
    """
    held, asked = lake.inventory(table, time), set(uris)
    counts: Counter[datetime] = Counter()
    to_read = set(asked)
    for file in held.files:
        span = held.spans.get(file.uri)
        if file.uri not in asked or span is None or hour_of(span[0]) != hour_of(span[1]):
            continue
        to_read.discard(file.uri)
        if hour_of(span[0]) in hours:
            counts[hour_of(span[0])] += file.rows
    for numbers in _numbers_of(to_read, time, hours):
        for number, rows in numbers.items():
            counts[hours.start + number * HOUR] += rows
    return dict(counts)


def _numbers_of(uris: Iterable[str], time: str, hours: HourRange) -> Iterable[Mapping[int, int]]:
    start, count = int(hours.start.astimezone(UTC).timestamp()) * 1_000_000, len(hours)

    def numbers(uri: str) -> Mapping[int, int]:
        filesystem, path = located(uri)
        with filesystem.open_input_file(path) as file:
            column = pq.read_table(file, columns=[time]).column(time)
        micros = column.drop_null().cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
        found, rows = np.unique((micros - start) // _HOUR_MICROS, return_counts=True)
        return {int(number): int(of_it) for number, of_it in zip(found, rows, strict=True) if 0 <= number < count}

    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(numbers, sorted(uris)))
