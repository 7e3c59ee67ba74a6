"""Loading the lake's files by the server that reads them itself."""

from collections.abc import Sequence

from backfill_platform.adapters.clickhouse.client import Settings, Warehouse
from backfill_platform.adapters.clickhouse.sql import file_settings, files_source, literal, names
from backfill_platform.domain.column_types import is_nested
from backfill_platform.domain.tables import Table
from backfill_platform.errors import PreconditionError


def pull_files(
    warehouse: Warehouse, destination: str, table: Table, paths: Sequence[str], *, settings: Settings, query_id: str
) -> None:
    """Insert the rows of Parquet files into a quoted table by one statement.

    Raises PreconditionError for paths that cannot be read literally and for a file without a required column, WarehouseError
    for a value that does not fit its column.
    """
    source = files_source(table, paths)
    _check_nested(warehouse, table, paths)
    warehouse.command(
        f"INSERT INTO {destination} ({names(table.stored_names)}) {source}",
        settings={**file_settings(table), **settings, "insert_deduplicate": 0},
        query_id=query_id,
        doing=f"loading {len(paths)} files of the lake for {table}",
    )


def _check_nested(warehouse: Warehouse, table: Table, paths: Sequence[str]) -> None:
    """Refuse files without an array, map or struct: ClickHouse takes one that is not there for an empty one.

    Any other required column that is not there is NULL, which the load itself refuses.
    """
    required = [column.name for column in table.stored_columns if is_nested(column.type)]
    if not required:
        return
    files = ", ".join(literal(path.removeprefix("file://")) for path in paths)
    had = "arrayMap(leaf -> splitByChar('.', tupleElement(leaf, 'path'))[1], columns)"
    wanted = f"[{', '.join(map(literal, required))}]"
    lacking = warehouse.rows(
        f"SELECT _path, arrayFilter(name -> NOT has({had}, name), {wanted}) AS lacking FROM file([{files}], ParquetMetadata) "
        "WHERE notEmpty(lacking) LIMIT 1",
        doing=f"looking which columns the files of {table} have",
    )
    for path, columns in lacking:
        raise PreconditionError(f"{table}: {path} has no column {', '.join(columns)}")
