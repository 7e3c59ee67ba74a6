"""Stopping in the middle of a call of Spark Connect: with a real server, and with a stand-in."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from backfill_platform.adapters.spark.stopping import stoppable
from backfill_platform_tests.fixtures_spark import connect_server
from backfill_platform_tests.fixtures_warehouse import wait_until

ROOT = Path(__file__).parents[3]


class Stopped(BaseException):
    """What the handler that was there before raises."""


class Session:
    """Stands for a session on a server: a call ends when it is interrupted."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self, *, deaf: bool = False, refuses: bool = True) -> None:
        self.interrupted = threading.Event()
        self.deaf, self.refuses = deaf, refuses
        self.left_by: BaseException | None = None
        self.handlers: list[Callable[..., None]] = []
        namespace: dict[str, Any] = {"__name__": "grpc._channel", "sleep": time.sleep}
        exec("def wait(ask, waits):\n    ask()\n    while waits(): sleep(0.01)\n", namespace)
        self._wait = namespace["wait"]

    def call(self) -> None:
        """Ask the server, and send this process a signal in the middle of it, while tasks run."""
        for handler in self.handlers:
            handler(stages=[], inflight_tasks=2, operation_id="1", done=False)
        try:
            self._wait(lambda: os.kill(os.getpid(), signal.SIGINT), lambda: not self.interrupted.is_set())
        except BaseException as error:
            self.left_by = error
            raise
        if self.refuses:
            raise RuntimeError("OPERATION_CANCELED")

    def registerProgressHandler(self, handler: Callable[..., None]) -> None:  # noqa: N802 - PySpark's name
        self.handlers.append(handler)

    def removeProgressHandler(self, handler: Callable[..., None]) -> None:  # noqa: N802 - PySpark's name
        self.handlers.remove(handler)

    def interruptAll(self) -> None:  # noqa: N802 - PySpark's name
        if not self.deaf:
            self.interrupted.set()


@pytest.fixture(autouse=True)
def handler() -> Iterator[Callable[..., None]]:
    """The handler of Ctrl-C that is there before."""

    def stop(*_: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGINT, stop)
    yield stop
    assert signal.getsignal(signal.SIGINT) is stop
    signal.signal(signal.SIGINT, before)


def stopping(session: Any, **options: float) -> AbstractContextManager[Callable[[], Any]]:
    return stoppable(lambda: session, **options)


@pytest.mark.parametrize("refuses", [True, False], ids=["the call fails", "the call returns"])
def test_a_signal_during_a_call_is_raised_after_it(refuses: bool) -> None:
    session = Session(refuses=refuses)
    reached = []

    def work() -> None:
        with stopping(session) as open_session:
            open_session().call()
            reached.append("after the call")
            time.sleep(5)
            reached.append("the end")

    with pytest.raises(Stopped):
        work()
    assert session.interrupted.is_set()
    assert session.left_by is None
    assert reached == ([] if refuses else ["after the call"])


def test_a_call_that_fails_at_the_end_of_the_block_is_reported_as_a_stop() -> None:
    session = Session()
    with pytest.raises(Stopped) as raised, stopping(session) as open_session:
        open_session().call()
    assert isinstance(raised.value.__context__, RuntimeError)


def test_the_cleanup_after_a_stop_is_not_interrupted_by_a_reminder() -> None:
    cleaned = []

    def clean() -> None:
        time.sleep(1)  # the signal would have come again by now
        cleaned.append(1)

    stop_in_call(clean)
    assert cleaned


def test_a_second_signal_ends_the_cleanup() -> None:
    interrupted = []

    def clean() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except Stopped:
            interrupted.append(1)

    stop_in_call(clean)
    assert interrupted


def stop_in_call(clean: Callable[[], None]) -> None:
    """Be stopped in the middle of a call, with something to clean up on the way out."""

    def work() -> None:
        with stopping(Session(refuses=False)) as open_session:
            try:
                open_session().call()
                time.sleep(5)
            finally:
                clean()

    with pytest.raises(Stopped):
        work()


def test_a_server_that_does_not_answer_is_left_after_a_while() -> None:
    session = Session(deaf=True)
    began = time.monotonic()
    with pytest.raises(Stopped), stopping(session, patience=1) as open_session:
        open_session().call()
    assert time.monotonic() - began > 1
    assert isinstance(session.left_by, Stopped)


@pytest.mark.parametrize("session", [object(), Session()], ids=["in this process", "on a server"])
def test_a_signal_outside_a_call_is_raised_at_once(session: Any) -> None:

    def work() -> None:
        with stopping(session) as open_session:
            open_session()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    with pytest.raises(Stopped):
        work()
    assert not isinstance(session, Session) or not session.interrupted.is_set()


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with stopping(Session()):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_leaves_signals_alone() -> None:
    seen = []

    def work() -> None:
        before = signal.getsignal(signal.SIGINT)
        with stopping("session") as open_session:
            seen.append((open_session(), signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [("session", True)]


@pytest.mark.whole
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the processor's time from Linux's /proc")
def test_a_client_ends_and_so_does_its_job_whenever_it_is_stopped() -> None:
    """An exception raised inside gRPC leaves one of three clients hanging, and the server busy for ever."""
    with connect_server() as remote:
        server = find_java(remote)
        command = [sys.executable, "-m", "backfill_platform_tests.adapters.spark.endless_client", remote]
        for pause in (0.0, 0.3, 1.0, 2.0):
            pipe = subprocess.PIPE
            client = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
            try:
                assert client.stdout is not None
                assert client.stdout.readline() == "begins\n"
                time.sleep(pause)
                client.send_signal(signal.SIGINT)
                assert client.communicate(timeout=20)[0] == "stopped\n", f"after {pause} s"
                assert client.returncode == 0
            finally:
                client.kill()
            wait_until(lambda: seconds_spent(server, during=1.0) < 0.5, 15)


def find_java(remote: str) -> int:
    """The process of the server: the command that was started has become it."""
    port = remote.rsplit(":", 1)[1]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        if "java" in command.split("\0")[0] and f"binding.port={port}" in command:
            return int(folder.name)
    raise AssertionError("there is no server")


def seconds_spent(pid: int, during: float) -> float:
    """The processor's time that a process takes within so many seconds."""

    def spent() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = spent()
    time.sleep(during)
    return spent() - before
