"""`backfill up`: embedded warehouse, warm Spark Connect server, Dagster UI and daemon, as one thing to start and stop.

Each part is a child process with a log file. They end with this process, however it ends: it stops them in order when it is
asked to, and the kernel asks them to stop when it is killed.
"""

import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.error import URLError

from backfill_platform.errors import SettingsError, TransientError
from backfill_platform.orchestration.launch import prepare_instance
from backfill_platform.settings import Settings, child_environment
from backfill_platform.spark.session import connect_server_command
from backfill_platform.warehouse.embedded import connect_or_start

_PR_SET_PDEATHSIG = 1
_START_SECONDS = 120
_STOP_SECONDS = 20

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Services:
    """What is running, for other commands of the same home."""

    pid: int
    web_url: str
    spark_remote: str


def running_services(settings: Settings) -> Services | None:
    """The services of `backfill up` on this home, if it is running."""
    try:
        services = Services(**json.loads(settings.services_file.read_text()))
        os.kill(services.pid, 0)
    except (OSError, ValueError, TypeError):
        return None
    return services


@dataclass
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self) -> None:
        """Ask, wait, then insist; grandchildren share the session and end with it."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def up(settings: Settings, tell: Tell, ready: Callable[[Services], None]) -> int:
    """Start everything, call `ready`, and stay until SIGINT or SIGTERM; returns the exit code.

    Raises SettingsError when this home is already up, and TransientError naming the log when a part does not start.
    """
    stop_asked: list[int] = []
    # Set by hand because a shell that starts us in the background lets us inherit ignored signals.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _frame: stop_asked.append(received))
    children: list[_Child] = []
    with ExitStack() as stack:
        stack.enter_context(_only_one(settings))
        prepare_instance(settings)
        started = time.monotonic()
        if settings.clickhouse_url is None:
            tell("starting the embedded warehouse")
            stack.enter_context(connect_or_start(settings.warehouse_dir))
        stack.callback(_stop, children)
        spark_remote = settings.spark_remote or f"sc://127.0.0.1:{_free_port()}"
        environment = child_environment(
            settings, BACKFILL_SPARK_REMOTE=spark_remote, PYSPARK_PYTHON=sys.executable, PYTHONUNBUFFERED="1"
        )
        if settings.spark_remote is None:
            tell("starting Spark Connect")
            port = int(spark_remote.rsplit(":", 1)[1])
            command = connect_server_command(
                port=port, master=settings.spark_master, driver_memory=settings.spark_driver_memory
            )
            children.append(_start("spark", command, settings, environment))
        tell("starting Dagster")
        web_port = settings.web_port or _free_port()
        web_url = f"http://127.0.0.1:{web_port}"
        workspace = str(settings.project / "workspace.yaml")
        web = [_script("dagster-webserver"), "-h", "127.0.0.1", "-p", str(web_port), "-w", workspace]
        children.append(_start("webserver", web, settings, environment))
        children.append(_start("daemon", [_script("dagster-daemon"), "run", "-w", workspace], settings, environment))
        for child in children:
            _await(child, _probe(child.name, spark_remote, web_url), stop_asked)
        services = Services(os.getpid(), web_url, spark_remote)
        settings.services_file.write_text(json.dumps(services.__dict__))
        stack.callback(lambda: settings.services_file.unlink(missing_ok=True))
        if not stop_asked:
            tell(f"ready after {time.monotonic() - started:.0f} s")
            ready(services)
        while not stop_asked:
            for child in children:
                if child.process.poll() is not None:
                    raise TransientError(_died(child))
            time.sleep(0.2)
        tell("stopping")
    tell("stopped")
    return 0


@contextmanager
def _only_one(settings: Settings) -> Iterator[IO[str]]:
    settings.home.mkdir(parents=True, exist_ok=True)
    with open(settings.home / "up.lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            services = running_services(settings)
            where = f" at {services.web_url} (process {services.pid})" if services else ""
            raise SettingsError(f"{settings.home} is already up{where}; stop that one, or set BACKFILL_HOME") from None
        yield file


def _start(name: str, command: list[str], settings: Settings, environment: dict[str, str]) -> _Child:
    log = settings.home / "logs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    with open(log, "ab") as out:
        process = subprocess.Popen(
            command,
            cwd=settings.project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_in_child,
        )
    return _Child(name, process, log)


def _in_child() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _script(name: str) -> str:
    """A console script of this environment, whether or not the environment is on PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SettingsError(f"{name} is not installed in this environment; run `make install`")
    return found


def _stop(children: list[_Child]) -> None:
    for child in reversed(children):
        child.stop()


def _probe(name: str, spark_remote: str, web_url: str) -> Callable[[], bool]:
    if name == "spark":
        return lambda: _first_query(spark_remote)
    if name == "webserver":
        return lambda: _answers(f"{web_url}/server_info")
    return lambda: True


def _await(child: _Child, is_ready: Callable[[], bool], stop_asked: list[int]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not stop_asked and not is_ready():
        if child.process.poll() is not None or time.monotonic() > deadline:
            raise TransientError(_died(child))
        time.sleep(0.2)


def _died(child: _Child) -> str:
    state = "does not answer" if child.process.poll() is None else f"ended with code {child.process.returncode}"
    last = child.log.read_text(errors="replace").strip().splitlines()[-5:]
    return f"{child.name} {state}; the end of {child.log}:\n" + "\n".join(last)


def _first_query(spark_remote: str) -> bool:
    """Whether Spark Connect answers a query; the first one takes seconds, which the first user need not wait for."""
    host, port = spark_remote.removeprefix("sc://").split("/")[0].rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            pass
    except OSError:
        return False
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(spark_remote).getOrCreate()
    session.range(1).count()
    session.stop()
    return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
