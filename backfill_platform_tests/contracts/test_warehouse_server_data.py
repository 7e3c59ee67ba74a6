"""What the platform expects of a warehouse server: inserts, compression, answers, errors, and several of them at once."""

import gzip
import io
import json
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import clickhouse_connect
import lz4.frame
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError
from clickhouse_connect.driver.summary import QuerySummary

from backfill_platform_tests.contracts.sample import MAX_THREADS, ROWS, TABLE, content
from backfill_platform_tests.fixtures_warehouse import raw, wait_until

# --- 4. Inserts


ARROW = pa.table({"a": pa.array([a for a, _ in ROWS], pa.uint64()), "s": [s for _, s in ROWS]})


def arrow_bytes(open_writer: Callable[..., Any]) -> bytes:
    """ARROW as a stream or file of Arrow's."""
    sink = io.BytesIO()
    with open_writer(sink, ARROW.schema) as writer:
        writer.write_table(ARROW)
    return sink.getvalue()


def parquet_bytes() -> bytes:
    """ARROW as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(ARROW, sink)
    return sink.getvalue()


FORMATS = {
    "ArrowStream": arrow_bytes(pa.ipc.new_stream),
    "Arrow": arrow_bytes(pa.ipc.new_file),
    "Parquet": parquet_bytes(),
    "CSV": b'1,plain\n2,"it\'s \\ a\ttab\nand a line"\n3,""\n',
    "TabSeparatedWithNames": b"a\ts\n1\tplain\n2\tit's \\\\ a\\ttab\\nand a line\n3\t\n",
    "JSONEachRow": "".join(json.dumps({"a": a, "s": s}) + "\n" for a, s in ROWS).encode(),
    "RowBinary": b"".join(a.to_bytes(8, "little") + bytes([len(s)]) + s.encode() for a, s in ROWS),
    "Values": b"(1, 'plain'), (2, 'it\\'s \\\\ a\ttab\nand a line'), (3, '')",
}


@pytest.mark.parametrize("name", FORMATS)
def test_insert_formats(client: Client, table: str, name: str) -> None:
    summary = client.raw_insert(table, column_names=["a", "s"], insert_block=FORMATS[name], fmt=name)
    assert content(client, table) == Counter(ROWS)
    assert summary.written_rows == len(ROWS)


def test_insert_native_and_arrow(client: Client, table: str) -> None:
    assert client.insert(table, ROWS, column_names=["a", "s"]).written_rows == len(ROWS)
    client.insert_arrow(table, ARROW)
    assert content(client, table) == Counter(ROWS * 2)


@pytest.mark.parametrize("name", ["CSV", "RowBinary", "Values", "Parquet"])
def test_insert_with_the_statement_in_the_address(
    warehouse_url: str, warehouse_database: str, client: Client, name: str
) -> None:
    client.command(f"CREATE TABLE t {TABLE}")
    answer = raw(warehouse_url, FORMATS[name], query=f"INSERT INTO t FORMAT {name}", database=warehouse_database)
    assert answer.status == 200, answer.body
    assert content(client, "t") == Counter(ROWS)


def test_insert_by_commands(client: Client, table: str) -> None:
    client.command(f"INSERT INTO {table} VALUES (1, 'FORMAT CSV'), (2, ';')")
    client.command(f"INSERT INTO {table} VALUES", data="(3, 'data')")
    client.command(f"INSERT INTO {table} FORMAT CSV", data="4,csv\n")
    client.command(f"INSERT INTO {table} (s, a) SELECT s, a + 10 FROM {table} WHERE a > 1")
    rows = [(1, "FORMAT CSV"), (2, ";"), (3, "data"), (4, "csv"), (12, ";"), (13, "data"), (14, "csv")]
    assert content(client, table) == Counter(rows)


def test_insert_with_settings_in_the_statement(client: Client, table: str) -> None:
    client.raw_insert(f"{table} (s, a) SETTINGS async_insert = 0", insert_block=b"x,1\n", fmt="CSV")
    assert content(client, table) == Counter([(1, "x")])


def test_empty_insert(warehouse_url: str, warehouse_database: str, client: Client, table: str) -> None:
    assert raw(warehouse_url, f"INSERT INTO {warehouse_database}.{table} FORMAT CSV".encode()).status == 200
    assert content(client, table) == Counter()


def test_insert_refused_writes_nothing_and_poisons_nothing(client: Client, table: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        client.raw_insert(table, insert_block=b"1,x\nnot a number,y\n", fmt="CSV")
    assert caught.value.code == 27
    with pytest.raises(DatabaseError) as caught:
        client.raw_insert("no_such_table", insert_block=b"1,x\n", fmt="CSV")
    assert caught.value.code == 60
    with pytest.raises(DatabaseError):
        client.raw_insert(table, insert_block=b"neither Arrow nor anything", fmt="ArrowStream")
    assert content(client, table) == Counter()
    client.insert(table, ROWS)
    assert content(client, table) == Counter(ROWS)


# --- 5. Compression


@pytest.mark.parametrize("method", ["lz4", "zstd", "gzip", False])
def test_compression_of_the_client(connect: Callable[..., Client], method: str | bool) -> None:
    client = connect(compress=method)
    client.command("CREATE TABLE t (a UInt32, s String) ENGINE = MergeTree ORDER BY a")
    numbers = list(range(30_000))  # several blocks of the client's, each a frame of its own
    client.insert("t", [numbers, [f"row {number} " * 20 for number in numbers]], column_names=["a", "s"], column_oriented=True)
    result = client.query("SELECT a, s FROM t ORDER BY a")
    assert list(result.result_columns[0]) == numbers
    assert result.result_rows[-1] == (29_999, "row 29999 " * 20)


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "lz4": lz4.frame.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip": gzip.compress,
}


@pytest.mark.parametrize("method", COMPRESSORS)
def test_bodies_of_several_frames(client: Client, table: str, method: str) -> None:
    """A frame per chunk is what the client sends, and what one call of lz4's `decompress` loses without a word."""
    frames = [COMPRESSORS[method](f"{number},frame\n".encode()) for number in range(5)]
    client.raw_insert(table, insert_block=b"".join(frames), fmt="CSV", compression=method)
    assert content(client, table) == Counter((number, "frame") for number in range(5))


@pytest.mark.parametrize("method", COMPRESSORS)
def test_bodies_that_are_cut_short_are_refused(client: Client, table: str, method: str) -> None:
    frames = [COMPRESSORS[method](f"{number},frame\n".encode()) for number in range(2)]
    with pytest.raises(DatabaseError):
        client.raw_insert(table, insert_block=b"".join(frames)[:-6], fmt="CSV", compression=method)
    assert content(client, table) == Counter()


def test_unknown_compression_is_refused(warehouse_url: str) -> None:
    answer = raw(warehouse_url, b"SELECT 1", headers={"Content-Encoding": "rot13"})
    assert answer.status >= 400
    assert b"rot13" in answer.body


# --- 6. Answers


def decompressed(body: bytes, encoding: str | None) -> bytes:
    """The body of an answer."""
    if encoding is None:
        return body
    decompress: Callable[[bytes], bytes] = {
        "lz4": lz4.frame.decompress,
        "gzip": gzip.decompress,
        "zstd": zstandard.ZstdDecompressor().decompressobj().decompress,
    }[encoding]
    return decompress(body)


@pytest.mark.parametrize("method", ["lz4", "zstd", "gzip"])
def test_answers_are_compressed_only_on_request(warehouse_url: str, method: str) -> None:
    sql = b"SELECT number FROM numbers(10000)"
    expected = "".join(f"{number}\n" for number in range(10_000)).encode()
    for plain in (
        raw(warehouse_url, sql, headers={"Accept-Encoding": method}, enable_http_compression="0"),
        raw(warehouse_url, sql, enable_http_compression="1"),
    ):
        assert (plain.headers["Content-Encoding"], plain.body) == (None, expected)
    packed = raw(warehouse_url, sql, headers={"Accept-Encoding": method}, enable_http_compression="1")
    assert packed.headers["Content-Encoding"] == method
    assert len(packed.body) < len(expected)
    assert decompressed(packed.body, method) == expected


def test_headers_of_a_result(warehouse_url: str) -> None:
    headers = raw(warehouse_url, b"SELECT number FROM numbers(7) FORMAT JSONEachRow", query_id="mine").headers
    assert headers["X-ClickHouse-Query-Id"] == "mine"
    assert headers["X-ClickHouse-Timezone"] == "UTC"
    assert headers["X-ClickHouse-Format"] == "JSONEachRow"
    summary = json.loads(headers["X-ClickHouse-Summary"])
    assert summary["read_rows"] == "7"
    assert {type(value) for value in summary.values()} == {str}


def test_empty_results_are_not_taken_for_statements_without_one(client: Client, table: str) -> None:
    assert client.command(f"SELECT a FROM {table}") == ""
    assert client.command("SHOW TABLES LIKE 'nothing'") == ""
    assert client.query(f"SELECT a, s FROM {table}").result_rows == []
    assert client.query(f"SELECT a, s FROM {table} LIMIT 0").column_names == ("a", "s")
    assert client.query_arrow(f"SELECT a, s FROM {table}").column_names == ["a", "s"]
    for sql in (
        "SYSTEM FLUSH LOGS",
        f"OPTIMIZE TABLE {table} FINAL",
        f"ALTER TABLE {table} ADD COLUMN b UInt8",
        f"TRUNCATE TABLE {table}",
    ):
        assert isinstance(client.command(sql), QuerySummary), sql


def test_statements_without_a_result(client: Client, warehouse_database: str, table: str) -> None:
    client.insert(table, ROWS)
    client.command(f"CREATE TABLE copy AS {table}")
    assert isinstance(client.command(f"ALTER TABLE copy ATTACH PARTITION ALL FROM {table}"), QuerySummary)
    assert content(client, "copy") == Counter(ROWS)
    client.command("ALTER TABLE copy DELETE WHERE a = 1", settings={"mutations_sync": 1})
    client.command(f"EXCHANGE TABLES copy AND {table}")
    assert content(client, table) == Counter(ROWS[1:])
    client.command("DROP TABLE copy SYNC")
    assert client.command("EXISTS TABLE copy") == 0
    client.command(f"CREATE DATABASE {warehouse_database}_two")
    client.command(f"DROP DATABASE {warehouse_database}_two SYNC")


def test_values_of_many_types(reader: Client) -> None:
    row = reader.query(
        "SELECT NULL AS nothing, toNullable(5) AS five, toDateTime64('2024-02-29 23:59:59.123', 3, 'UTC') AS moment,"
        " toDate('2024-02-29') AS day, toDecimal64('-1.2345', 4) AS price, ['a', 'b'] AS list, map('k', 1) AS pairs,"
        " toUUID('00000000-0000-0000-0000-000000000001') AS id, CAST('b' AS Enum8('a' = 1, 'b' = 2)) AS choice"
    ).first_item
    assert row == {
        "nothing": None,
        "five": 5,
        "moment": datetime.fromisoformat("2024-02-29 23:59:59.123"),
        "day": date(2024, 2, 29),
        "price": Decimal("-1.2345"),
        "list": ["a", "b"],
        "pairs": {"k": 1},
        "id": uuid.UUID(int=1),
        "choice": "b",
    }


def test_moments_are_utc(client: Client) -> None:
    client.command("CREATE TABLE t (at DateTime, exact DateTime64(6, 'UTC')) ENGINE = MergeTree ORDER BY at")
    moment = datetime(2024, 7, 1, 12, 30, 0, 123456, UTC)
    client.insert("t", [[moment, moment]], column_names=["at", "exact"])
    assert client.command("SELECT toUnixTimestamp(at) FROM t") == int(moment.timestamp())
    assert client.query("SELECT exact FROM t", query_tz="UTC").result_rows[0][0].replace(tzinfo=UTC) == moment
    assert client.command("SELECT toString(toDateTime(0))") == "1970-01-01 00:00:00"


def test_a_million_rows(reader: Client) -> None:
    table = reader.query_arrow("SELECT number AS n, toString(number) AS s FROM numbers(1000000)")
    assert (table.num_rows, pa.compute.sum(table["n"]).as_py()) == (1_000_000, 499_999_500_000)
    assert len(reader.query("SELECT number FROM numbers(1000000)").result_columns[0]) == 1_000_000


@pytest.mark.parametrize(
    ("sql", "code", "name"),
    [
        ("SELECT * FROM no_such_table", 60, "UNKNOWN_TABLE"),
        ("SELEC 1", 62, "SYNTAX_ERROR"),
        ("SELECT throwIf(number = 500000, 'it''s late') FROM numbers(1000000)", 395, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
        ("CREATE DATABASE default", 82, "DATABASE_ALREADY_EXISTS"),
        ("KILL", 62, "SYNTAX_ERROR"),
    ],
)
def test_errors_are_those_of_clickhouse(reader: Client, sql: str, code: int, name: str) -> None:
    for ask in (reader.command, reader.query):
        with pytest.raises(DatabaseError) as caught:
            ask(sql)
        assert (caught.value.code, caught.value.name) == (code, name)
        assert f"Code: {code}. DB::Exception: " in str(caught.value)
        assert str(caught.value).count("(version ") == 1
    assert reader.command("SELECT 1") == 1


# --- Several at once


def test_threads_do_not_disturb_each_other(connect: Callable[..., Client], table: str) -> None:
    def work(number: int) -> Counter[object]:
        client = connect(autogenerate_session_id=False, settings={"max_threads": number + 1})
        seen: Counter[object] = Counter()
        for turn in range(10):
            client.insert(table, [(number * 100 + turn, "x")], column_names=["a", "s"])
            seen[client.command(MAX_THREADS)] += 1
            with pytest.raises(DatabaseError):
                client.command("SELECT nothing", settings={"max_threads": 99})
        return seen

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [Counter({number + 1: 10}) for number in range(8)]
    expected = Counter((number * 100 + turn, "x") for number in range(8) for turn in range(10))
    assert content(connect(), table) == expected


INSERT_FROM_A_PROCESS = """
import sys
from backfill_platform_tests.fixtures_warehouse import raw
for number in range(int(sys.argv[3]), int(sys.argv[3]) + 20_000, 2_000):
    rows = "".join(f"{a},x\\n" for a in range(number, number + 2_000))
    assert raw(sys.argv[1], rows.encode(), query=sys.argv[2]).status == 200
"""


def test_processes_share_the_warehouse(warehouse_url: str, warehouse_database: str, client: Client, table: str) -> None:
    sql = f"INSERT INTO {warehouse_database}.{table} FORMAT CSV"
    command = [sys.executable, "-c", INSERT_FROM_A_PROCESS, warehouse_url, sql]
    processes = [subprocess.Popen([*command, str(number * 20_000)]) for number in range(3)]
    assert [process.wait(60) for process in processes] == [0] * 3
    assert client.query(f"SELECT count(), uniqExact(a) FROM {table}").result_rows == [(60_000, 60_000)]


def test_statements_run_side_by_side(warehouse_url: str) -> None:
    with ThreadPoolExecutor() as pool:
        started = time.monotonic()
        running = [pool.submit(raw, warehouse_url, b"SELECT sleep(0.5)") for _ in range(4)]
        time.sleep(0.1)
        assert raw(warehouse_url, method="GET", path="/ping").body == b"Ok.\n"
        assert raw(warehouse_url, b"SELECT 1").body == b"1\n"
        assert not any(answer.done() for answer in running)
        assert [answer.result().body for answer in running] == [b"0\n"] * 4
        assert time.monotonic() - started < 1.8  # one after the other they take two seconds


def test_drop_sync_waits_for_statements_that_read_the_table(connect: Callable[..., Client], table: str) -> None:
    """The fence of a repair: once the staging table is gone, no statement of an old attempt can write any more."""
    client, zombie = connect(), connect()
    client.command(f"CREATE TABLE staging AS {table}")
    client.insert("staging", [(number, "x") for number in range(20)])
    sql = f"INSERT INTO {table} SELECT a, s FROM staging WHERE sleepEachRow(0.05) = 0"
    running = threading.Thread(target=zombie.command, args=(sql,), kwargs={"settings": {"max_block_size": 1, "max_threads": 1}})
    running.start()
    try:
        wait_until(lambda: client.command("SELECT count() FROM system.processes WHERE query LIKE '%sleepEachRow%'") == 2)
        assert content(client, table).total() < 20
        client.command("DROP TABLE staging SYNC")
        assert content(client, table).total() == 20
    finally:
        running.join()


def test_kill_query_by_its_text(connect: Callable[..., Client]) -> None:
    client, victim = connect(), connect()
    mark = uuid.uuid4().hex
    with ThreadPoolExecutor() as pool:
        sql = f"SELECT sleepEachRow(0.1), '{mark}' FROM numbers(100)"
        running = pool.submit(victim.command, sql, settings={"max_block_size": 1, "max_threads": 1})
        condition = f"query LIKE 'SELECT sleep%{mark}%'"
        wait_until(lambda: client.command(f"SELECT count() FROM system.processes WHERE {condition}") == 1)
        client.command(f"KILL QUERY WHERE {condition} SYNC")
        with pytest.raises(DatabaseError) as caught:
            running.result(timeout=5)
    assert caught.value.code == 394


def test_rows_that_cannot_be_written_are_an_error_and_not_lost_in_silence(warehouse_url: str, warehouse_database: str) -> None:
    with clickhouse_connect.get_client(dsn=warehouse_url, autogenerate_session_id=False) as client:
        client.command(
            f"CREATE TABLE {warehouse_database}.t (n Int64, CONSTRAINT positive CHECK n > 0) "
            "ENGINE = MergeTree PARTITION BY n ORDER BY n"
        )
        with pytest.raises(DatabaseError, match="positive"):
            client.insert("t", [[1], [-1]], ["n"], database=warehouse_database)
        with pytest.raises(DatabaseError, match="TOO_MANY_PARTS"):
            client.insert("t", [[n] for n in range(1, 121)], ["n"], database=warehouse_database)
        allowed = {"max_partitions_per_insert_block": 0}
        client.insert("t", [[n] for n in range(1, 121)], ["n"], database=warehouse_database, settings=allowed)
        csv = b"1000\n1001\n"
        client.raw_insert(f"{warehouse_database}.t", ["n"], csv, fmt="CSV", settings=allowed)
        text = f"INSERT INTO {warehouse_database}.t (n) SETTINGS max_partitions_per_insert_block = 0 FORMAT CSV\n2000\n"
        client.command(text)
        assert client.query(f"SELECT count(), max(n) FROM {warehouse_database}.t").result_rows == [(123, 2000)]
