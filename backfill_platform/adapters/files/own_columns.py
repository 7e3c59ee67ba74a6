"""The columns that files have, for a parser that takes them as they are."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.orc
import pyarrow.parquet

from backfill_platform.adapters.files.avro_container import Container
from backfill_platform.adapters.files.csv_files import CsvRecords
from backfill_platform.adapters.files.reading import Reading
from backfill_platform.adapters.files.unpacking import place_of
from backfill_platform.adapters.records.fitting import kind_of

_AVRO = {"boolean": "boolean", "int": "bigint", "long": "bigint", "float": "double", "double": "double", "bytes": "binary"}


def own_columns(uris: Iterable[str], reading: Reading) -> dict[str, str]:
    """The columns of all files, with Spark's names of their types.

    A column is text where the files differ, or where its type is none that tables have.
    """
    found: dict[str, str] = {}
    with ThreadPoolExecutor() as pool:
        for columns in pool.map(lambda uri: columns_of(uri, reading), uris):
            for name, kind in columns.items():
                found[name] = kind if found.get(name, kind) == kind else "string"
    return found


def columns_of(uri: str, reading: Reading) -> dict[str, str]:
    """The columns of one file with Spark's names of their types. Raises what the bytes make the libraries raise."""
    filesystem, path = place_of(uri)
    if reading.format == "csv":
        with filesystem.open_input_stream(path, compression="detect") as source:
            return dict.fromkeys(CsvRecords(source, reading).header(), "string")
    if reading.format == "avro":
        with filesystem.open_input_stream(path, compression=None) as source:
            container = Container(source)
            return {name: _of_avro(one, container.units.get(name, 0)) for name, one in container.types.items()}
    with filesystem.open_input_file(path) as source:
        if reading.format == "orc":
            schema = pyarrow.orc.ORCFile(source).schema
        else:
            schema = pyarrow.parquet.ParquetFile(source).schema_arrow
    return {field.name: kind_of(field.type) for field in schema}


def _of_avro(given: Any, unit: int) -> str:
    if unit:
        return "timestamp"
    branches = [one for one in (given if isinstance(given, list) else [given]) if one != "null"]
    if len(branches) != 1:
        return "string"
    (one,) = branches
    if isinstance(one, dict):
        return "string" if "logicalType" in one else _AVRO.get(str(one.get("type")), "string")
    return _AVRO.get(str(one), "string")
