"""What others may try with the embedded warehouse: pages of a browser, other users of the machine, bodies that are bombs."""

import base64
import gzip
import http.client
import os
import socket
import stat
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import lz4.frame
import pytest
import zstandard

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.embedded_endpoint import running_url
from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform.devstack.embedded_clickhouse.body import MOST_BYTES, decompressed
from backfill_platform.devstack.embedded_clickhouse.http_server import MOST_READERS
from backfill_platform.devstack.embedded_clickhouse.statement import Statement, StatementError
from backfill_platform.errors import WarehouseError, WarehouseUnavailable
from backfill_platform_tests.fixtures_warehouse import Answer, raw, wait_until

SECRET_WRONG = "516"
READ_ONLY = "164"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attacked") / "warehouse"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[embedded.EmbeddedWarehouse]:
    """A server that was started with the mask that most systems have."""
    before = os.umask(0o022)
    try:
        with embedded.start(folder) as warehouse:
            yield warehouse
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def port(server: embedded.EmbeddedWarehouse) -> int:
    return urlsplit(server.url).port or 0


@pytest.fixture(scope="module")
def bare(port: int) -> str:
    """The address as `endpoint.json` has it: without the secret."""
    return f"http://127.0.0.1:{port}"


def code(answer: Answer) -> str | None:
    return answer.headers["X-ClickHouse-Exception-Code"]


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


# --- The secret


def test_a_statement_without_the_secret_is_refused(bare: str) -> None:
    wrong = [{}, basic("default", ""), basic("default", "wrong"), {"X-ClickHouse-Key": "x"}, {"Authorization": "Basic \xff"}]
    for headers in wrong:
        for method in ("GET", "POST"):
            answer = raw(bare, method=method, headers=headers, query="SELECT 1")
            assert (answer.status, code(answer)) == (403, SECRET_WRONG), headers
    answer = raw(bare, b"SELECT 1", user="default", password="wrong")
    assert (answer.status, code(answer)) == (403, SECRET_WRONG)
    assert b"DB::Exception: default: Authentication failed" in answer.body


def test_the_secret_is_sent_by_the_client_itself(server: embedded.EmbeddedWarehouse, bare: str, folder: Path) -> None:
    secret = (folder / "secret").read_text()
    assert len(secret) > 30
    with closing(Warehouse(server.url)) as warehouse:
        assert warehouse.rows("SELECT 1", doing="asking") == [(1,)]
    assert raw(bare, b"SELECT 1", headers={"X-ClickHouse-Key": secret}).body == b"1\n"
    with pytest.raises(WarehouseError, match="Authentication failed") as refused:
        Warehouse(f"http://default:wrong@127.0.0.1:{urlsplit(bare).port}")
    assert "wrong" not in str(refused.value)


def test_the_secret_is_shown_nowhere(server: embedded.EmbeddedWarehouse, folder: Path) -> None:
    secret = (folder / "secret").read_bytes()
    process = Path(f"/proc/{server.pid}")
    assert secret not in process.joinpath("cmdline").read_bytes() + process.joinpath("environ").read_bytes()
    raw(server.url, b"SELECT nothing")
    holders = {path.name for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()}
    assert holders == {"secret", "curl.conf"}


def test_only_the_owner_may_read_the_folder(server: embedded.EmbeddedWarehouse, folder: Path) -> None:
    raw(server.url, b"CREATE DATABASE mine")
    raw(server.url, b"CREATE TABLE mine.t (a UInt8) ENGINE = MergeTree ORDER BY a AS SELECT 1")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*") if not path.is_symlink()}
    assert any(path.suffix == ".bin" for path in modes), "there are rows on disk"
    assert {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077 and path.name != "server.log"} == {}


def test_a_secret_that_anybody_can_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("known to the owner before")
    (tmp_path / "secret").chmod(0o644)
    assert embedded.make_secret(tmp_path) == "known to the owner before"
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_secret_that_points_elsewhere_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "of somebody else").write_text("x")
    (tmp_path / "secret").symlink_to(tmp_path / "of somebody else")
    with pytest.raises(WarehouseUnavailable, match="cannot keep a secret"):
        embedded.start(tmp_path)


def test_who_may_not_read_the_secret_finds_no_warehouse(folder: Path, server: embedded.EmbeddedWarehouse) -> None:
    (folder / "secret").rename(folder / "elsewhere")
    try:
        assert running_url(folder) is None
    finally:
        (folder / "elsewhere").rename(folder / "secret")
    assert running_url(folder) == server.url


# --- Pages of a browser


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "a@127.0.0.1"},
        {"Host": "a@127.0.0.1:{port}"},
        {"Host": "127.0.0.1:{port}.evil.example"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_a_browser_is_refused_even_with_the_secret(
    server: embedded.EmbeddedWarehouse, port: int, headers: dict[str, str]
) -> None:
    sent = {name: value.format(port=port) for name, value in headers.items()}
    for method in ("GET", "POST"):
        assert raw(server.url, method=method, headers=sent, query="SELECT 1").status == 403


def test_two_hosts_are_refused(port: int) -> None:
    assert exchange(port, f"GET /?query=SELECT+1 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil\r\n\r\n") in (400, 403)


WRITES = (
    "INSERT INTO FUNCTION file('{folder}/written', 'CSV', 'a UInt8') SELECT 1",
    "INSERT INTO FUNCTION url('http://127.0.0.1:{port}/', 'CSV', 'a UInt8') SELECT 1",
    "SELECT 1 INTO OUTFILE '{folder}/written' APPEND FORMAT CSV",
    "SELECT 1 INTO/**/OUTFILE '{folder}/written'",
    "(SELECT 1) INTO OUTFILE '{folder}/written'",
    "WITH 1 AS a SELECT a INTO OUTFILE '{folder}/written'",
    "EXPLAIN SELECT 1 INTO OUTFILE '{folder}/written'",
    "SELECT * FROM file('/etc/passwd', 'LineAsString')",
    "SELECT file('/etc/passwd')",
    "SELECT `file`('/etc/passwd')",
    "SELECT \"file\" ('/etc/passwd')",
    "SELECT (SELECT file /* */ ('/etc/passwd'))",
    "SELECT * FROM url('http://127.0.0.1:{port}/ping', 'LineAsString')",
    "SELECT * FROM s3('http://127.0.0.1:{port}/bucket/x', 'CSV', 'a UInt8')",
    "SELECT * FROM remote('127.0.0.1:{port}', 'system', 'one')",
    "SELECT * FROM executable('x', 'CSV', 'a UInt8')",
    "CREATE TABLE default.t (a UInt8) ENGINE = MergeTree ORDER BY a",
    "CREATE TEMPORARY TABLE t (a UInt8)",
    "DROP DATABASE default",
    "SET readonly = 0",
    "KILL QUERY WHERE 1",
    "BACKUP DATABASE default TO File('{folder}/written')",
    "SYSTEM FLUSH LOGS",
    "USE system",
)


@pytest.mark.parametrize("sql", WRITES)
def test_get_writes_nothing_and_reads_no_files(server: embedded.EmbeddedWarehouse, port: int, tmp_path: Path, sql: str) -> None:
    (tmp_path / "written").write_text("as it was")
    answer = raw(server.url, method="GET", query=sql.format(folder=tmp_path, port=port))
    assert (answer.status, code(answer)) == (500, READ_ONLY), answer.body
    assert b"root:" not in answer.body
    assert (tmp_path / "written").read_text() == "as it was"


def test_get_cannot_be_told_to_write(server: embedded.EmbeddedWarehouse) -> None:
    answer = raw(server.url, method="GET", query="CREATE DATABASE x", readonly="0")
    assert code(answer) == READ_ONLY
    assert code(raw(server.url, method="GET", query="SELECT 1 SETTINGS readonly = 0")) == READ_ONLY


@pytest.mark.parametrize(
    "sql",
    ["SELECT 1", "(SELECT 1)", "WITH 1 AS file SELECT file", "SHOW DATABASES", "EXISTS TABLE system.one", "DESC system.one"],
)
def test_get_still_reads(server: embedded.EmbeddedWarehouse, sql: str) -> None:
    assert raw(server.url, method="GET", query=sql, max_threads="2").status == 200
    assert Statement.read(sql.encode(), b"").only_reads


# --- Bodies

BOMB = 1 << 30  # a gigabyte of zeros


def bomb(encoding: str) -> bytes:
    zeros = bytes(1 << 24)
    if encoding == "lz4":
        frames = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB)
        start: bytes = frames.begin()
        return start + b"".join(frames.compress(zeros) for _ in range(BOMB // len(zeros))) + bytes(frames.flush())
    zlib_packer = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    packer = zstandard.ZstdCompressor(level=19).compressobj() if encoding == "zstd" else zlib_packer
    return b"".join(packer.compress(zeros) for _ in range(BOMB // len(zeros))) + packer.flush()


def resident(pid: int, what: str = "VmHWM") -> int:
    """The most memory that a process has had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) >> 10


@pytest.mark.whole
@pytest.mark.parametrize("encoding", ["zstd", "lz4", "gzip", "deflate"])
def test_a_bomb_is_one_error_and_memory_stays_flat(tmp_path: Path, encoding: str) -> None:
    body = bomb(encoding)
    assert len(body) < 6 << 20
    with embedded.start(tmp_path) as server:
        raw(server.url, b"SELECT 1")
        before = resident(server.pid)
        for _ in range(2):
            answer = raw(server.url, body, headers={"Content-Encoding": encoding})
            assert code(answer) == "307"
            assert b"larger than 256 MiB" in answer.body
        grown = resident(server.pid) - before
        assert grown < 3 * (MOST_BYTES >> 20), f"{encoding}: {grown} MiB more"
        assert raw(server.url, b"SELECT 1").body == b"1\n"


def test_a_bomb_without_the_secret_is_not_even_read(server: embedded.EmbeddedWarehouse, bare: str) -> None:
    before = resident(server.pid)
    answer = raw(bare, bomb("zstd"), headers={"Content-Encoding": "zstd"})
    assert code(answer) == SECRET_WRONG
    assert resident(server.pid) - before < 16


def test_a_body_without_an_end_is_refused(server: embedded.EmbeddedWarehouse, port: int) -> None:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest("POST", "/")
    for name, value in {**basic("default", address.password or ""), "Transfer-Encoding": "chunked"}.items():
        connection.putheader(name, value)
    connection.endheaders()
    before = resident(server.pid)
    chunk = b"%x\r\n%b\r\n" % (1 << 22, b"-" * (1 << 22))
    for _ in range(4 * MOST_BYTES >> 22):
        connection.send(chunk)
    connection.send(b"0\r\n\r\n")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (413, "307")
    connection.close()
    assert resident(server.pid) - before < 2 * (MOST_BYTES >> 20)


@pytest.mark.parametrize("encoding", ["zstd", "lz4", "gzip", "deflate"])
def test_what_is_packed_in_several_frames_is_whole_and_what_is_cut_is_an_error(encoding: str) -> None:
    data = os.urandom(5 << 20) + bytes(9 << 20)
    pack = {
        "zstd": zstandard.ZstdCompressor().compress,
        "lz4": lz4.frame.compress,
        "gzip": gzip.compress,
        "deflate": zlib.compress,
    }[encoding]
    frames = pack(data) + pack(b"") + pack(b"more")
    assert decompressed(frames, encoding) == data + b"more"
    for cut in (frames[:-1], frames[: len(frames) // 2], frames + b"rest"):
        with pytest.raises(StatementError) as refused:
            decompressed(cut, encoding)
        assert refused.value.code == 271
    assert decompressed(b"", encoding) == b""


def exchange(port: int, request: str) -> int:
    """The status of the answer to a request that is sent as it is."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request.encode())
        return int(connection.recv(1000).split()[1])


def test_a_body_with_two_lengths_is_refused(server: embedded.EmbeddedWarehouse, port: int, folder: Path) -> None:
    (login,) = basic("default", (folder / "secret").read_text()).values()
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {login}\r\n"
    assert exchange(port, f"{head}Content-Length: 8\r\n\r\nSELECT 1") == 200
    both = "Content-Length: 8\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nSELECT 1\r\n0\r\n\r\n"
    assert exchange(port, head + both) == 400
    assert exchange(port, f"{head}Content-Length: 8\r\nContent-Length: 9\r\n\r\nSELECT 1") == 400


# --- Nobody starves


@pytest.mark.whole
def test_readers_that_sleep_delay_no_statement(server: embedded.EmbeddedWarehouse) -> None:
    with ThreadPoolExecutor(45) as pool:
        asked = [pool.submit(raw, server.url, method="GET", query="SELECT sleep(2.9)") for _ in range(45)]
        wait_until(lambda: raw(server.url, b"SELECT count() FROM system.processes").body == f"{MOST_READERS + 1}\n".encode())
        began = time.monotonic()
        for _ in range(10):
            assert raw(server.url, b"SELECT 1").body == b"1\n"
        took = time.monotonic() - began
        assert raw(server.url, method="GET", path="/ping").body == b"Ok.\n"
        assert [one.result().status for one in asked] == [200] * 45
    assert took < 2, f"ten statements took {took:.1f} s"


def test_connections_that_send_and_read_nothing_delay_no_statement(
    server: embedded.EmbeddedWarehouse, port: int, folder: Path
) -> None:
    (login,) = basic("default", (folder / "secret").read_text()).values()
    head = f"Host: 127.0.0.1:{port}\r\nAuthorization: {login}\r\n"
    large = urlencode({"query": "SELECT repeat('x', 50000000)"})
    slow = [f"POST / HTTP/1.1\r\n{head}Content-Length: 9\r\n\r\nSEL"] * 60 + [f"GET /?{large} HTTP/1.1\r\n{head}\r\n"] * 5
    connections = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in slow]
    try:
        for connection, request in zip(connections, slow, strict=True):
            connection.sendall(request.encode())
        began = time.monotonic()
        for _ in range(10):
            assert raw(server.url, b"SELECT 1").body == b"1\n"
        assert time.monotonic() - began < 5
    finally:
        for connection in connections:
            connection.close()


def test_statements_run_side_by_side(server: embedded.EmbeddedWarehouse) -> None:
    """More of them than the threads that web applications have by default."""
    began = time.monotonic()
    with ThreadPoolExecutor(60) as pool:
        assert all(answer.status == 200 for answer in pool.map(lambda _: raw(server.url, b"SELECT sleep(2)"), range(60)))
    assert time.monotonic() - began < 3.9
