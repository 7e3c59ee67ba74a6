"""The embedded warehouse: ClickHouse's own engine (chDB) in a process of its own, behind ClickHouse's HTTP interface.

Contains the command that runs the server, and what starts and stops it; `http_server.py` and `engine.py` are the rest. Keep
the platform's tables out: a real ClickHouse server must be able to replace this one by its URL alone.

    python -m backfill_platform.devstack.embedded_clickhouse.server --data-dir DIR [--port N] [--exit-with-parent]

It exists so that `backfill up`, runs, sensors, tests and the command line share one warehouse on a fresh machine, through
the client they also use in production. It is NOT a production server:

- one process: a crash of the engine ends it for everybody (data confirmed before is on disk, also after kill -9);
- one user, no roles, quotas or TLS; it listens on 127.0.0.1, refuses web pages, and each statement brings the secret of the
  folder as the password of the user `default`; GET changes nothing, and reads no files;
- a body is at most 256 MiB, packed and unpacked;
- requests and results are held in memory as a whole; no progress headers, no streaming;
- no external data, no native compression (`compress=1`), no replication, no clusters, no ZooKeeper, no query log;
- the engine gives each statement an id of its own: `query_id` comes back in the answer but is not in `system.processes`.
  KILL QUERY works by the id found there or by the text of the statement; a client that goes away cancels nothing;
- a session is kept only once something is left in it (SET, USE, a temporary table), 32 of them at most;
- the database `default` is an overlay of chDB's over an Atomic one: use databases of your own;
- `file()` reads every path the process can; relative ones start at the data folder.

In the data folder: `data/` (the engine's), `lock` (locked while a server runs), `endpoint.json` (url, pid and version; exists
while it answers), `curl.conf` (the same for people: `curl -K curl.conf --data 'SELECT 1'`), `secret`, `server.log` (of servers
started by `start`). Only their owner may read them.
"""

import argparse
import fcntl
import json
import logging
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from backfill_platform.adapters.clickhouse.embedded_endpoint import HOST, SECRET_FILE, USER, is_locked, read_json, running_url
from backfill_platform.errors import WarehouseLocked, WarehouseUnavailable

MODULE = "backfill_platform.devstack.embedded_clickhouse.server"  # __name__ is __main__ in the server
EXIT_LOCKED = 3
POLL_SECONDS = 0.05
LOG_LINES = 15

_log = logging.getLogger(MODULE)


class EmbeddedWarehouse:
    """A server that this process started. It ends with `stop`, the `with` block, this object or this process.

    `url` holds the secret, as `running_url` says.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self._process = process
        self.url = url

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    def stop(self, timeout: float = 30.0) -> None:
        """Stop the server: it finishes its requests, or cancels them after 10 seconds.

        After `timeout` seconds it is killed; whatever it confirmed is on disk all the same. May be called again.
        """
        _end(self._process, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def start(data_dir: Path, *, timeout_seconds: float = 60.0) -> EmbeddedWarehouse:
    """Start a server on this folder (made if needed) and wait until it answers.

    It runs in a session of its own, so that Ctrl-C in the terminal reaches only the caller, and ends when the caller does,
    however that dies. Processes that the caller forks without exec keep it alive: they hold the pipe it watches.

    Raises:
        WarehouseLocked: another process owns the folder.
        WarehouseUnavailable: the server ended, or did not answer within `timeout_seconds`.
    """
    data_dir = data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_seconds
    log_path = data_dir / "server.log"
    with log_path.open("ab") as log:
        log_start = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, "--data-dir", str(data_dir), "--exit-with-parent"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while process.poll() is None:
        endpoint = read_json(data_dir / "endpoint.json")
        # A file that a killed server left behind may name this very process id: in containers they repeat.
        if endpoint.get("pid") == process.pid and (url := running_url(data_dir)):
            return EmbeddedWarehouse(process, url)
        if time.monotonic() > deadline:
            _end(process, timeout=5.0)
            raise WarehouseUnavailable(
                f"The embedded warehouse on {data_dir} did not answer within {timeout_seconds:g} s. "
                + _log_end(log_path, log_start)
            )
        time.sleep(POLL_SECONDS)
    _end(process, timeout=0)
    if process.returncode == EXIT_LOCKED:
        raise WarehouseLocked(_locked_message(data_dir))
    raise WarehouseUnavailable(
        f"The embedded warehouse on {data_dir} ended with exit code {process.returncode}. " + _log_end(log_path, log_start)
    )


@contextmanager
def connect_or_start(data_dir: Path, *, timeout_seconds: float = 60.0) -> Iterator[str]:
    """The address of the running server of this folder, or of one started for the duration of the block.

    A server that was already running, or that another process starts at the same moment, is left running; it ends when
    that process lets go of it, even if this block is still using it.

    Raises:
        WarehouseLocked: another process owns the folder, but did not answer within `timeout_seconds`.
        WarehouseUnavailable: the server ended, or did not answer in time.
    """
    url, server = _find_or_start(data_dir, timeout_seconds)
    try:
        yield url
    finally:
        if server is not None:
            server.stop()


def _find_or_start(data_dir: Path, timeout_seconds: float) -> tuple[str, EmbeddedWarehouse | None]:
    deadline = time.monotonic() + timeout_seconds
    while True:
        url = running_url(data_dir)
        if url is not None:
            return url, None
        if not is_locked(data_dir):
            with suppress(WarehouseLocked):  # another process was faster: wait for its server
                server = start(data_dir, timeout_seconds=deadline - time.monotonic())
                return server.url, server
        if time.monotonic() > deadline:
            raise WarehouseLocked(_locked_message(data_dir))
        time.sleep(POLL_SECONDS)


def _end(process: "subprocess.Popen[bytes]", timeout: float) -> None:
    process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _log_end(path: Path, start_at: int) -> str:
    lines = path.read_bytes()[start_at:].decode(errors="replace").splitlines()
    return f"Its log, {path}, ends:\n" + ("\n".join(lines[-LOG_LINES:]) or "(nothing was logged)")


def _locked_message(data_dir: Path) -> str:
    pid = read_json(data_dir / "lock").get("pid", "unknown")
    url = read_json(data_dir / "endpoint.json").get("url")
    place = f" at {url}" if url else ", which does not answer yet"
    return (
        f"The warehouse folder {data_dir} is in use by the embedded warehouse with process id {pid}{place}. "
        f"Connect to that one, or stop it first: kill {pid}"
    )


def take_lock(data_dir: Path) -> IO[bytes] | None:
    """Take the lock of the folder and keep it until the file is closed; None when another process has it."""
    lock = (data_dir / "lock").open("ab+")
    for _ in range(5):  # `is_locked` of another process holds the lock for an instant
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate(0)
            lock.write(json.dumps({"pid": os.getpid()}).encode())
            lock.flush()
            return lock
        time.sleep(POLL_SECONDS)
    lock.close()
    return None


def make_secret(data_dir: Path) -> str:
    """The secret of the folder, made when there is none: only its owner may read it.

    Raises OSError when the file is somebody else's, or no plain file.
    """
    path = data_dir / SECRET_FILE
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"{path} is not a file of this user")
        os.fchmod(file.fileno(), 0o600)
        return file.read()


def _publish(data_dir: Path, content: dict[str, object], secret: str) -> None:
    # For people: `curl -K curl.conf --data 'SELECT 1'` shows the secret to nobody who lists processes.
    files = {"curl.conf": f'silent\nurl = "{content["url"]}"\nuser = "{USER}:{secret}"\n', "endpoint.json": json.dumps(content)}
    for name, text in files.items():
        draft = data_dir / f"{name}.draft"
        draft.touch(0o600)
        draft.write_text(text)
        draft.replace(data_dir / name)
    _log.info("answering at %s", content["url"])


def _withdraw(data_dir: Path) -> None:
    for name in ("endpoint.json", "curl.conf"):
        (data_dir / name).unlink(missing_ok=True)


def _stop_at_end_of_input(stop: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    _log.info("standard input has ended")
    stop.set()


def _serve(data_dir: Path, port: int, stop: threading.Event) -> int:
    # Those who only connect do not need these.
    from backfill_platform.devstack.embedded_clickhouse.engine import Engine
    from backfill_platform.devstack.embedded_clickhouse.http_server import Server, application

    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        _log.error("cannot listen on %s:%d: %s", HOST, port, error.strerror)
        return 1
    try:
        secret = make_secret(data_dir)
    except OSError as error:
        _log.error("cannot keep a secret in %s: %s", data_dir, error)
        return 1
    try:
        engine = Engine(data_dir / "data")
    except RuntimeError as error:
        _log.error("cannot open %s: %s", data_dir / "data", str(error).partition("\n")[0])
        return 1
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    content: dict[str, object] = {"url": url, "pid": os.getpid(), "version": engine.version}
    server = Server(
        application(engine, secret),
        engine,
        stop,
        on_ready=lambda: _publish(data_dir, content, secret),
        on_stopping=lambda: _withdraw(data_dir),
    )
    server.run(sockets=[listener])
    engine.close()
    _log.info("stopped")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until it is asked to stop; the exit code is 0 then, and 3 when the folder has another owner."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="ClickHouse's engine on a local HTTP port.")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the warehouse; made if needed")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0, the default, takes a free one")
    parser.add_argument("--exit-with-parent", action="store_true", help="stop when standard input ends")
    options = parser.parse_args(arguments)
    data_dir: Path = options.data_dir.resolve()
    if "?" in str(data_dir):
        parser.error("chDB cannot open a folder with a question mark in its path")
    os.umask(0o077)  # rows of the tables lie in this folder
    data_dir.mkdir(parents=True, exist_ok=True)
    data_dir.chmod(0o700)

    # Explicit handlers: a shell without job control starts background processes with SIGINT ignored.
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    lock = take_lock(data_dir)
    if lock is None:
        sys.stderr.write(_locked_message(data_dir) + "\n")
        return EXIT_LOCKED
    _withdraw(data_dir)  # what a server that was killed has left
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # The engine takes its time zone from the process and resolves relative paths of file() against the working directory.
    os.environ["TZ"] = "UTC"
    time.tzset()
    os.chdir(data_dir)
    if options.exit_with_parent:
        threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    with lock:
        return _serve(data_dir, options.port, stop)


if __name__ == "__main__":
    sys.exit(main())
