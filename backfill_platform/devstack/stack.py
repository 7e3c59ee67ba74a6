"""`backfill up`: what it starts, and in which order.

An embedded warehouse, a Spark Connect server that is warmed up, the Dagster UI and the daemon: one command starts and stops
them. They end with this process, however it ends: it stops them in order when it is asked to, and a guard stops them when it is
killed (`processes`). Runs that ended with their group are reported failed at the next start, and Dagster launches them again.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import IO
from urllib.parse import urlsplit

from backfill_platform.adapters.connections import Connections
from backfill_platform.adapters.spark.session import connect_server_command
from backfill_platform.devstack.embedded_clickhouse.server import connect_or_start
from backfill_platform.devstack.processes import (
    GUARD_SECONDS,
    Child,
    answers_http,
    free_port,
    guard,
    start_child,
    stop_children,
    try_lock,
)
from backfill_platform.errors import SettingsError
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.orchestration.recovery import fail_dead_runs
from backfill_platform.settings import Settings, child_environment, own_spark_token

_SPARK = "spark"
# Spark may end so often in so many seconds; a start takes about ten.
_SPARK_ENDS, _SPARK_SECONDS = 5, 600.0

Tell = Callable[[str], None]
Start = Callable[[str, list[str]], Child]


@dataclass(frozen=True)
class Services:
    """The running services, for other commands of the same home."""

    pid: int
    web_url: str
    spark_remote: str
    spark_token: str = field(default="", repr=False)


def running_services(settings: Settings) -> Services | None:
    """The services of `backfill up` on this home; None when it is not running."""
    try:
        services = Services(**json.loads(settings.services_file.read_text()))
        os.kill(services.pid, 0)
        # After a kill -9 the file still exists, and another process may have the id by now.
        address = urlsplit(services.web_url)
        socket.create_connection((str(address.hostname), address.port or 80), timeout=2).close()
    except (OSError, ValueError, TypeError):
        return None
    return services


def up(settings: Settings, tell: Tell, ready: Callable[[Services], None]) -> int:
    """Start everything, call `ready`, and stay until SIGINT or SIGTERM; returns the exit code.

    Raises SettingsError when this home is already up, and TransientError naming the log when a part does not start.
    """
    stop_requested: list[int] = []
    # Set explicitly: a shell that starts us in the background lets us inherit ignored signals.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _frame: stop_requested.append(received))
    children: list[Child] = []
    if _is_private(settings):
        os.umask(0o077)
    with ExitStack() as stack:
        lock = stack.enter_context(_only_one(settings))
        started = time.monotonic()
        watch = stack.enter_context(guard(lock))
        for run_id in _fail_lost_runs(settings):
            tell(f"run {run_id[:8]} was cut off when this home last went down; its backfill goes on with a new run")
        if settings.clickhouse_url is None:
            tell("starting the embedded warehouse")
            stack.enter_context(connect_or_start(settings.warehouse_dir))
        stack.callback(stop_children, children)
        # Spark's client sends a token without TLS to this name alone.
        spark_remote = settings.spark_remote or f"sc://localhost:{free_port()}"
        token = own_spark_token() if settings.spark_remote is None else ""
        start_in_home = partial(_start, settings, environment_of_parts(settings, spark_remote))

        def start(name: str, command: list[str]) -> Child:
            child = start_in_home(name, command)
            children.append(child)
            watch(child.process.pid)
            return child

        web_url = _start_services(settings, spark_remote, tell, start, stop_requested)
        services = Services(os.getpid(), web_url, spark_remote, token)
        settings.services_file.write_text(json.dumps(asdict(services)))
        stack.callback(lambda: settings.services_file.unlink(missing_ok=True))
        if not stop_requested:
            tell(f"ready after {time.monotonic() - started:.0f} s")
            ready(services)
            if settings.spark_remote is None:
                warming = [sys.executable, "-m", "backfill_platform.devstack.warm"]
                # It ends by itself, so the guard does not watch it: another process may have its id by then.
                stack.callback(start_in_home("warm", warming, stdin=subprocess.PIPE).stop)
        _watch_over(children, start, tell, stop_requested)
        tell("stopping")
    tell("stopped")
    return 0


def _is_private(settings: Settings) -> bool:
    """Whether all files are for their owner only; a lake elsewhere may be read by others, such as a ClickHouse server."""
    return settings.lake_uri is None


def _watch_over(children: list[Child], start: Start, tell: Tell, stop_requested: list[int]) -> None:
    """Until a stop is requested: start Spark again when it ends, and raise TransientError when another part does.

    Spark runs what pipelines give it, so it may run out of memory; web page, daemon and warehouse do not, and go on. One that
    ends again and again is not worth starting: then the error is Spark's.
    """
    ended: list[float] = []
    while not stop_requested:
        for child in list(children):
            if child.name == _SPARK and child.process.poll() is not None:
                ended = [moment for moment in ended if time.monotonic() - moment < _SPARK_SECONDS] + [time.monotonic()]
                if len(ended) > _SPARK_ENDS:
                    child.check()
                code = child.process.returncode
                tell(f"Spark has ended with code {code}, see {child.log}; starting it again. Runs that used it fail")
                children.remove(child)
                start(_SPARK, list(child.command))
            else:
                child.check()
        time.sleep(0.2)


def _start_services(settings: Settings, spark_remote: str, tell: Tell, start: Start, stop_requested: list[int]) -> str:
    """Start Spark, the web server and the daemon, and wait until they answer; returns the URL of the web server."""
    probes: list[tuple[Child, Callable[[], bool]]] = []
    if settings.spark_remote is None:
        tell("starting Spark Connect")
        port = int(spark_remote.rsplit(":", 1)[1])
        memory, private = settings.spark_driver_memory, _is_private(settings)
        command = connect_server_command(
            port=port,
            master=settings.spark_master,
            driver_memory=memory,
            private=private,
            more=Connections(settings).installed_spark_options(),
        )
        probes.append((start(_SPARK, command), partial(_first_query, spark_remote)))
    tell("starting Dagster")
    web_port = settings.web_port or free_port()
    web_url = f"http://127.0.0.1:{web_port}"
    workspace = ["-w", str(settings.project_file("workspace.yaml"))]
    web = [sys.executable, "-m", "backfill_platform.orchestration.dagster_overrides.web_server", *workspace]
    web += ["-h", "127.0.0.1", "-p", str(web_port)]
    probes.append((start("webserver", web), partial(answers_http, f"{web_url}/server_info")))
    daemon = [sys.executable, "-m", "backfill_platform.orchestration.dagster_overrides.daemon", "run", *workspace]
    probes.append((start("daemon", daemon), lambda: True))
    for child, is_ready in probes:
        child.wait_until(is_ready, stop_requested)
    return web_url


def environment_of_parts(settings: Settings, spark_remote: str) -> dict[str, str]:
    """The environment of all child processes."""
    environment = child_environment(
        settings,
        BACKFILL_SPARK_REMOTE=spark_remote,
        PYSPARK_PYTHON=sys.executable,
        PYTHONUNBUFFERED="1",
    )
    if sys.dont_write_bytecode:
        # As in containers, to keep their folders clean. But each run is a process, and would compile all modules again.
        environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(settings.home / "bytecode")}
    return environment


def _start(
    settings: Settings, environment: dict[str, str], name: str, command: list[str], *, stdin: int = subprocess.DEVNULL
) -> Child:
    log = settings.home / "logs" / f"{name}.log"
    return start_child(name, command, log=log, folder=settings.project, environment=environment, stdin=stdin)


@contextmanager
def _only_one(settings: Settings) -> Iterator[IO[str]]:
    settings.make_home()
    with open(settings.home / "up.lock", "a+") as file:
        # It may be locked without services: by one that starts or stops, or by the guard of one that was killed.
        deadline = time.monotonic() + GUARD_SECONDS + 5
        while not try_lock(file):
            services = running_services(settings)
            if services or time.monotonic() > deadline:
                where = f" at {services.web_url} (process {services.pid})" if services else ""
                raise SettingsError(f"{settings.home} is already up{where}; stop that one, or set BACKFILL_HOME")
            time.sleep(0.1)
        yield file


def _fail_lost_runs(settings: Settings) -> list[str]:
    """Report runs failed that Dagster counts as running although their process ended with an earlier `backfill up`.

    Before the daemons start: otherwise one of them may close a backfill as failed before another one schedules the retry.
    """
    with dagster_instance(settings) as instance:
        return fail_dead_runs(instance, workers_too=True)


def _first_query(spark_remote: str) -> bool:
    """Whether Spark Connect answers a query. The first query takes seconds, which the first user then need not wait for."""
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
