import pytest

from backfill_platform.domain.column_types import ArrayType, ColumnType, DataType, DecimalType, Field, MapType, StructType
from backfill_platform.domain.stored_types import natural, parse
from backfill_platform.domain.tables import Column, Layer, Table, check_storable
from backfill_platform.domain.value_limits import fit
from backfill_platform.errors import SpecError

HOUR = Column("hour", ColumnType.TIMESTAMP)
THING = StructType((Field("a", ColumnType.INT32), Field("b", ColumnType.STRING)))


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("DateTime", "DateTime"),
        ("DateTime( 'Europe/Berlin' )", "DateTime('Europe/Berlin')"),
        ("DateTime64", "DateTime64(3)"),
        ("DateTime64(9,'UTC')", "DateTime64(9, 'UTC')"),
        ("Decimal64(4)", "Decimal(18, 4)"),
        ("Decimal(18,4)", "Decimal(18, 4)"),
        ("Decimal(5)", "Decimal(5, 0)"),
        ("Enum8('b'=2, 'a' = -1, 'it\\'s' = 7)", "Enum8('a' = -1, 'b' = 2, 'it\\'s' = 7)"),
        ("LowCardinality(Nullable(String))", "LowCardinality(Nullable(String))"),
        ("Map(LowCardinality(String),Array(Nullable(Int8)))", "Map(LowCardinality(String), Array(Nullable(Int8)))"),
        ("Tuple(a Int32,b Nullable(String))", "Tuple(a Int32, b Nullable(String))"),
        ("Tuple(UInt8, LowCardinality(String))", "Tuple(UInt8, LowCardinality(String))"),
        ("FixedString(3)", "FixedString(3)"),
    ],
)
def test_a_type_is_read_and_shown_as_clickhouse_shows_it(written: str, shown: str) -> None:
    assert str(parse(written)) == shown
    assert str(parse(shown)) == shown


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("JSON", "JSON is not supported; supported are Bool"),
        ("Int32)", r"from '\)' on"),
        ("Nullable(Array(Int8))", r"ClickHouse has no Nullable\(Array\)"),
        ("Enum8('a')", "the number of each name"),
        ("Array(Int8, Int8)", "Array has another number of types"),
        ("Tuple(a Int8, Int16)", "either all values of a Tuple have names"),
        ("FixedString", r"\( after FixedString is missing"),
        ("", "the name of a type is missing"),
    ],
)
def test_a_text_that_is_no_type_is_refused(written: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        parse(written)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (ColumnType.STRING, "Int32"),
        (ColumnType.INT32, "String"),
        (ColumnType.INT64, "Float64"),
        (ColumnType.FLOAT64, "Float32"),
        (ColumnType.FLOAT64, "Decimal(18, 4)"),
        (ColumnType.TIMESTAMP, "UInt32"),
        (ColumnType.DATE, "DateTime"),
        (DecimalType(18, 2), "Int64"),
        (ArrayType(ColumnType.STRING), "String"),
        (ArrayType(ColumnType.STRING), "Array(Int8)"),
        (THING, "Tuple(a Int32, c String)"),
        (THING, "Tuple(Int32)"),
        (MapType(ColumnType.STRING, ColumnType.INT64), "Map(Int8, Int64)"),
    ],
)
def test_types_that_do_not_go_together_are_refused(kind: DataType, stored: str) -> None:
    with pytest.raises(SpecError, match="cannot be stored as"):
        fit(kind, parse(stored))


@pytest.mark.parametrize(
    "kind",
    [*(kind for kind in ColumnType if kind not in (ColumnType.BINARY, ColumnType.DATE)), DecimalType(38, 10),
     MapType(ColumnType.INT8, ColumnType.STRING), THING, ArrayType(ColumnType.FLOAT32)],
    ids=str,
)  # fmt: skip
def test_what_a_type_is_stored_as_by_itself_holds_all_its_values(kind: DataType) -> None:
    assert fit(kind, natural(kind, nullable=False)).is_open


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (Column("c", ColumnType.INT64, nullable=True, stored_as="UInt8"), r"UInt8 is not; declare it as Nullable\(UInt8\)"),
        (Column("c", ArrayType(ColumnType.STRING), nullable=True), "it has no NULL for these"),
        (Column("c", ArrayType(ColumnType.STRING), nullable=True, stored_as="Array(String)"), "it has no NULL for these"),
        (Column("c", ColumnType.STRING, stored_as="Text"), "Text is not supported"),
        (Column("k", ColumnType.INT64, stored_as="Nullable(Int64)"), "NULL sorts nowhere"),
        (Column("k", ArrayType(ColumnType.INT64)), "nor an array, map or struct"),
    ],
)
def test_a_column_that_clickhouse_cannot_store_is_refused_with_the_reason(column: Column, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        check_storable(Table(Layer.TRANSFORMED, "t", (HOUR, column), key=("k",) if column.name == "k" else ()))


def test_a_map_cannot_have_floats_for_keys() -> None:
    with pytest.raises(SpecError, match="the key of a map must be"):
        MapType(ColumnType.FLOAT64, ColumnType.INT32)
