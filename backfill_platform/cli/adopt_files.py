"""The two files of an adopted table: a module with its pipeline, and a test of it."""

from datetime import datetime
from typing import Any

from backfill_platform.cli.adopt_source import Sample
from backfill_platform.domain.column_types import ArrayType, ColumnType, DataType, DecimalType, MapType, StructType
from backfill_platform.domain.tables import Column, Partitioning, Table, TargetEngine
from backfill_platform.pipelines.adoption import Adoption

_RESERVED = {"line", "undecodable", "file_hour", "ingestion_hour"}  # names of the platform's in raw rows
_PLAIN = {
    ColumnType.BOOLEAN: "T.BooleanType()",
    ColumnType.INT32: "T.IntegerType()",
    ColumnType.INT64: "T.LongType()",
    ColumnType.FLOAT32: "T.FloatType()",
    ColumnType.FLOAT64: "T.DoubleType()",
    ColumnType.STRING: "T.StringType()",
    ColumnType.DATE: "T.DateType()",
    ColumnType.TIMESTAMP: "T.TimestampType()",
}
_SQL = {ColumnType.FLOAT32: "float", ColumnType.INT32: "int", ColumnType.INT64: "bigint", ColumnType.FLOAT64: "double"}
# What records are read as, where that is not the type itself.
_TAKEN = {ColumnType.FLOAT32: ColumnType.FLOAT64, ColumnType.DATE: ColumnType.TIMESTAMP}
_EXAMPLES: dict[Any, Any] = {
    ColumnType.BOOLEAN: True,
    ColumnType.INT32: 1,
    ColumnType.INT64: 1,
    ColumnType.FLOAT64: 1.5,
    ColumnType.STRING: "a",
}


def missing(adoption: Adoption, sample: Sample) -> list[str]:
    """The columns that the source does not give."""
    return [column.name for column in _data(adoption.table) if not _is_given(column, sample)]


def pipeline_file(adoption: Adoption, sample: Sample, start: datetime, end: datetime | None) -> str:
    """The module with the pipeline; `start` and `end` are its first hour and the end of its last one."""
    table = adoption.table
    given = [column for column in _data(table) if _is_given(column, sample)]
    classes = [
        _schema("Events", "What came.", [Column("ingestion_hour", ColumnType.TIMESTAMP), *map(_taken, given)]),
        _schema("Rows", f"The rows of {'.'.join(table.stored_in)}.", list(table.columns)),
    ]
    ends = sample.ends or end is not None
    return "\n".join(
        [
            f'"""The pipeline of the table {".".join(table.stored_in)}, written by `backfill adopt`; it is yours to change."""',
            "",
            "from datetime import UTC, datetime",
            "from pathlib import Path",
            "",
            "import pyspark.sql.types as T",
            "from pandera.pyspark import DataFrameModel, Field",
            "from pyspark.sql import functions as F",
            "",
            *sample.imports,
            "from backfill_platform.adapters.spark.checks import RowRule",
            "from backfill_platform.domain.tables import Layer, Partitioning, TargetEngine, TargetTable",
            "from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable",
            "",
            "HERE = Path(__file__).resolve().parent",
            f"START = {_moment(start)}  # the first hour",
            f"END = {_moment(end) if ends and end else None}  # the end of the last hour; None: it goes on",
            "",
            "",
            *classes,
            *_build(adoption, sample),
            "",
            "",
            "def has_a_time():",
            '    """ClickHouse stores 1970-01-01 where a time is missing."""',
            f'    return F.col("{adoption.time}") >= F.lit("1970-01-02").cast("timestamp")',
            "",
            "",
            *_declaration(adoption, sample),
            "",
        ]
    )


def _declaration(adoption: Adoption, sample: Sample) -> list[str]:
    table = adoption.table
    target = [f"{table.target.database!r}", f"{table.target.name!r}"]
    target += [f"sign={table.target.sign!r}"] if table.collapses and table.target.sign != "sign" else []
    target += [f"hour={table.target.hour!r}"] if table.target.hour else []
    target += [f"engine=TargetEngine.{TargetEngine(table.target.engine).name}"] if not table.collapses else []
    target += [f"deleted={table.target.deleted!r}"] if table.target.deleted else []
    stored = {column.name: column.stored_as for column in table.columns if column.stored_as}
    given = tuple(name for name in table.key if name not in missing(adoption, sample))
    place = ".".join(table.stored_in)
    return [
        "pipeline = Pipeline(",
        f"    name={table.name!r},",
        f"    description={f'Rows of {place}.'!r},",
        "    start=START,",
        "    end=END,",
        f"    source={sample.code},",
        f"    raw=RawTable({f'{table.name}_events'!r}, Events, event_time={adoption.time!r}, same_event={given!r}),",
        "    derived=(",
        "        DerivedTable(",
        "            Layer.TRANSFORMED,",
        f"            {table.name!r},",
        "            Rows,",
        f"            reads={f'{table.name}_events'!r},",
        "            build=build,",
        f"            key={table.key!r},",
        *([f"            tenant={table.tenant!r},"] if table.tenant else []),
        f"            rules=(RowRule({f'{adoption.time}: is there'!r}, has_a_time),),",
        *(
            [f"            partitioning=Partitioning.{table.partitioning.name},"]
            if table.partitioning is not Partitioning.DAY
            else []
        ),
        *(
            ["            stored_as={", *(f"                {n!r}: {t!r}," for n, t in stored.items()), "            },"]
            if stored
            else []
        ),
        f"            target=TargetTable({', '.join(target)}),",
        "        ),",
        "    ),",
        ")",
    ]


def _schema(name: str, says: str, columns: list[Column]) -> str:
    lines = [f"class {name}(DataFrameModel):", f'    """{says}"""', ""]
    for column in columns:
        options = (["nullable=True"] if column.nullable else []) + (
            [f"description={column.description!r}"] if column.description else []
        )
        lines.append(f"    {column.name}: {_type(column.type).removesuffix('()')} = Field({', '.join(options)})")
    return "\n".join([*lines, "", ""])


def _build(adoption: Adoption, sample: Sample) -> list[str]:
    unit = "day" if is_by_day(adoption) else "hour"
    lines = ["def build(events):", '    """One row for each event."""', "    return events.select("]
    for column in adoption.table.columns:
        if column.name == "hour":
            value = f'F.date_trunc("{unit}", "{adoption.time}").alias("hour")'
        elif _is_given(column, sample):
            value = _from_taken(column)
        else:
            value = f"{_nothing(column)}.alias({column.name!r}),  # TODO: the source has no such column"
            lines.append(f"        {value}")
            continue
        lines.append(f"        {value},")
    return [*lines, "    )"]


def _from_taken(column: Column) -> str:
    name = repr(column.name)
    match column.type:
        case ColumnType.DATE:
            return f"F.to_date({name}).alias({name})"
        case ColumnType.FLOAT32:
            return f'F.col({name}).cast("float").alias({name})'
        case DecimalType(precision=precision, scale=scale):
            return f'F.col({name}).try_cast("decimal({precision},{scale})").alias({name})'
        case ArrayType() | MapType() | StructType():
            return f"F.from_json({name}, {_sql(column.type)!r}).alias({name})"
    return name


def _nothing(column: Column) -> str:
    """What stands for a column that the source does not have: NULL, or what ClickHouse would store."""
    if column.nullable:
        return f"F.lit(None).cast({_sql(column.type)!r})"
    if isinstance(column.type, ArrayType | MapType | StructType):
        empty = "[]" if isinstance(column.type, ArrayType) else "{}"
        return f"F.from_json(F.lit({empty!r}), {_sql(column.type)!r})"
    zero = {
        ColumnType.STRING: "''",
        ColumnType.BOOLEAN: "False",
        ColumnType.DATE: "'1970-01-01'",
        ColumnType.TIMESTAMP: "'1970-01-01'",
    }
    value = "0" if isinstance(column.type, DecimalType) else zero.get(column.type, "0")
    return f"F.lit({value}).cast({_sql(column.type)!r})"


def test_file(adoption: Adoption, sample: Sample, module: str) -> str:
    """The test of the pipeline: what it makes of one event."""
    given = [column for column in _data(adoption.table) if _is_given(column, sample)]
    row = ",\n".join(f"    {column.name!r}: {_example(column)}" for column in given)
    types = ", ".join(f"`{column.name}` {_sql(_taken(column).type)}" for column in given)
    return f'''"""What the pipeline makes of an event, in plain values: `python -m pytest {"test_" + module}.py`."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.session import session_options, use_this_interpreter
from {module} import build, has_a_time, pipeline

AT = datetime(2026, 1, 1{"" if is_by_day(adoption) else ", 10, 30"}, tzinfo=UTC)
EVENT = {{
{row},
}}
TYPES = "{types}"


@pytest.fixture(scope="session")
def spark():
    """Spark with the options of the platform: with others, the same code may fail or give other rows."""
    use_this_interpreter()
    builder = SparkSession.builder
    for name, value in session_options(master="local[1]", remote=None, driver_memory="1g").items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def rows(spark):
    return build(spark.createDataFrame([EVENT], TYPES))


def test_an_event_becomes_a_row_of_its_hour(rows):
    """Its columns are those of the table, and its hour is that of its time (in seconds: Spark shows times of this machine)."""
    (table,) = pipeline.published
    assert rows.columns == list(table.column_names)
    hour = AT.replace(minute=0)
    assert [row[0] for row in rows.select(F.unix_seconds("hour")).collect()] == [int(hour.timestamp())]


def test_what_the_table_holds_comes_through(rows):
    """No value is lost, and the first check holds."""
    (row,) = rows.collect()
    assert [name for name, value in row.asDict().items() if value is None] == {_null(adoption, sample)!r}
    assert rows.where(has_a_time()).count() == 1
'''


def _null(adoption: Adoption, sample: Sample) -> list[str]:
    return [c.name for c in adoption.table.columns if c.nullable and c.name in missing(adoption, sample)]


def is_by_day(adoption: Adoption) -> bool:
    """Whether rows have a day and no time, and so belong to the first hour of it."""
    return adoption.table.column(adoption.time).type is ColumnType.DATE


def _data(table: Table) -> list[Column]:
    """The columns that events have: all but an hour that is computed."""
    return [column for column in table.columns if column.name != "hour" or not table.target.hour]


def _is_given(column: Column, sample: Sample) -> bool:
    return column.name.lower() not in _RESERVED and (sample.columns is None or column.name in sample.columns)


def _taken(column: Column) -> Column:
    """The column as records are read."""
    kind: DataType = ColumnType.STRING
    if isinstance(column.type, ColumnType):
        kind = _TAKEN.get(column.type, column.type)
    return Column(column.name, kind, column.nullable)


def _example(column: Column) -> str:
    """A value of an event that its column can store, as Python writes it."""
    match column.type:
        case ColumnType.TIMESTAMP | ColumnType.DATE:
            return "AT"
        case DecimalType():
            return '"1"'
        case ArrayType():
            return '"[]"'
        case MapType() | StructType():
            return '"{}"'
    stored = column.stored
    text = {"UUID": "00000000-0000-0000-0000-000000000001", "FixedString": "a" * sum(stored.numbers)}.get(stored.name, "a")
    text = stored.arguments[0] if stored.name.startswith("Enum") else text
    return repr(text if column.type is ColumnType.STRING else _EXAMPLES[_taken(column).type])


def _type(kind: DataType) -> str:
    """A type in a schema, as Python writes it."""
    match kind:
        case DecimalType():
            return f"T.DecimalType({kind.precision}, {kind.scale})"
        case ArrayType():
            return f"T.ArrayType({_type(kind.element)}, {kind.nullable})"
        case MapType():
            return f"T.MapType({_type(kind.key)}, {_type(kind.value)}, {kind.nullable})"
        case StructType():
            fields = ", ".join(f"T.StructField({field.name!r}, {_type(field.type)}, {field.nullable})" for field in kind.fields)
            return f"T.StructType([{fields}])"
    return _PLAIN[kind]


def _sql(kind: DataType) -> str:
    """A type as Spark's SQL writes it."""
    match kind:
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case ArrayType():
            return f"array<{_sql(kind.element)}>"
        case MapType():
            return f"map<{_sql(kind.key)},{_sql(kind.value)}>"
        case StructType():
            return f"struct<{','.join(f'{field.name}:{_sql(field.type)}' for field in kind.fields)}>"
    return _SQL.get(kind, str(kind))


def _moment(moment: datetime) -> str:
    return f"datetime({moment.year}, {moment.month}, {moment.day}, {moment.hour}, tzinfo=UTC)"
