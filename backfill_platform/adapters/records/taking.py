"""Columns taken from records by name, as Arrow batches. It runs in Spark's Python workers, without this package.

Each record gives one row: the columns, NULL where a value does not fit its type, and `_unfit`, the names of these columns. A
record that is none has the empty name there. `line` has its text where the source is text; else JSON of a record that does not
fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from backfill_platform.adapters.records import fitting

Taken = Mapping[str, str]  # the columns with their types, by Spark's names
ROWS = 10_000  # of a piece
_TEXT = pa.list_(pa.string())


@dataclass
class Piece:
    """Some records: what each column has, as an Arrow array or as Python values, and their text where they are text.

    `broken` are the rows that are no records, `undecodable` those that are not in the encoding of their file.
    """

    columns: list[Any]
    rows: int
    texts: list[str] | None = None
    broken: Collection[int] = ()
    undecodable: Collection[int] = ()


Batches = Iterator[pa.RecordBatch]


def taken_from(pieces_of: Callable[[dict[str, Any]], Iterator[Piece]], taken: Taken) -> Callable[[Batches], Batches]:
    """For `mapInArrow`: the records of the places that the rows tell, with the `_epoch` of the place."""

    def read(batches: Batches) -> Batches:
        for batch in batches:
            for row in batch.to_pylist():
                for piece in pieces_of(row):
                    yield _taken_of(piece, taken, pa.repeat(pa.scalar(row["_epoch"], pa.int64()), piece.rows))

    return read


def _taken_of(piece: Piece, taken: Taken, epochs: pa.Array) -> pa.RecordBatch:
    arrays, unfit = [], defaultdict(list)
    for (name, kind), values in zip(taken.items(), piece.columns, strict=True):
        fit = fitting.fit_values if isinstance(values, list) else fitting.fit_text if piece.texts else fitting.fit_array
        array, rows = fit(values, kind)
        arrays.append(array)
        for row in rows:
            unfit[row].append(name)
    for row in piece.broken:
        unfit[row] = [""]
    lines: list[str | None] = [_record(piece, taken, row) if row in unfit else None for row in range(piece.rows)]
    undecodable = [row in piece.undecodable for row in range(piece.rows)]
    more = {"line": pa.array(piece.texts or lines, pa.string()), "undecodable": pa.array(undecodable), "_epoch": epochs}
    return batch_of(taken, arrays, unfit, more)


def _record(piece: Piece, taken: Taken, row: int) -> str:
    columns = piece.columns
    values = [one[row] if isinstance(one, list) else fitting.plain_values(one.slice(row, 1))[0] for one in columns]
    return fitting.record_json(dict(zip(taken, values, strict=True)))


def batch_of(
    taken: Taken, arrays: Sequence[pa.Array], unfit: Mapping[int, list[str]], more: Mapping[str, pa.Array]
) -> pa.RecordBatch:
    """The columns of some records, with the names of those that do not fit, and more columns."""
    rows = len(next(iter(more.values())))
    marks = pa.array([unfit.get(row) for row in range(rows)], _TEXT) if unfit else pa.nulls(rows, _TEXT)
    return pa.RecordBatch.from_arrays([*arrays, marks, *more.values()], names=[*taken, "_unfit", *more])
