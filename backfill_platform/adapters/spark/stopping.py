"""Stopping while Spark works: Ctrl-C, or the termination of a run, in the middle of a call of Spark Connect.

An exception that a signal handler raises inside gRPC may leave gRPC's locks taken; one of the cases is
https://github.com/grpc/grpc/issues/19973. Then nothing can be sent any more: the server goes on with the job, and the process
hangs when it ends. A job that is interrupted while the server still plans it may start afterwards, and then nothing ends it; so
it is interrupted when its tasks run.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 0.2
_PLANNING_SECONDS = 10.0  # then it is interrupted in any case: other jobs may keep its tasks waiting
_PATIENCE_SECONDS = 30.0  # then the call is left as it is: a server that does not answer must not block the process
_CLIENT = ("grpc", "pyspark.sql.connect")

_log = logging.getLogger(__name__)


@contextmanager
def stoppable(
    open_session: Callable[[], SparkSession], patience: float = _PATIENCE_SECONDS
) -> Iterator[Callable[[], SparkSession]]:
    """Within the block, a signal that arrives during a call of Spark Connect first interrupts the jobs of the session.

    Yields a function that opens the session. The handler that was installed for the signal, which raises, is called when the
    main thread has left the call, at the latest after `patience` seconds. Between calls, and for a session in this process, it
    is called at once. Outside the main thread, which alone gets signals, nothing changes.
    """
    stopping = _Stopping(open_session, patience)
    if threading.current_thread() is not threading.main_thread():
        yield stopping.session
        return
    stopping.watch()
    try:
        yield stopping.session
        stopping.raise_late()
    except Exception:
        # Most likely the error of the interrupted call: report the stop instead.
        stopping.raise_late()
        raise
    finally:
        stopping.end()


class _Stopping:
    def __init__(self, open_session: Callable[[], SparkSession], patience: float) -> None:
        self._open, self._patience = open_session, patience
        self._session: Any = None
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._signal: int | None = None
        self._since = 0.0
        self._tasks_run = False
        self._reminder = False
        self._reminding = threading.RLock()
        self._over = threading.Event()

    def session(self) -> SparkSession:
        if self._session is None:
            self._session = self._open()
            if self._is_remote():
                self._session.registerProgressHandler(self._progressed)
        session: SparkSession = self._session
        return session

    def _is_remote(self) -> bool:
        return type(self._session).__module__.startswith("pyspark.sql.connect")

    def _progressed(self, *, inflight_tasks: int, done: bool, **_: object) -> None:
        """The server's report on a job, every two seconds and at its end."""
        self._tasks_run = inflight_tasks > 0 and not done

    def watch(self) -> None:
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if callable(before):  # the others end the process at once, or are ignored
                self._before[number] = before
                signal.signal(number, self._received)

    def end(self) -> None:
        self._finish()
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._is_remote():
            self._session.removeProgressHandler(self._progressed)

    def raise_late(self) -> None:
        """Call the handler of a signal that came during a call, unless it has been called already."""
        if self._signal is not None and not self._over.is_set():
            self._stop(self._signal, None)

    def _received(self, number: int, frame: FrameType | None) -> None:
        reminder, self._reminder = self._reminder, False
        if self._over.is_set():
            if not reminder:  # a second Ctrl-C
                self._before[number](number, frame)
        elif not self._calls_server(frame) or (reminder and time.monotonic() - self._since > self._patience):
            self._stop(number, frame)
        elif self._signal is None:
            self._signal, self._since = number, time.monotonic()
            threading.Thread(target=self._remind, args=(number,), name="stop Spark", daemon=True).start()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        # Before the handler, or a reminder would interrupt the cleanup.
        self._finish()
        self._before[number](number, frame)

    def _finish(self) -> None:
        with self._reminding:
            self._over.set()

    def _remind(self, number: int) -> None:
        """Interrupt the jobs of the session, and send the signal again, until the main thread has handled it."""
        interrupting: threading.Thread | None = None
        while not self._over.wait(_AGAIN_SECONDS):
            planned = self._tasks_run or time.monotonic() - self._since > _PLANNING_SECONDS
            if planned and (interrupting is None or not interrupting.is_alive()):
                interrupting = threading.Thread(target=self._interrupt, name="interrupt Spark", daemon=True)
                interrupting.start()
            with self._reminding:
                if not self._over.is_set():
                    self._reminder = True
                    signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _interrupt(self) -> None:
        try:
            self._session.interruptAll()
        except PySparkException as error:  # the server is gone; the interrupted call will fail as well
            _log.warning("Spark's jobs could not be interrupted: %s", error)

    def _calls_server(self, frame: FrameType | None) -> bool:
        if not self._is_remote():
            return False
        while frame is not None:
            if str(frame.f_globals.get("__name__", "")).startswith(_CLIENT):
                return True
            frame = frame.f_back
        return False
