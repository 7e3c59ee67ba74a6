"""Sending the lake's rows to a server that cannot reach the lake: Arrow, batch by batch, each with its own token.

A batch whose answer is lost is sent again with its token, which the table remembers, so that it is stored once. The number of
accepted rows must equal the number of rows in the table.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from backfill_platform.adapters.clickhouse.client import Warehouse, resend
from backfill_platform.adapters.records.storage import located, path_of
from backfill_platform.domain.column_types import ArrayType, ColumnType, DataType, DecimalType, MapType, StructType
from backfill_platform.domain.tables import Column, Table
from backfill_platform.errors import CheckFailed, PreconditionError

ROWS_PER_BATCH = 200_000

_TYPES = {
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.INT8: pa.int8(),
    ColumnType.INT16: pa.int16(),
    ColumnType.INT32: pa.int32(),
    ColumnType.INT64: pa.int64(),
    ColumnType.FLOAT32: pa.float32(),
    ColumnType.FLOAT64: pa.float64(),
    ColumnType.STRING: pa.string(),
    ColumnType.DATE: pa.date32(),
    ColumnType.TIMESTAMP: pa.timestamp("us", "UTC"),
}


def arrow_type(kind: DataType) -> pa.DataType:
    """Arrow's type for values of a column, as they are sent."""
    match kind:
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case ArrayType():
            return pa.list_(pa.field("element", arrow_type(kind.element)))
        case MapType():
            return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
        case StructType():
            return pa.struct([pa.field(field.name, arrow_type(field.type)) for field in kind.fields])
    return _TYPES[kind]


def push_files(
    warehouse: Warehouse, destination: str, table: Table, uris: Sequence[str], *, token: str, settings: Mapping[str, str | int]
) -> int:
    """Send the rows of Parquet files to the quoted table `destination`, which remembers tokens; returns how many.

    Raises PreconditionError for a file that is listed twice, absent or without a declared column, CheckFailed for a value that
    does not fit its column, or when the table does not have as many rows as were accepted; WarehouseUnavailable when a batch
    gets no answer on any try.
    """
    if len(set(map(path_of, uris))) != len(uris):
        raise PreconditionError(f"{table}: a file is listed twice, its rows would be doubled; list each file once")

    def send(name: str, rows: pa.Table) -> None:
        named = {**settings, "insert_deduplication_token": name}
        doing = f"sending {rows.num_rows} rows for {table}"
        resend(lambda _: warehouse.insert_arrow(destination, rows, settings=named, doing=doing))

    accepted: dict[str, int] = {}
    for number, batch in enumerate(_filled(part for uri in uris for part in _batches(table, uri))):
        name = f"{token}:arrow:{number}"
        send(name, batch)
        accepted[name] = batch.num_rows
    ((stored,),) = warehouse.rows(f"SELECT count() FROM {destination}", doing=f"counting what was sent for {table}")
    sent = sum(accepted.values())
    if stored != sent:
        raise CheckFailed(f"{table}: {sent} rows in {len(accepted)} batches were accepted, but {stored} are stored; load again")
    return sent


def _filled(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Small parts of many files, concatenated: an insert costs the same for one row as for thousands."""
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(table.num_rows for table in waiting) >= ROWS_PER_BATCH:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _batches(table: Table, uri: str) -> Iterator[pa.Table]:
    schema = pa.schema([pa.field(column.name, arrow_type(column.type), column.nullable) for column in table.stored_columns])
    try:
        system, path = located(uri)
        file = pq.ParquetFile(path, filesystem=system)
    except (OSError, pa.ArrowInvalid) as error:
        raise PreconditionError(f"{table}: {uri} cannot be read: {error}") from error
    with file:
        had = {column.name: _name_in(column, file.schema_arrow.names) for column in table.stored_columns}
        if lacking := [column.name for column in table.stored_columns if not had[column.name] and not column.nullable]:
            raise PreconditionError(f"{table}: {uri} has no column {', '.join(lacking)}")
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=[name for name in had.values() if name]):
            values = [
                batch.column(had[field.name]) if had[field.name] else pa.nulls(len(batch), field.type) for field in schema
            ]
            rows = pa.table(values, names=schema.names)
            if empty := [c.name for c in table.stored_columns if not c.nullable and rows.column(c.name).null_count]:
                raise CheckFailed(f"{table}: {uri} has rows without a value of {', '.join(empty)}")
            try:
                yield rows.cast(schema)
            except pa.ArrowInvalid as error:
                raise CheckFailed(f"{table}: a value of {uri} does not fit its column: {error}") from error


def _name_in(column: Column, names: Sequence[str]) -> str:
    """The name under which a file has the column, which may be an earlier one; empty where it does not have it."""
    return next((name for name in (column.name, *column.was) if name in names), "")
