from dataclasses import replace

import pytest

from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.tables import Column, Layer, Table, TargetTable
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
        ((HOUR, Column("the client", ColumnType.INT64)), (), "t", "'the client' cannot be used as a name"),
        ((HOUR, CLIENT, Column("Client", ColumnType.INT64)), (), "t", "declared twice: Client, client"),
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


STARTED = Column("started", ColumnType.TIMESTAMP)


def test_a_target_has_the_name_that_is_declared_and_else_that_of_the_table() -> None:
    table = Table(Layer.TRANSFORMED, "sessions", (HOUR, CLIENT, STARTED), key=("client", "started"))
    assert (table.stored_in, table.sign, table.stored_names) == (
        ("transformed", "sessions"),
        "sign",
        ("hour", "client", "started"),
    )
    target = TargetTable("shop", "Sessions v2", "Sign", hour="toStartOfHour(started)")
    named = replace(table, target=target)
    assert (named.path, named.stored_in, named.sign) == (table.path, ("shop", "Sessions v2"), "Sign")
    assert named.stored_names == ("client", "started")


@pytest.mark.parametrize(
    ("target", "key", "says"),
    [
        (TargetTable(sign="client"), (), "'client' is the column that ClickHouse collapses by"),
        (TargetTable(hour="started"), ("client",), "computed from started, which must be part of the key"),
        (TargetTable(hour="toStartOfDay(hour)"), ("client",), "from columns other than 'hour'"),
        (TargetTable(hour="now()"), ("client",), "from columns other than 'hour'"),
    ],
)
def test_a_target_that_cannot_work_is_refused_with_the_reason(target: TargetTable, key: tuple[str, ...], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        Table(Layer.TRANSFORMED, "t", (HOUR, CLIENT, STARTED), key=key, target=target)


def test_an_earlier_name_may_have_capital_letters_but_not_differ_by_them_alone() -> None:
    """Tables that people have are adopted with such names, and Spark takes names that differ in case alone for one."""

    def renamed(*was: str) -> Table:
        columns = (Column("hour", ColumnType.TIMESTAMP), Column("user_id", ColumnType.INT64, was=was))
        return Table(Layer.TRANSFORMED, "visits", columns)

    assert renamed("UserID").column("user_id").was == ("UserID",)
    for wrong in (("User_Id",), ("HOUR",), ("a", "A"), ("a-b",)):
        with pytest.raises(SpecError, match="cannot have been"):
            renamed(*wrong)
