"""What the platform expects of a warehouse server: requests, their settings and sessions.

Through the unmodified client and, where the client hides it, through plain HTTP. Rows and formats are in
test_warehouse_server_data.py.

The same tests run against the embedded server and, with CLICKHOUSE_URL, against a real ClickHouse.
"""

import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from backfill_platform_tests.contracts.sample import MAX_THREADS, ROWS, TABLE, content
from backfill_platform_tests.fixtures_warehouse import raw, wait_until

# --- 1. The shapes of a request


def test_ping_needs_no_statement(warehouse_url: str) -> None:
    answer = raw(warehouse_url, method="GET", path="/ping")
    assert (answer.status, answer.body) == (200, b"Ok.\n")


def test_the_address_alone_answers_ok(warehouse_url: str) -> None:
    assert raw(warehouse_url, method="GET").body == b"Ok.\n"


def test_statement_in_the_body(warehouse_url: str) -> None:
    assert raw(warehouse_url, b"SELECT 1 + 1").body == b"2\n"


def test_statement_in_the_address(warehouse_url: str) -> None:
    assert raw(warehouse_url, method="GET", query="SELECT 1 + 1").body == b"2\n"


def test_statement_in_the_address_continues_in_the_body(warehouse_url: str) -> None:
    assert raw(warehouse_url, b"+ 1", query="SELECT 1").body == b"2\n"


def test_get_changes_nothing(warehouse_url: str, client: Client, warehouse_database: str, table: str) -> None:
    answer = raw(warehouse_url, method="GET", query=f"INSERT INTO {warehouse_database}.{table} VALUES (1, 'x')")
    assert (answer.status >= 400, answer.headers["X-ClickHouse-Exception-Code"]) == (True, "164")
    assert content(client, table) == Counter()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 AS a, 'x' AS b;",
        "SELECT 1 AS a, 'x' AS b -- the end",
        "SELECT 1 AS a, 'x' AS b /* FORMAT JSON */",
        "SELECT 1 AS a,\n\n  'x' AS b\n\n",
        "-- first\nSELECT 1 AS a, 'x' AS b # last\n",
    ],
)
def test_ends_and_comments_of_statements(reader: Client, sql: str) -> None:
    assert reader.command(sql) == ["1", "x"]
    assert reader.query(sql).result_rows == [(1, "x")]


@pytest.mark.parametrize(
    ("sql", "name", "body"),
    [
        ("SELECT 1 AS a FORMAT JSONEachRow", "JSONEachRow", b'{"a":1}\n'),
        ("SELECT 1 AS a FORMAT JSONEachRow;\n", "JSONEachRow", b'{"a":1}\n'),
        ("SELECT 1 AS a FORMAT CSV SETTINGS max_threads = 1", "CSV", b"1\n"),
        ("SELECT 1 AS a FORMAT `CSVWithNames` -- FORMAT XML", "CSVWithNames", b'"a"\n1\n'),
        ("SELECT 'x FORMAT CSV' AS format", "TabSeparated", b"x FORMAT CSV\n"),
        ("SELECT $x$it's FORMAT CSV$x$", "TabSeparated", b"it\\'s FORMAT CSV\n"),
        ("SELECT a FROM format(CSV, 'a UInt8', '7')", "TabSeparated", b"7\n"),
        ("SELECT number AS format FROM numbers(2) ORDER BY format DESC", "TabSeparated", b"1\n0\n"),
        ("SELECT 7 AS format SETTINGS max_threads = 1", "TabSeparated", b"7\n"),
    ],
)
def test_a_format_in_the_statement_wins(warehouse_url: str, sql: str, name: str, body: bytes) -> None:
    answer = raw(warehouse_url, sql.encode())
    assert (answer.headers["X-ClickHouse-Format"], answer.body) == (name, body)


def test_several_statements_are_refused_and_none_runs(client: Client) -> None:
    with pytest.raises(DatabaseError, match="Multi-statements are not allowed") as caught:
        client.command(f"CREATE TABLE first {TABLE}; CREATE TABLE second {TABLE}")
    assert caught.value.code == 62
    assert client.query("SHOW TABLES").result_rows == []


# --- 2. The handshake of the client


def test_handshake(reader: Client) -> None:
    assert reader.ping()
    assert tuple(map(int, str(reader.server_version).split(".")[:2])) >= (24, 8)
    assert reader.server_settings["max_threads"].readonly == 0


def test_low_cardinality_both_ways(client: Client) -> None:
    """The client's probe of the protocol decides how these travel; a wrong answer to it garbles them."""
    client.command(
        "CREATE TABLE t (a LowCardinality(String), b LowCardinality(Nullable(String))) ENGINE = MergeTree ORDER BY a"
    )
    rows = [("x", None), ("x", "y"), ("z", "")]
    client.insert("t", rows, column_names=["a", "b"])
    assert content(client, "t") == Counter(rows)


# --- 3. What comes with a statement: settings, database, parameters, ids


def test_settings_hold_for_one_request(reader: Client) -> None:
    before = reader.command(MAX_THREADS)
    assert reader.command(MAX_THREADS, settings={"max_threads": 7}) == 7
    assert reader.query(MAX_THREADS, settings={"max_threads": 6}).result_rows == [(6,)]
    assert reader.command(MAX_THREADS) == before


def test_settings_of_a_client_stay_with_it(connect: Callable[..., Client]) -> None:
    seven, plain = connect(settings={"max_threads": 7}), connect()
    assert [client.command(MAX_THREADS) for client in (seven, plain, seven)][::2] == [7, 7]
    assert plain.command(MAX_THREADS) != 7


def test_settings_do_not_leak_from_failed_requests(warehouse_url: str) -> None:
    changed = "SELECT count() FROM system.settings WHERE changed"
    before = raw(warehouse_url, changed.encode()).body
    cases: list[dict[str, Any]] = [{"max_threads": "7"}, {"compatibility": "22.1"}, {"readonly": "1"}, {"limit": "1"}]
    for settings in cases:
        assert raw(warehouse_url, b"SELECT nothing", **settings).status >= 400
        assert raw(warehouse_url, b"SELECT 1", **settings).status == 200
    assert raw(warehouse_url, changed.encode()).body == before


def test_settings_reach_inserts_and_ddl(client: Client, table: str) -> None:
    client.insert(table, ROWS, settings={"max_partitions_per_insert_block": 3})
    with pytest.raises(DatabaseError) as caught:
        client.raw_insert(
            table, insert_block=b"1\n", fmt="CSV", settings={"input_format_csv_allow_variable_number_of_columns": 0}
        )
    assert caught.value.code == 27
    client.raw_insert(table, insert_block=b"1\n", fmt="CSV", settings={"input_format_csv_allow_variable_number_of_columns": 1})
    assert content(client, table) == Counter([*ROWS, (1, "")])
    with pytest.raises(DatabaseError, match="readonly"):
        client.command(f"DROP TABLE {table}", settings={"readonly": 1})


@pytest.mark.parametrize(("name", "value", "code"), [("no_such_setting", "1", "115"), ("max_threads", "many", "27")])
def test_settings_that_make_no_sense_are_errors(warehouse_url: str, name: str, value: str, code: str) -> None:
    setting: dict[str, Any] = {name: value}
    answer = raw(warehouse_url, b"SELECT 1", **setting)
    assert answer.status >= 400
    assert answer.headers["X-ClickHouse-Exception-Code"] in (code, "72", "6")  # versions disagree on the last two
    assert name in answer.body.decode() or value in answer.body.decode()


def test_setting_values_are_not_sql(warehouse_url: str) -> None:
    answer = raw(warehouse_url, b"SELECT getSetting('log_comment')", log_comment="a', max_threads = '7 \\ ")
    assert answer.body == b"a\\', max_threads = \\'7 \\\\ \n"


def test_database_of_a_request(warehouse_url: str, warehouse_database: str) -> None:
    assert (
        raw(warehouse_url, b"SELECT currentDatabase()", database=warehouse_database).body.decode() == f"{warehouse_database}\n"
    )
    assert raw(warehouse_url, b"SELECT currentDatabase()").body == b"default\n"
    assert raw(warehouse_url, b"SELECT 1", database="no`such").headers["X-ClickHouse-Exception-Code"] == "81"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("String", "it's"),
        ("String", 'a "quoted" \\ back\tslash\nand a line, {p:String} ; -- FORMAT CSV'),
        ("String", ""),
        ("String", "ünï ☃"),
        ("Nullable(String)", None),
        ("UInt64", 2**64 - 1),
        ("Float64", -0.5),
        ("Array(String)", ["a'b", "c\\d", "e,f]"]),
        ("Array(UInt8)", []),
        ("DateTime('UTC')", datetime.fromisoformat("2024-02-29 23:59:59")),
        ("Date", date(2024, 2, 29)),
        ("Decimal(18, 4)", Decimal("-1.2345")),
    ],
)
def test_bound_parameters(reader: Client, kind: str, value: object) -> None:
    assert reader.query(f"SELECT {{p:{kind}}} AS v", parameters={"p": value}).result_rows[0][0] == value


def test_bound_datetime64_keeps_its_fraction(reader: Client) -> None:
    moment = datetime.fromisoformat("2024-02-29 23:59:59.123456")
    sql = "SELECT {p_64:DateTime64(6, 'UTC')} AS v"
    assert reader.query(sql, parameters={"p_64": moment}).result_rows[0][0] == moment


def test_bound_identifiers(client: Client, warehouse_database: str) -> None:
    client.command("CREATE TABLE {name:Identifier} (a UInt8) ENGINE = MergeTree ORDER BY a", parameters={"name": "odd `name`"})
    client.command("INSERT INTO {name:Identifier} SELECT {n:UInt8}", parameters={"name": "odd `name`", "n": 5})
    sql = "SELECT a FROM {database:Identifier}.{name:Identifier}"
    assert client.command(sql, parameters={"database": warehouse_database, "name": "odd `name`"}) == 5


def test_bound_parameters_hold_for_one_request(warehouse_url: str) -> None:
    assert raw(warehouse_url, b"SELECT {p:UInt8}", param_p="5").body == b"5\n"
    assert raw(warehouse_url, b"SELECT {p:UInt8}").headers["X-ClickHouse-Exception-Code"] == "456"


def test_long_bound_parameters(reader: Client) -> None:
    """Past 4 KiB the reader sends queries as a form; commands keep them in the address."""
    values = [f"it's {number}\r\n--" for number in range(2_000)]
    sql = "SELECT arrayStringConcat({p:Array(String)}, '|') AS v"
    assert reader.query(sql, parameters={"p": values}).result_rows[0][0] == "|".join(values)
    assert reader.command("SELECT length({p:Array(UInt32)})", parameters={"p": list(range(100_000, 130_000))}) == 30_000


def test_query_id_comes_back(reader: Client) -> None:
    name = f"attempt:{uuid.uuid4()}"
    assert reader.query("SELECT 1", settings={"query_id": name}).query_id == name
    ids = {reader.query("SELECT 1").query_id for _ in range(2)}
    assert len(ids) == 2
    assert "" not in ids


# --- Sessions


def test_temporary_tables_belong_to_a_session(connect: Callable[..., Client]) -> None:
    mine, other = connect(session_id=str(uuid.uuid4())), connect()
    mine.command("CREATE TEMPORARY TABLE scratch (a UInt8)")
    mine.insert("scratch", [[1], [2]], column_names=["a"], column_type_names=["UInt8"])
    with pytest.raises(DatabaseError):
        mine.command("SELECT nothing FROM scratch")
    assert mine.command("SELECT sum(a) FROM scratch") == 3
    with pytest.raises(DatabaseError) as caught:
        other.command("SELECT sum(a) FROM scratch")
    assert caught.value.code == 60


def test_set_belongs_to_a_session(connect: Callable[..., Client]) -> None:
    mine, other = connect(session_id=str(uuid.uuid4())), connect()
    mine.command("SET max_threads = 7")
    assert mine.command(MAX_THREADS, settings={"max_threads": 6}) == 6
    with pytest.raises(DatabaseError):
        mine.command("SELECT nothing", settings={"max_threads": 5, "max_block_size": 1000})
    assert mine.command(MAX_THREADS) == 7
    assert mine.command("SELECT getSetting('max_block_size')") != 1000
    assert other.command(MAX_THREADS) != 7


def test_use_belongs_to_a_session(warehouse_url: str, warehouse_database: str) -> None:
    session = str(uuid.uuid4())
    current = b"SELECT currentDatabase()"
    raw(warehouse_url, f"USE {warehouse_database}".encode(), session_id=session)
    assert raw(warehouse_url, current, session_id=session, database="system").body == b"system\n"
    assert raw(warehouse_url, current, session_id=session).body.decode() == f"{warehouse_database}\n"
    assert raw(warehouse_url, current).body == b"default\n"


def test_a_session_takes_one_request_at_a_time(warehouse_url: str) -> None:
    session = str(uuid.uuid4())
    raw(warehouse_url, b"SET max_threads = 7", session_id=session)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(raw, warehouse_url, b"SELECT sleep(0.6)", session_id=session)
        count = b"SELECT count() FROM system.processes WHERE query = 'SELECT sleep(0.6)'"
        wait_until(lambda: raw(warehouse_url, count).body == b"1\n")
        assert raw(warehouse_url, b"SELECT 1", session_id=session).headers["X-ClickHouse-Exception-Code"] == "373"
        assert running.result().status == 200
    assert raw(warehouse_url, b"SELECT 1", session_id=session).body == b"1\n"
