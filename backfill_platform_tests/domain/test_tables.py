import pytest

from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.tables import Column, Layer, Table
from backfill_platform.errors import SpecError

HOUR = Column("hour", ColumnType.TIMESTAMP)
CLIENT = Column("client", ColumnType.INT64)


def test_a_table_names_its_place_everywhere() -> None:
    table = Table(Layer.TRANSFORMED, "sessions", (HOUR, CLIENT), key=("client",))
    assert (str(table), table.path, table.column_names) == (
        "transformed/sessions",
        ("transformed", "sessions"),
        ("hour", "client"),
    )


@pytest.mark.parametrize(
    ("columns", "key", "name", "says"),
    [
        ((HOUR, CLIENT, CLIENT), (), "t", "declared twice: client"),
        ((HOUR, Column("Client", ColumnType.INT64)), (), "t", "'Client' cannot be used as a name"),
        ((HOUR,), (), "t; DROP", "cannot be used as a name"),
        ((HOUR,), ("client",), "t", "'client' is used as a key but is not a column"),
        ((HOUR, Column("k", ColumnType.STRING, nullable=True)), ("k",), "t", "'k' must be neither nullable nor a float"),
        ((HOUR, Column("k", ColumnType.FLOAT64)), ("k",), "t", "'k' must be neither nullable nor a float"),
        ((HOUR, Column("sign", ColumnType.INT32)), (), "t", "collapses by"),
        ((CLIENT,), (), "t", "'hour' is used as a key but is not a column"),
        ((Column("hour", ColumnType.STRING),), (), "t", "must be a timestamp"),
    ],
)
def test_a_table_that_cannot_work_is_refused_with_the_reason(
    columns: tuple[Column, ...], key: tuple[str, ...], name: str, says: str
) -> None:
    with pytest.raises(SpecError, match=says):
        Table(Layer.TRANSFORMED, name, columns, key=key)
