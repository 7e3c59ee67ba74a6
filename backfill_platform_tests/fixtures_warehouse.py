"""A warehouse with ClickHouse's HTTP interface, and plain requests to it.

With CLICKHOUSE_URL set (`http://user:password@host:8123`) it is that server; else one embedded server, started at the first
use and shared by the whole test session.
"""

import base64
import http.client
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from email.message import Message
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.devstack.embedded_clickhouse import server as embedded


@pytest.fixture(scope="session")
def warehouse_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a warehouse."""
    url = os.environ.get("CLICKHOUSE_URL")
    if url:
        yield url
        return
    with embedded.start(tmp_path_factory.mktemp("warehouse")) as server:
        yield server.url


@pytest.fixture(scope="session")
def warehouse(warehouse_url: str) -> Iterator[Warehouse]:
    """A connection to the warehouse of the test session."""
    with closing(Warehouse(warehouse_url)) as connection:
        yield connection


@pytest.fixture
def warehouse_database(warehouse_url: str) -> Iterator[str]:
    """The name of a fresh database, dropped after the test."""
    name = f"test_{uuid.uuid4().hex}"
    for sql in (f"CREATE DATABASE {name}", f"DROP DATABASE {name} SYNC"):
        answer = raw(warehouse_url, sql.encode())
        assert answer.status == 200, answer.body
        if sql.startswith("CREATE"):
            yield name


class Answer(NamedTuple):
    """An HTTP answer; the case of header names does not matter."""

    status: int
    headers: Message
    body: bytes


def raw(
    url: str, body: bytes = b"", *, method: str = "POST", path: str = "/", headers: dict[str, str] | None = None, **params: str
) -> Answer:
    """One plain HTTP request, on a connection of its own."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    sent = dict(headers or {})
    if address.username:
        sent["Authorization"] = "Basic " + base64.b64encode(f"{address.username}:{address.password or ''}".encode()).decode()
    try:
        connection.request(method, f"{path}?{urlencode(params)}" if params else path, body or None, sent)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def wait_for_port(process: "subprocess.Popen[bytes]", port: int, seconds: float) -> None:
    """Until the process listens on a loopback port. Fails at once when it ends."""

    def listens() -> bool:
        assert process.poll() is None, f"process {process.pid} has ended"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    wait_until(listens, seconds)


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that another thread or process brings about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
