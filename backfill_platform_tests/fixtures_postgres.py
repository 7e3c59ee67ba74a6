"""A real PostgreSQL server of its own on a free loopback port, in a temporary folder, stopped at the end.

Its programs come with scripts/need-postgres; without them the tests are skipped. The server runs as an unprivileged user:
PostgreSQL refuses root.
"""

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as db

from backfill_platform_tests.fixtures_kafka import free_ports

START_SECONDS = 60
_USER = "postgres"  # what Debian's package makes
_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
max_connections = 50
fsync = {fsync}
"""


def programs() -> Path | None:
    """The folder of PostgreSQL's programs, the newest version first; None where there is none."""
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


@contextmanager
def running_postgres(*, durable: bool) -> Iterator[str]:
    """A server that takes connections; yields its URL up to the name of the database. `durable` ones wait for the disk."""
    folder, bin_folder = Path(tempfile.mkdtemp(prefix="pg-")), programs()
    assert bin_folder is not None
    password, (port,) = secrets.token_hex(8), free_ports(1)
    (folder / "password").write_text(password)
    as_root = os.geteuid() == 0
    if as_root:
        user = pwd.getpwnam(_USER)
        for path in (folder, folder / "password"):
            os.chown(path, user.pw_uid, user.pw_gid)
    who: dict[str, Any] = {"user": _USER, "group": _USER, "extra_groups": []} if as_root else {}

    def call(program: str, *arguments: str) -> None:
        command = [str(bin_folder / program), *arguments]
        with (folder / "programs.log").open("a") as log:  # a pipe would stay open in the server
            done = subprocess.run(command, stdout=log, stderr=log, cwd=folder, timeout=START_SECONDS, check=False, **who)
        assert done.returncode == 0, (folder / "programs.log").read_text()

    data = folder / "data"
    try:
        call(
            "initdb",
            "-D",
            str(data),
            "-U",
            "dagster",
            "-A",
            "scram-sha-256",
            "--pwfile",
            str(folder / "password"),
            "-E",
            "UTF8",
        )
        with (data / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS.format(port=port, folder=folder, fsync="on" if durable else "off"))
        call("pg_ctl", "-D", str(data), "-w", "-l", str(folder / "server.log"), "start")
        try:
            yield f"postgresql+psycopg2://dagster:{password}@127.0.0.1:{port}/"
        finally:
            call("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


@contextmanager
def new_database(server: str) -> Iterator[str]:
    """The URL of an empty database of the server."""
    name = f"d{uuid.uuid4().hex}"
    execute(f"{server}postgres", f"CREATE DATABASE {name}")
    yield f"{server}{name}"
    execute(f"{server}postgres", f"DROP DATABASE {name} WITH (FORCE)")


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement outside of a transaction; its rows, if it has any."""
    engine = db.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=db.NullPool)
    with engine.connect() as connection:
        found = connection.execute(db.text(statement))
        return [tuple(row) for row in found] if found.returns_rows else []


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A server for all tests of the session; skipped where PostgreSQL is not installed."""
    if programs() is None:
        pytest.skip("no PostgreSQL: run scripts/need-postgres")
    with running_postgres(durable=False) as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty database."""
    with new_database(postgres_server) as url:
        yield url
