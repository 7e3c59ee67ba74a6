"""Looking at sessions in this process: two columns of the files, read by Arrow and sorted by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backfill_platform.adapters.records.storage import located
from backfill_platform.adapters.spark.looks import LAST, STARTED, Across, PlanFiles, Wanted
from backfill_platform.adapters.spark.sessions import moment_number
from backfill_platform.domain.column_types import ColumnType, DataType

if TYPE_CHECKING:
    from backfill_platform.domain.windows import UntilClosed

T = TypeVar("T")

_READERS = 4
_KEY_TYPES: Mapping[DataType, pa.DataType] = {
    ColumnType.INT8: pa.int32(),  # as Iceberg has it
    ColumnType.INT16: pa.int32(),
    ColumnType.INT32: pa.int32(),
    ColumnType.INT64: pa.int64(),
    ColumnType.STRING: pa.string(),
    ColumnType.DATE: pa.date32(),
}
_TIME = "_time"  # microseconds since 1970


def arrow_key_type(key: DataType) -> pa.DataType | None:
    """The type of a key for `ArrowLooks`; None where Spark and Arrow may not agree which values are the same."""
    return _KEY_TYPES.get(key)


class ArrowLooks:
    """See `Looks`. `plan_files` names the files that may hold events of a span of time; `key_type` is Arrow's of the key."""

    def __init__(self, plan_files: PlanFiles, ahead: UntilClosed, time: str, key_type: pa.DataType) -> None:
        self._plan, self._key, self._time, self._key_type = plan_files, ahead.key, time, key_type
        self._gap = ahead.gap // timedelta(microseconds=1)
        self._rows_in = cache(self._counted)  # one look takes in files of the one before

    def rows(self, begin: datetime, end: datetime) -> int | None:
        """How many rows the files have; None where one of them lacks the key or the time, as a file of an older schema may."""
        counts = self._of_files(self._rows_in, begin, end)
        return None if None in counts else sum(filter(None, counts))

    def _counted(self, uri: str) -> int | None:
        filesystem, path = located(uri)
        with filesystem.open_input_file(path) as file:
            footer = pq.read_metadata(file)
        return footer.num_rows if {self._key, self._time} <= set(footer.schema.to_arrow_schema().names) else None

    def sessions(self, keys: Across | pa.Table, begin: datetime, end: datetime, wanted: Wanted) -> pa.Table:
        """As `Looks.sessions`."""
        asked = self._across(keys) if isinstance(keys, Across) else keys[self._key]
        found = self._sessions_of(self._events(begin, end, asked))
        started_in = pc.and_(
            pc.greater_equal(found[STARTED], moment_number(wanted.started_from)),
            pc.less(found[STARTED], moment_number(wanted.started_before)),
        )
        return found.filter(pc.and_(started_in, pc.greater_equal(found[LAST], moment_number(wanted.last_from))))

    def go_on(self, open_sessions: pa.Table, begin: datetime, end: datetime) -> pa.Table:
        """As `Looks.go_on`."""
        ends = pa.table({self._key: open_sessions[self._key].cast(self._key_type), _TIME: open_sessions[LAST]})
        events = self._events(begin, end, ends[self._key])
        sessions = self._sessions_of(pa.concat_tables([ends, events]))
        # A key's sessions come one after the other.
        codes = sessions[self._key].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
        first = np.flatnonzero(np.diff(codes, prepend=-1))
        return sessions.take(first).select([self._key, LAST])

    def _across(self, keys: Across) -> pa.ChunkedArray:
        events = self._events(keys.begin, keys.end)
        times = events.group_by(self._key).aggregate([(_TIME, "min"), (_TIME, "max")])
        meets = pc.and_(
            pc.less(times[f"{_TIME}_min"], moment_number(keys.before)),
            pc.greater_equal(times[f"{_TIME}_max"], moment_number(keys.since)),
        )
        return times.filter(meets)[self._key]

    def _sessions_of(self, events: pa.Table) -> pa.Table:
        """In the order of some numbers of the keys, the sessions of a key by time."""
        keys = events[self._key].combine_chunks().dictionary_encode()
        codes, times = keys.indices.to_numpy(zero_copy_only=False), events[_TIME].to_numpy()
        order = np.lexsort((times, codes))
        codes, times = codes[order], times[order]
        starts = np.flatnonzero((np.diff(codes, prepend=-1) != 0) | (np.diff(times, prepend=0) >= self._gap))
        ends = np.append(starts[1:], len(times))[: len(starts)] - 1
        return pa.table(
            {
                self._key: keys.dictionary.take(pa.array(codes[starts])),
                STARTED: pa.array(times[starts]),
                LAST: pa.array(times[ends]),
            }
        )

    def _events(self, begin: datetime, end: datetime, keys: pa.ChunkedArray | None = None) -> pa.Table:
        first, until = moment_number(begin), moment_number(end)
        asked = None if keys is None else keys.combine_chunks()

        def of_file(uri: str) -> pa.Table:
            filesystem, path = located(uri)
            with filesystem.open_input_file(path) as file:
                rows = pq.ParquetFile(file).read([self._key, self._time])
            times = rows[self._time].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            events = pa.table({self._key: rows[self._key].cast(self._key_type), _TIME: times})
            inside = pc.and_(pc.greater_equal(times, first), pc.less(times, until))
            mine = pc.is_valid(events[self._key]) if asked is None else pc.is_in(events[self._key], value_set=asked)
            return events.filter(pc.and_(inside, mine))

        nothing = pa.table({self._key: pa.array([], self._key_type), _TIME: pa.array([], pa.int64())})
        return pa.concat_tables([nothing, *self._of_files(of_file, begin, end)])

    def _of_files(self, of_file: Callable[[str], T], begin: datetime, end: datetime) -> list[T]:
        with ThreadPoolExecutor(_READERS) as readers:
            return list(readers.map(of_file, self._plan(begin, end) if begin < end else ()))
