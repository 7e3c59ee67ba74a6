"""How messages get out: in the background, in order, tried again for a while. The one door, so that no secret passes it."""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_before_delay

from backfill_platform.adapters.delivery.channel import Channel
from backfill_platform.domain.notification import Notification, NotificationKind
from backfill_platform.errors import BackfillError, ChannelUnavailable


@dataclass(frozen=True)
class Recipient:
    """Somebody who wants to know: of which kinds of messages, and by which channels."""

    name: str
    channels: tuple[Channel, ...]
    kinds: frozenset[NotificationKind]


@dataclass(frozen=True)
class Patience:
    """For how many seconds a message is tried, and the first pause between two tries; later ones are twice as long each."""

    seconds: float = 10.0
    pause: float = 0.5


PATIENCE = Patience()


@dataclass(frozen=True)
class Delivery:
    """What became of a message on one channel of a recipient. `problem` is empty when it was delivered."""

    recipient: str
    channel: str
    subject: str
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{self.recipient} was not told by {self.channel} ('{self.subject}'): {self.problem}"
        return f"{self.recipient} was told by {self.channel} ('{self.subject}')"


@dataclass
class _Line:
    """The messages on their way by one channel, one after the other. A daemon thread: it never keeps a process alive."""

    recipient: str
    channel: Channel
    patience: Patience
    waiting: "queue.Queue[tuple[Notification, float] | None]" = field(default_factory=queue.Queue)
    posted: list[Notification] = field(default_factory=list)
    done: list[Delivery] = field(default_factory=list)
    thread: threading.Thread | None = None

    def post(self, message: Notification) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name=f"telling {self.recipient}", daemon=True)
            self.thread.start()
        self.posted.append(message)
        self.waiting.put((message, time.monotonic() + self.patience.seconds))

    def _work(self) -> None:
        while (taken := self.waiting.get()) is not None:
            message, until = taken
            problem = ""
            try:
                left = Patience(max(0.0, until - time.monotonic()), self.patience.pause)
                # Where a newer message waits, that one matters more than further tries.
                deliver(self.channel, message, left, overtaken=partial(self._overtaken, message))
            except BackfillError as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001  # a channel's bug must not silence what comes after; text may be secret
                problem = f"the channel broke ({type(error).__name__})"
            self.done.append(Delivery(self.recipient, self.channel.name, message.subject, problem))

    def _overtaken(self, message: Notification) -> bool:
        return self.posted[-1] is not message

    def end(self, deadline: float) -> list[Delivery]:
        if self.thread is None:
            return []
        self.waiting.put(None)
        self.thread.join(max(0.0, deadline - time.monotonic()))
        done = list(self.done)
        late = "it took too long, and was left to itself"
        return done + [
            Delivery(self.recipient, self.channel.name, message.subject, late) for message in self.posted[len(done) :]
        ]


class Dispatcher:
    """Takes messages and delivers them while others work. `close` waits for what is on its way, up to the patience.

    `secrets` are taken out of every message, as is all that looks like one.
    """

    def __init__(self, recipients: Iterable[Recipient], *, secrets: Iterable[str] = (), patience: Patience = PATIENCE) -> None:
        self._patience = patience
        self._secrets = tuple(secrets)
        self._lines = [
            (recipient, _Line(recipient.name, channel, patience)) for recipient in recipients for channel in recipient.channels
        ]

    @property
    def reaches_anybody(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._lines)

    def post(self, message: Notification) -> None:
        """Send the message to the recipients that want one of its kinds; returns at once."""
        clean = message.without(self._secrets)
        for recipient, line in self._lines:
            if recipient.kinds.intersection(message.kinds):
                line.post(clean)

    def close(self, seconds: float | None = None) -> tuple[Delivery, ...]:
        """Wait for what is on its way, at most so many seconds, and say what became of every message. Raises nothing."""
        deadline = time.monotonic() + (self._patience.seconds if seconds is None else seconds)
        return tuple(delivery for _, line in self._lines for delivery in line.end(deadline))


def deliver(
    channel: Channel, message: Notification, patience: Patience, *, overtaken: Callable[[], bool] = lambda: False
) -> None:
    """Send the message, again while the channel is unavailable, the patience lasts and it is not overtaken.

    Raises what the last try raised.
    """
    too_late = stop_before_delay(patience.seconds)

    def pause(state: RetryCallState) -> float:
        return patience.pause * 2.0 ** (state.attempt_number - 1)

    def is_over(state: RetryCallState) -> bool:
        return overtaken() or too_late(state)

    for attempt in Retrying(
        retry=retry_if_exception_type(ChannelUnavailable),
        stop=is_over,
        wait=pause,
        reraise=True,
    ):
        with attempt:
            channel.send(message)
