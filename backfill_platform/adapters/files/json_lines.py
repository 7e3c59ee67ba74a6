"""JSON objects, one in each line, taken apart. It runs in Spark's Python workers, without this package."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from backfill_platform.adapters.records import fitting
from backfill_platform.adapters.records.taking import Taken, batch_of

_DEEP = 300  # brackets in a line; Python's parser ends at a depth of about a thousand


def records_of_lines(taken: Taken) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: the JSON objects in column `line`; the other columns stay as they are."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            lines, undecodable = batch.column("line"), batch.column("undecodable")
            found = None if pc.any(undecodable).as_py() else _quickly(lines, taken)
            arrays, unfit = (found, {}) if found else _one_by_one(lines.to_pylist(), undecodable.to_pylist(), taken)
            yield batch_of(taken, arrays, unfit, {name: batch.column(name) for name in batch.schema.names})

    return read


def _quickly(lines: pa.Array, taken: Taken) -> list[pa.Array] | None:
    """The columns by Arrow's parser where every line is a plain object that fits; else None."""
    if not len(lines) or not _is_plain(lines):
        return None
    text = "\n".join(lines.to_pylist())
    if "NaN" in text or "Inf" in text:  # numbers for Arrow, but not in JSON
        return None
    schema = pa.schema([(name, _json_type(kind)) for name, kind in taken.items()])
    options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    data = text.encode()
    whole = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = pa.json.read_json(io.BytesIO(data), read_options=whole, parse_options=options).combine_chunks()
    except pa.ArrowInvalid:
        return None
    if len(table) != len(lines):  # a line has two objects; none goes over the end of its line, as the next one begins with {
        return None
    arrays = []
    for name, kind in taken.items():
        array, rows = fitting.fit_array(table.column(name).combine_chunks(), kind)
        if rows:
            return None
        arrays.append(array)
    return arrays


def _is_plain(lines: pa.Array) -> bool:
    """Whether each line begins and ends as an object, and none is nested deeply."""
    brackets = pc.add(pc.count_substring(lines, "["), pc.count_substring(lines, "{"))
    return bool(
        pc.all(pc.starts_with(lines, "{")).as_py()
        and pc.all(pc.ends_with(lines, "}")).as_py()
        and pc.max(brackets).as_py() <= _DEEP
    )


def _json_type(kind: str) -> pa.DataType:
    return pa.string() if kind in ("timestamp", "binary") else fitting.TYPES[kind]


class _Object(dict[str, Any]):
    """A JSON object, and the names that it has twice."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.has_twins = len(self) != len(pairs)
        self.names = [name for name, _ in pairs] if self.has_twins else ()


def _one_by_one(lines: Sequence[str], undecodable: Sequence[bool], taken: Taken) -> tuple[list[pa.Array], dict[int, list[str]]]:
    unfit: defaultdict[int, list[str]] = defaultdict(list)
    records: list[Mapping[str, Any]] = []
    for row, (line, skipped) in enumerate(zip(lines, undecodable, strict=True)):
        record = None if skipped else _object(line, taken)
        if record is None and not skipped:
            unfit[row].append("")
        records.append(record or {})
    arrays = []
    for name, kind in taken.items():
        array, rows = fitting.fit_values([record.get(name) for record in records], kind)
        arrays.append(array)
        for row in rows:
            unfit[row].append(name)
    return arrays, unfit


def _object(line: str, taken: Collection[str]) -> Mapping[str, Any] | None:
    """The object of a line; None where it is none, or has a column twice."""
    try:
        record = json.loads(line, object_pairs_hook=_Object, parse_float=fitting.Number.of, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, _Object):
        return None
    return None if any(record.names.count(name) > 1 for name in taken) else record


def _refuse(constant: str) -> None:
    raise ValueError(constant)
