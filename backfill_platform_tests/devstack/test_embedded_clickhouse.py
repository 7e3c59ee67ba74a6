"""The embedded warehouse as a process: starting, finding, sharing, stopping and killing it, and what is its own."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import clickhouse_connect
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from backfill_platform.adapters.clickhouse.embedded_endpoint import is_locked, read_json, running_url
from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform.devstack.embedded_clickhouse.engine import MAX_SESSIONS
from backfill_platform.devstack.embedded_clickhouse.statement import Statement
from backfill_platform.errors import WarehouseLocked, WarehouseUnavailable
from backfill_platform_tests.fixtures_warehouse import raw, wait_until

COUNT_RUNNING = b"SELECT count() FROM system.processes"
COMMAND = [sys.executable, "-m", embedded.MODULE]


def connect(url: str, **options: Any) -> Client:
    """A client that keeps nothing on the server."""
    return clickhouse_connect.get_client(dsn=url, autogenerate_session_id=False, **options)


def plain(url: str) -> str:
    """The address without the secret."""
    return f"http://{url.rpartition('@')[2]}"


def is_alive(pid: int) -> bool:
    """Whether a process runs that need not be our child; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedWarehouse]:
    """A server for the tests that do not stop it, started where the clock is not UTC's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        warehouse = embedded.start(tmp_path_factory.mktemp("embedded"))
    with warehouse:
        yield warehouse


@pytest.fixture
def client(server: embedded.EmbeddedWarehouse) -> Iterator[Client]:
    """A client of that server."""
    with connect(server.url) as client:
        yield client


# --- Starting and stopping


def test_importing_costs_no_engine() -> None:
    code = f"import sys, {embedded.MODULE}; sys.exit(bool({{'chdb', 'starlette', 'uvicorn'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_start_find_and_stop(tmp_path: Path) -> None:
    data_dir = tmp_path / "made" / "on demand"
    assert running_url(data_dir) is None
    with embedded.start(data_dir) as warehouse:
        assert running_url(data_dir) == warehouse.url
        assert plain(warehouse.url).startswith("http://127.0.0.1:")
        with connect(warehouse.url) as client:
            endpoint = json.loads((data_dir / "endpoint.json").read_text())
            assert endpoint == {"url": plain(warehouse.url), "pid": warehouse.pid, "version": client.server_version}
            assert os.getsid(warehouse.pid) == warehouse.pid
            warehouse.stop()  # with the client's connection still open
    assert not is_alive(warehouse.pid)
    assert sorted(path.name for path in data_dir.iterdir()) == ["data", "lock", "rows", "secret", "server.log"]
    assert running_url(data_dir) is None
    log = (data_dir / "server.log").read_text()
    assert log.endswith("stopped\n")
    assert "Traceback" not in log


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_data_survives(tmp_path: Path, end: signal.Signals) -> None:
    sql = "CREATE TABLE d.t (a UInt64) ENGINE = MergeTree ORDER BY a"
    with embedded.start(tmp_path) as warehouse:
        with connect(warehouse.url) as client:
            client.command("CREATE DATABASE d")
            client.command(sql)
            for number in range(3):
                client.insert("d.t", [[number]], column_names=["a"], column_type_names=["UInt64"])
        os.kill(warehouse.pid, end)
        wait_until(lambda: not is_alive(warehouse.pid))
    assert (tmp_path / "endpoint.json").exists() == (end == signal.SIGKILL)
    assert running_url(tmp_path) is None
    with embedded.start(tmp_path) as warehouse, connect(warehouse.url) as client:
        assert client.query("SELECT a FROM d.t ORDER BY a").result_rows == [(0,), (1,), (2,)]


def test_a_folder_has_one_server(server: embedded.EmbeddedWarehouse) -> None:
    data_dir = Path(os.readlink(f"/proc/{server.pid}/cwd"))
    second = subprocess.run([*COMMAND, "--data-dir", str(data_dir)], capture_output=True, text=True, timeout=10, check=False)
    assert second.returncode == 3
    assert second.stdout == ""
    assert second.stderr.count("\n") == 1
    for part in (str(data_dir), str(server.pid), plain(server.url), f"kill {server.pid}"):
        assert part in second.stderr
    with pytest.raises(WarehouseLocked, match=f"process id {server.pid} at {plain(server.url)}"):
        embedded.start(data_dir)
    assert running_url(data_dir) == server.url


def test_an_address_without_an_owner_of_the_folder_is_not_believed(server: embedded.EmbeddedWarehouse, tmp_path: Path) -> None:
    """After kill -9 the address stays behind, and its port may by now belong to the server of another folder."""
    (tmp_path / "lock").touch()
    (tmp_path / "endpoint.json").write_text(json.dumps({"url": plain(server.url), "pid": server.pid}))
    (tmp_path / "secret").write_text("x")
    assert running_url(tmp_path) is None


def test_a_server_that_cannot_open_its_data_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the engine needs a folder")
    with pytest.raises(WarehouseUnavailable, match=r"exit code 1(.|\n)*cannot open"):
        embedded.start(tmp_path)


def test_a_port_in_use_is_named(server: embedded.EmbeddedWarehouse, tmp_path: Path) -> None:
    port = str(urlsplit(server.url).port)
    command = [*COMMAND, "--data-dir", str(tmp_path), "--port", port]
    second = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    assert second.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in second.stderr


def test_a_server_that_is_too_slow_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(WarehouseUnavailable, match=r"did not answer within 0\.2 s"):
        embedded.start(tmp_path, timeout_seconds=0.2)
    assert not is_locked(tmp_path)


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A server on `tmp_path` that inherits SIGTERM and SIGINT as ignored, as from `nohup`, a trap, or a shell's `&`."""
    script = f"trap '' INT TERM; exec {shlex.join([*COMMAND, '--data-dir', str(tmp_path)])}"
    with subprocess.Popen(["sh", "-c", script], stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_well(deaf: "subprocess.Popen[bytes]", tmp_path: Path, number: signal.Signals) -> None:
    wait_until((tmp_path / "endpoint.json").exists)
    url = running_url(tmp_path)
    assert url is not None
    with ThreadPoolExecutor() as pool:
        running = pool.submit(raw, url, b"SELECT sleep(0.7)")
        wait_until(lambda: raw(url, COUNT_RUNNING).body == b"2\n")
        for _ in range(2):  # the second of an impatient user changes nothing
            deaf.send_signal(number)
            time.sleep(0.2)
        assert running.result().body == b"0\n"  # what runs is finished first
    assert deaf.wait(5) == 0
    assert running_url(tmp_path) is None
    assert not (tmp_path / "endpoint.json").exists()


def test_a_signal_before_it_answers_counts_too(deaf: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    wait_until(lambda: "pid" in read_json(tmp_path / "lock"))
    assert not (tmp_path / "endpoint.json").exists()
    deaf.terminate()
    assert deaf.wait(10) == 0


@pytest.mark.slow
def test_statements_that_take_too_long_are_cancelled_at_the_end(tmp_path: Path) -> None:
    with embedded.start(tmp_path) as warehouse, connect(warehouse.url) as client, ThreadPoolExecutor() as pool:
        settings = {"max_block_size": 1, "max_threads": 1}
        running = pool.submit(client.command, "SELECT sleepEachRow(1) FROM numbers(100)", settings=settings)
        wait_until(lambda: raw(warehouse.url, COUNT_RUNNING).body == b"2\n")
        warehouse.stop()
        with pytest.raises(DatabaseError) as caught:
            running.result()
        assert caught.value.code == 394
    assert (tmp_path / "server.log").read_text().endswith("stopped\n")


PARENT = """
import sys
from pathlib import Path
from backfill_platform.devstack.embedded_clickhouse import server as embedded
warehouse = embedded.start(Path(sys.argv[1]))
sys.stdout.write(f"{warehouse.pid}\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def test_it_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    wait_until(lambda: not is_alive(pid), seconds=5)
    assert not (tmp_path / "endpoint.json").exists()
    assert (tmp_path / "server.log").read_text().endswith("stopped\n")


# --- Sharing


def test_connect_or_start_ends_only_what_it_started(tmp_path: Path) -> None:
    with embedded.connect_or_start(tmp_path) as url:
        assert running_url(tmp_path) == url
        with embedded.connect_or_start(tmp_path) as again:
            assert again == url
        assert running_url(tmp_path) == url
    assert running_url(tmp_path) is None


SHARER = """
import sys
from pathlib import Path
from backfill_platform.devstack.embedded_clickhouse import server as embedded
with embedded.connect_or_start(Path(sys.argv[1])) as url:
    sys.stdout.write(f"{url}\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def test_processes_that_start_together_share_one_server(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHARER, str(tmp_path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        urls = {process.stdout.readline() for process in processes if process.stdout}
        assert urls == {f"{running_url(tmp_path)}\n"}
    finally:
        for process in processes:
            process.communicate()
    assert [process.returncode for process in processes] == [0] * 4
    assert (tmp_path / "server.log").read_text().count("answering at") == 1
    assert running_url(tmp_path) is None


def test_connect_or_start_does_not_wait_for_ever(tmp_path: Path) -> None:
    lock = embedded.take_lock(tmp_path)
    assert lock is not None
    owner = f"process id {os.getpid()}, which does not answer yet"
    with lock, pytest.raises(WarehouseLocked, match=owner), embedded.connect_or_start(tmp_path, timeout_seconds=0.2):
        pytest.fail("there is no server")


# --- What is its own


def test_the_clock_is_utc_wherever_it_was_started(client: Client) -> None:
    assert client.command("SELECT timezone(), toString(toDateTime(0))") == ["UTC", "1970-01-01 00:00:00"]


def test_settings_are_those_of_a_server(server: embedded.EmbeddedWarehouse) -> None:
    sql = b"SELECT name, value FROM system.settings WHERE changed AND value != default AND name != 'database'"
    assert raw(server.url, sql).body == b""
    assert raw(server.url, b"1 + 1").headers["X-ClickHouse-Exception-Code"] == "62"


def test_file_reads_lists_of_absolute_paths(client: Client, tmp_path: Path) -> None:
    for name, numbers in {"a": [1, 2], "b": [10], "c": [100]}.items():
        pq.write_table(pa.table({"n": numbers}), tmp_path / f"{name}.parquet")
    for listed, total in {"{a,c}.parquet": 103, "*.parquet": 113, "b.parquet": 10}.items():
        assert (
            client.command("SELECT sum(n) FROM file({path:String}, Parquet)", parameters={"path": f"{tmp_path}/{listed}"})
            == total
        )
    client.command("CREATE DATABASE IF NOT EXISTS files")
    client.command("CREATE TABLE files.staging (n UInt64) ENGINE = MergeTree ORDER BY n")
    client.command(f"INSERT INTO files.staging SELECT n FROM file('{tmp_path}/{{a,b,c}}.parquet', Parquet)")
    assert client.command("SELECT sum(n) FROM files.staging") == 113


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}])
def test_web_pages_are_refused(server: embedded.EmbeddedWarehouse, headers: dict[str, str]) -> None:
    assert raw(server.url, b"SELECT 1", headers=headers).status == 403


def test_sessions_are_bounded_and_the_oldest_goes(server: embedded.EmbeddedWarehouse) -> None:
    names = [f"bounded {number}" for number in range(MAX_SESSIONS + 5)]
    for name in names:
        raw(server.url, b"SET max_threads = 7", session_id=name)
    kept = [raw(server.url, b"SELECT getSetting('max_threads')", session_id=name).body == b"7\n" for name in names]
    assert kept[-MAX_SESSIONS:] == [True] * MAX_SESSIONS
    assert not any(kept[: -MAX_SESSIONS - 1])


def test_a_session_that_cannot_be_restored_is_dropped(server: embedded.EmbeddedWarehouse) -> None:
    """`compatibility` cannot be taken back: no session is better than one with another request's settings."""
    client = connect(server.url, session_id="spoiled")

    def changed(**options: Any) -> int:
        sql = "SELECT count() FROM system.settings WHERE changed"
        return int(client.query(sql, **options).result_rows[0][0])

    client.command("SET max_threads = 7")
    before = changed()
    assert changed(settings={"compatibility": "22.1"}) > before + 50
    assert changed() <= before
    assert client.command("SELECT getSetting('max_threads')") != 7


def test_sessions_expire(server: embedded.EmbeddedWarehouse) -> None:
    client = connect(server.url, session_id="short", settings={"session_timeout": 1})
    client.command("CREATE TEMPORARY TABLE scratch (a UInt8)")
    assert client.command("SELECT count() FROM scratch") == 0
    time.sleep(1.1)
    with pytest.raises(DatabaseError) as caught:
        client.command("SELECT count() FROM scratch")
    assert caught.value.code == 60


# --- Reading a statement

INSERTS = {
    b"INSERT INTO t FORMAT CSV\n1,2\n": (b"INSERT INTO t ", "CSV", b"1,2\n"),
    b"insert into t format CSV 1,2": (b"insert into t ", "CSV", b"1,2"),
    b"INSERT INTO t (format, b) FORMAT RowBinary\n \n\x00": (b"INSERT INTO t (format, b) ", "RowBinary", b" \n\x00"),
    b"-- FORMAT CSV\nINSERT INTO `FORMAT CSV` FORMAT Native\r\n'": (
        b"-- FORMAT CSV\nINSERT INTO `FORMAT CSV` ",
        "Native",
        b"'",
    ),
    b"INSERT INTO t SETTINGS a = 1 FORMAT Native\n;": (b"INSERT INTO t SETTINGS a = 1 ", "Native", b";"),
    b"INSERT INTO FUNCTION file('x', 'CSV') FORMAT CSV\n": (b"INSERT INTO FUNCTION file('x', 'CSV') ", "CSV", b""),
    b"INSERT INTO t VALUES (1, 'FORMAT CSV'); x": None,
    b"INSERT INTO t SELECT a FROM u FORMAT CSV": None,
    b"INSERT INTO t SELECT * FROM format(CSV, '1')": None,
}


@pytest.mark.parametrize("text", INSERTS)
def test_where_the_rows_of_an_insert_begin(text: bytes) -> None:
    statement = Statement.read(b"", text)
    expected = INSERTS[text] or (text, None, b"")
    assert (statement.sql + statement.insert_settings, statement.insert_format, statement.data) == expected
    assert statement.format is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("SELECT 1 FORMAT JSON", "JSON"),
        ("SELECT 1 FORMAT JSON;", "JSON"),
        ("SELECT 1 FORMAT JSON SETTINGS a = 'FORMAT CSV'", "JSON"),
        ("(SELECT 1) FORMAT /* here */ JSON -- FORMAT CSV", "JSON"),
        ('SELECT 1 FORMAT "JSON"', "JSON"),
        ("SELECT 1 AS format SETTINGS a = 1", None),
        ("SELECT format, a FROM t", None),
        ("SELECT 'it''s FORMAT CSV'", None),
        ("SELECT 'a\\' FORMAT CSV'", None),
        ("SELECT formatReadableSize(1)", None),
    ],
)
def test_which_format_a_statement_asks_for(text: str, name: str | None) -> None:
    assert Statement.read(b"", text.encode()).format == name


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("SET a = 1", True),
        (" /* x */ use d", True),
        ("CREATE TEMPORARY TABLE t (a UInt8)", True),
        ("CREATE OR REPLACE TEMPORARY TABLE t (a UInt8)", True),
        ("CREATE TABLE temporary (a UInt8)", False),
        ("SELECT 1 SETTINGS a = 1", False),
        ("", False),
    ],
)
def test_which_statements_need_a_session(text: str, changes: bool) -> None:
    assert Statement.read(b"", text.encode()).changes_session is changes


def test_a_long_address(client: Client) -> None:
    """Commands carry their parameters in the address; httptools would cut it at 64 KiB."""
    assert client.command("SELECT length({text:String})", parameters={"text": "x" * 500_000}) == 500_000
    assert len(urlencode({"text": "x" * 500_000})) > 1 << 16
