"""The ClickHouse types of columns: as they are stored, and as they are read from the lake, before they become what is stored.

The way from one to the other is a cast that is only made of values of which nothing is lost (`domain/value_limits.py`): the
casts of ClickHouse wrap, cut and pad silently, `accurateCast` included.
"""

from backfill_platform.adapters.clickhouse.quoting import identifier, literal
from backfill_platform.domain.column_types import (
    INTEGERS,
    ArrayType,
    ColumnType,
    DataType,
    MapType,
    StructType,
    holds_map,
)
from backfill_platform.domain.stored_types import natural
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


def column_type(column: Column) -> str:
    """The ClickHouse type of a column, as `system.columns` shows it."""
    return str(column.stored)


def column_types(table: Table) -> dict[str, str]:
    """The ClickHouse type of each column, by name; without the sign."""
    return {column.name: column_type(column) for column in table.stored_columns}


def file_structure(table: Table, *, earlier_names: bool = False) -> str:
    """The columns of the lake's files for ClickHouse: what is in them, and wide enough that a reader wraps nothing.

    With `earlier_names`, also the columns that older files have under other names.
    """
    return ", ".join(
        f"{identifier(name)} {_file_type(column.type, True)}"
        for column in table.stored_columns
        for name in (column.name, *(column.was if earlier_names else ()))
    )


def _file_type(kind: DataType, nullable: bool) -> str:
    match kind:
        case ArrayType():
            return f"Array({_file_type(kind.element, True)})"
        case MapType():
            return f"Map({_file_type(kind.key, False)}, {_file_type(kind.value, True)})"
        case StructType():
            return f"Tuple({', '.join(f'{identifier(f.name)} {_file_type(f.type, True)}' for f in kind.fields)})"
    # Wide on purpose: the reader silently wraps a number that does not fit its type, while accurateCast refuses it.
    return str(natural(ColumnType.INT64 if kind in INTEGERS else kind, nullable))


def needs_conversion(table: Table) -> bool:
    """Whether a value may have to be refused, or becomes another type, on its way into the table."""
    return any(column.stored_as or not column.limit.is_open for column in table.stored_columns)


def converted(table: Table, source: str) -> str:
    """A SELECT of the declared columns from rows as `file_structure` has them, cast to the types of the target.

    It fails, naming the column, where a value would not be stored as it is.
    """
    casts = ", ".join(
        f"accurateCast({identifier(column.name)}, {literal(column_type(column))}) AS {identifier(column.name)}"
        for column in table.stored_columns
    )
    checks = [
        f"throwIf(NOT ({_meets(column.limit, f'__lake.{identifier(column.name)}')}), "
        f"{literal(f'a value of column {column.name} cannot be stored as {column.stored} without loss')}) = 0"
        for column in table.stored_columns
        if not column.limit.is_open
    ]
    where = f" AS __lake WHERE {' AND '.join(checks)}" if checks else ""
    return f"SELECT {casts} FROM {source}{where}"


def hashed(column: Column) -> str:
    """SQL for the value of a column that goes into the hash of its row: entries of maps in one order."""
    return _in_order(column.type, identifier(column.name), 0) if holds_map(column.type) else identifier(column.name)


def _in_order(kind: DataType, value: str, depth: int) -> str:
    inner = f"__v{depth}"
    match kind:
        case MapType() if holds_map(kind.value):
            return (
                f"mapSort(mapApply((__k{depth}, {inner}) -> (__k{depth}, {_in_order(kind.value, inner, depth + 1)}), {value}))"
            )
        case MapType():
            return f"mapSort({value})"
        case ArrayType() if holds_map(kind.element):
            return f"arrayMap({inner} -> {_in_order(kind.element, inner, depth + 1)}, {value})"
        case StructType() if holds_map(kind):
            parts = (f"tupleElement({value}, {number})" for number in range(1, len(kind.fields) + 1))
            return f"tuple({', '.join(_in_order(f.type, part, depth) for f, part in zip(kind.fields, parts, strict=True))})"
    return value


def total(column: Column) -> str:
    """SQL for the sum of a numeric column, wide enough that no total of 64-bit values or of decimals wraps around."""
    name = identifier(column.name)
    if column.type in (ColumnType.FLOAT64, ColumnType.FLOAT32):
        return f"ifNull(sum(toFloat64({name})), 0)" if column.type is ColumnType.FLOAT32 else f"ifNull(sum({name}), 0)"
    if column.type in INTEGERS or column.type is ColumnType.BOOLEAN:
        return f"ifNull(sum(toInt128({name})), 0)"
    return f"ifNull(sum(toDecimal256({name}, {getattr(column.type, 'scale', 0)})), 0)"


def _meets(limit: Limit, value: str, depth: int = 0) -> str:
    """Whether a value and its parts meet their limit; never NULL."""
    verdicts = [_passes(test, value) for test in limit.tests]
    verdicts += [_part_meets(name, part, value, depth) for name, part in limit.parts if not part.is_open]
    met = " AND ".join(verdicts) or "1"
    return f"(isNotNull({value}) AND {met})" if limit.required else f"(isNull({value}) OR ({met}))"


def _part_meets(name: str, limit: Limit, value: str, depth: int) -> str:
    each = f"__p{depth}"
    met = _meets(limit, each, depth + 1)
    match name:
        case "element":
            return f"arrayAll({each} -> {met}, {value})"
        case "key":
            return f"arrayAll({each} -> {met}, mapKeys({value}))"
        case "value":
            return f"arrayAll({each} -> {met}, mapValues({value}))"
    return _meets(limit, f"tupleElement({value}, {literal(name)})", depth)


def _passes(test: Test, value: str) -> str:
    match test:
        case Between():
            measured = _measured(test.measure, value)
            return f"{measured} >= {_number(test.low)} AND {measured} <= {_number(test.high)}"
        case Multiple():
            return f"toUnixTimestamp64Micro({value}) % {test.micros} = 0"
        case Digits():
            least = f"toDecimal256('{10**test.before}', 0)"
            return f"toDecimal256({value}, {test.after}) = {value} AND {value} < {least} AND {value} > -{least}"
        case OneOf():
            return f"{value} IN ({', '.join(map(literal, test.names))})"
        case Bytes():
            return f"length({value}) = {test.length}"
        case Matches():
            return f"match({value}, {literal(test.pattern)})"


def _measured(measure: Measure, value: str) -> str:
    match measure:
        case Measure.NUMBER:
            return value
        case Measure.DAYS:
            return f"toInt32({value})"
        case Measure.MICROS:
            return f"toUnixTimestamp64Micro({value})"


def _number(number: int) -> str:
    if -(2**63) <= number < 2**63:
        return str(number)
    most = 10**38 - 1  # beyond it, the lake has no number that could differ
    return f"toDecimal256('{max(-most, min(most, number))}', 0)"
