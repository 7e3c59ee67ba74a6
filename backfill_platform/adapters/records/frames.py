"""Records as rows of Spark: read by its Python workers, with the columns that every source of records gives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import functions as F

from backfill_platform.adapters.records import fitting, taking
from backfill_platform.adapters.records.taking import Piece, Taken
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

UNFIT = "_unfit"
GIVEN = ("line", "undecodable", "file_hour", UNFIT)  # what rows have besides the columns of their records


def rows_of(
    spark: SparkSession,
    places: Sequence[tuple[Any, ...]],
    schema: str,
    pieces_of: Callable[[dict[str, Any]], Iterator[Piece]],
    taken: Taken,
) -> DataFrame:
    """The records of places, each with the `_epoch` of its hour: the columns `taken`, and those of `GIVEN`.

    `schema` names the columns of a place; the first of them tells them apart. Raises SpecError where a column is named like
    one of `GIVEN`.
    """
    refuse_given(taken)
    let_travel(fitting, taking)
    given = spark.createDataFrame(places, schema)
    given = given.repartition(max(1, min(len(places), 64)), given.columns[0])
    columns = ", ".join([*declared(taken), f"{UNFIT} array<string>, line string, undecodable boolean, _epoch bigint"])
    found = given.mapInArrow(taking.taken_from(pieces_of, dict(taken)), columns)
    return found.withColumn("file_hour", F.timestamp_seconds("_epoch")).drop("_epoch")


def refuse_given(columns: Iterable[str]) -> None:
    """Raise SpecError where a column of records has a name of the platform's."""
    if clash := sorted(name for name in columns if name.lower() in GIVEN):
        raise SpecError(f"the records have a column named {', '.join(clash)}, which is the platform's; take columns by name")


def payload(given: Collection[str]) -> Column:
    """The payload of a quarantine row with the columns `given`: the line as it came, or the columns of a record as JSON."""
    columns = [name for name in given if name not in GIVEN]
    line = F.col("line")
    return F.coalesce(line, F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})) if columns else line


def declared(columns: Mapping[str, str]) -> list[str]:
    """The columns as Spark declares them."""
    return [f"`{name.replace('`', '``')}` {kind}" for name, kind in columns.items()]


def let_travel(*modules: ModuleType) -> None:
    """Send modules along with their functions: Python workers elsewhere may not have this package."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
