"""Rules that set aside the rows with a value that ClickHouse would not store as it is (`domain/value_limits.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.adapters.spark.checks import RowRule
from backfill_platform.domain.tables import Column, Table
from backfill_platform.domain.value_limits import (
    Between,
    Bytes,
    Digits,
    Limit,
    Matches,
    Measure,
    Multiple,
    OneOf,
    Test,
)

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

_LONGEST = 60  # letters of a type in the name of a rule


def storable(table: Table) -> Iterator[RowRule]:
    """A rule for each column of which ClickHouse cannot store every value."""
    for column in table.columns:
        if not column.limit.is_open:
            yield RowRule(_name(column), _holds(column), f"a value that {column.stored} holds exactly, nothing rounded or cut")


def _name(column: Column) -> str:
    text = str(column.stored)
    return f"{column.name}: fits {text if len(text) <= _LONGEST else column.stored.name}"


def _holds(column: Column) -> Callable[[], SparkColumn]:
    limit = column.limit
    return lambda: _meets(limit, F.col(column.name))


def _meets(limit: Limit, value: SparkColumn) -> SparkColumn:
    """Whether a value, and each of its parts, meets its limit; a column that is never NULL."""
    verdicts = [_passes(test, value) for test in limit.tests]
    for name, part in limit.parts:
        if not part.is_open:
            verdicts.append(_part_meets(name, part, value))
    met: SparkColumn = F.coalesce(reduce(and_, verdicts), F.lit(False)) if verdicts else F.lit(True)
    return met & value.isNotNull() if limit.required else met | value.isNull()


def _part_meets(name: str, limit: Limit, value: SparkColumn) -> SparkColumn:
    meets = partial(_meets, limit)
    match name:
        case "element":
            return F.forall(value, meets)
        case "key":
            return F.forall(F.map_keys(value), meets)
        case "value":
            return F.forall(F.map_values(value), meets)
    return meets(value[name])


def _passes(test: Test, value: SparkColumn) -> SparkColumn:
    match test:
        case Between():
            measured = _measured(test.measure, value)
            return (measured >= _number(test.low)) & (measured <= _number(test.high))
        case Multiple():
            return F.unix_micros(value) % test.micros == 0
        case Digits():
            # A cast rounds, or is NULL where the number has too many digits.
            return value == value.cast(f"decimal({max(1, test.before + test.after)}, {test.after})")
        case OneOf():
            return value.isin(*test.names)
        case Bytes():
            return F.octet_length(value) == test.length
        case Matches():
            return value.rlike(test.pattern)


def _measured(measure: Measure, value: SparkColumn) -> SparkColumn:
    match measure:
        case Measure.NUMBER:
            return value
        case Measure.DAYS:
            return F.unix_date(value)
        case Measure.MICROS:
            return F.unix_micros(value)


def _number(number: int) -> SparkColumn:
    if -(2**63) <= number < 2**63:
        return F.lit(number)
    most = 10**38 - 1  # beyond it, Spark has no number that could differ
    return F.lit(Decimal(max(-most, min(most, number))))
