"""A command of the user's, for everything that has no channel here: pagers, ticket systems, a file."""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from backfill_platform.adapters.delivery.channel import TRY_SECONDS
from backfill_platform.domain.notification import Notification
from backfill_platform.errors import ChannelUnavailable, Undeliverable


class Command:
    """Runs the command, without a shell, with the message as JSON on its standard input. `timeout` is in seconds.

    It says by its exit code how it went: 0 done, 75 (EX_TEMPFAIL) try again, anything else no. What it prints on standard
    error goes to ours; its standard output is dropped.
    """

    name = "command"

    def __init__(self, argv: Sequence[str], *, timeout: float = TRY_SECONDS) -> None:
        self._argv = tuple(argv)
        self._timeout = timeout

    def send(self, message: Notification) -> None:
        """Run it and wait; past the time limit it is killed with all it has started."""
        told = json.dumps(message.as_dict()).encode()
        try:
            process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
        except (OSError, ValueError) as error:
            # Arguments may be secrets; what the system says without the file's name is not.
            why = error.strerror if isinstance(error, OSError) else type(error).__name__
            raise Undeliverable(f"the command cannot be run ({why})") from None
        try:
            process.communicate(told, timeout=self._timeout)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Undeliverable(f"the command was not done within {self._timeout:g} s") from None
        if process.returncode == os.EX_TEMPFAIL:
            raise ChannelUnavailable("the command asks to be run again later (exit code 75)")
        if process.returncode:
            raise Undeliverable(f"the command ended with exit code {process.returncode}")
