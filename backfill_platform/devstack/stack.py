"""`backfill up`: embedded warehouse, Spark Connect server that is warmed, Dagster UI and daemon: one thing to start and stop.

Each part is a child process with a log file, and leader of a process group that holds whatever it starts: code servers, runs.
They end with this process, however it ends: it stops them in order when it is asked to, and a guard stops them when it is
killed. Runs that went down with their group are reported failed at the next start, and Dagster launches them again.
"""

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
from urllib.parse import urlsplit

from backfill_platform.adapters.spark.session import connect_server_command
from backfill_platform.devstack.embedded_clickhouse.server import connect_or_start
from backfill_platform.errors import SettingsError, TransientError
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.orchestration.recovery import fail_dead_runs
from backfill_platform.settings import Settings, child_environment

_START_SECONDS = 120
_STOP_SECONDS = 20
_GUARD_SECONDS = 10

# A program of its own, on the standard library alone: it must outlive this process and start at once. It reads the ids of
# process groups until its input ends, which is when this process does, asks them to stop, and insists. It holds the lock of
# the home for so long, so that the next `backfill up` waits for it.
_GUARD = f"""
import os, signal, sys, time

def tell(groups, number):
    left = []
    for group in groups:
        try:
            os.killpg(group, number)
            left.append(group)
        except OSError:
            pass
    return left

left = tell([int(line) for line in sys.stdin], signal.SIGTERM)
deadline = time.monotonic() + {_GUARD_SECONDS}
while left and time.monotonic() < deadline:
    time.sleep(0.1)
    left = tell(left, 0)
tell(left, signal.SIGKILL)
"""

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
        # After a kill -9 the file is still there, and another process may have the id by now.
        address = urlsplit(services.web_url)
        socket.create_connection((str(address.hostname), address.port or 80), timeout=2).close()
    except (OSError, ValueError, TypeError):
        return None
    return services


@dataclass
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self) -> None:
        """Ask the whole group, wait, then insist: a run that is asked has the time to say that it was interrupted."""
        deadline = time.monotonic() + _STOP_SECONDS
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
            while time.monotonic() < deadline:
                if self.process.poll() is not None:
                    # As process 1 of a container we inherit its orphans: unreaped, they would keep the group alive.
                    with suppress(ChildProcessError):
                        os.waitpid(-self.process.pid, os.WNOHANG)
                os.killpg(self.process.pid, 0)
                time.sleep(0.05)
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
        lock = stack.enter_context(_only_one(settings))
        started = time.monotonic()
        watch = stack.enter_context(_guard(lock))
        for run_id in _fail_lost_runs(settings):
            tell(f"run {run_id[:8]} was cut off when this home last went down; its backfill goes on with a new run")
        if settings.clickhouse_url is None:
            tell("starting the embedded warehouse")
            stack.enter_context(connect_or_start(settings.warehouse_dir))
        stack.callback(_stop, children)

        def start(name: str, command: list[str]) -> None:
            children.append(_start(name, command, settings, environment))
            watch(children[-1].process.pid)

        spark_remote = settings.spark_remote or f"sc://127.0.0.1:{_free_port()}"
        environment = environment_of_parts(settings, spark_remote)
        if settings.spark_remote is None:
            tell("starting Spark Connect")
            port = int(spark_remote.rsplit(":", 1)[1])
            command = connect_server_command(
                port=port, master=settings.spark_master, driver_memory=settings.spark_driver_memory
            )
            start("spark", command)
        tell("starting Dagster")
        web_port = settings.web_port or _free_port()
        web_url = f"http://127.0.0.1:{web_port}"
        workspace = str(settings.project_file("workspace.yaml"))
        web = [_script("dagster-webserver"), "-h", "127.0.0.1", "-p", str(web_port), "-w", workspace]
        start("webserver", web)
        start(
            "daemon", [sys.executable, "-m", "backfill_platform.orchestration.dagster_overrides.daemon", "run", "-w", workspace]
        )
        for child in children:
            _await(child, _probe(child.name, spark_remote, web_url), stop_asked)
        services = Services(os.getpid(), web_url, spark_remote)
        settings.services_file.write_text(json.dumps(services.__dict__))
        stack.callback(lambda: settings.services_file.unlink(missing_ok=True))
        if not stop_asked:
            tell(f"ready after {time.monotonic() - started:.0f} s")
            ready(services)
            if settings.spark_remote is None:
                warming = [sys.executable, "-m", "backfill_platform.devstack.warm"]
                # It ends by itself, so the guard is not told of it: another process may have its id by then.
                stack.callback(_start("warm", warming, settings, environment, stdin=subprocess.PIPE).stop)
        while not stop_asked:
            for child in children:
                if child.process.poll() is not None:
                    raise TransientError(_died(child))
            time.sleep(0.2)
        tell("stopping")
    tell("stopped")
    return 0


def environment_of_parts(settings: Settings, spark_remote: str) -> dict[str, str]:
    """The environment of all that is started."""
    environment = child_environment(
        settings,
        BACKFILL_SPARK_REMOTE=spark_remote,
        PYSPARK_PYTHON=sys.executable,
        PYTHONUNBUFFERED="1",
    )
    if sys.dont_write_bytecode:
        # As containers have it, to keep their folders clean. Each run is a process, and would compile all modules anew.
        environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(settings.home / "bytecode")}
    return environment


@contextmanager
def _only_one(settings: Settings) -> Iterator[IO[str]]:
    settings.home.mkdir(parents=True, exist_ok=True)
    with open(settings.home / "up.lock", "a+") as file:
        # Held without services: by one that starts or stops, or by the guard of one that was killed.
        deadline = time.monotonic() + _GUARD_SECONDS + 5
        while not _locks(file):
            services = running_services(settings)
            if services or time.monotonic() > deadline:
                where = f" at {services.web_url} (process {services.pid})" if services else ""
                raise SettingsError(f"{settings.home} is already up{where}; stop that one, or set BACKFILL_HOME")
            time.sleep(0.1)
        yield file


def _locks(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _guard(lock: IO[str]) -> Iterator[Callable[[int], None]]:
    """A process that ends process groups when this process is killed; yields what tells it of one."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD],
        stdin=subprocess.PIPE,
        pass_fds=[lock.fileno()],
        start_new_session=True,
        text=True,
    )
    told = guard.stdin
    assert told is not None

    def watch(group: int) -> None:
        print(group, file=told, flush=True)

    try:
        yield watch
    finally:
        guard.kill()
        guard.wait()
        told.close()


def _fail_lost_runs(settings: Settings) -> list[str]:
    """Report failed what Dagster believes to run although its process ended with an earlier `backfill up`.

    Before the daemons start, or one of them may close a backfill as failed before another one notes that its run is retried.
    """
    with dagster_instance(settings) as instance:
        return fail_dead_runs(instance, workers_too=True)


def _start(
    name: str, command: list[str], settings: Settings, environment: dict[str, str], *, stdin: int = subprocess.DEVNULL
) -> _Child:
    log = settings.home / "logs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    with open(log, "ab") as out:
        process = subprocess.Popen(
            command,
            cwd=settings.project,
            env=environment,
            stdin=stdin,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _Child(name, process, log)


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
