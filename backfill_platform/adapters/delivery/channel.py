"""What every way to reach somebody can do."""

from typing import Protocol

from backfill_platform.domain.notification import Notification

TRY_SECONDS = 10.0


class Channel(Protocol):
    """One way to reach one recipient. Safe to use from a thread of its own."""

    @property
    def name(self) -> str:
        """What it is, for people and logs; never its address."""
        ...

    def send(self, message: Notification) -> None:
        """Hand the message over, once. It may arrive twice when it is sent again after a time-out.

        Raises Undeliverable when trying again is of no use, and ChannelUnavailable when it may well work; neither shows the
        address or a password.
        """
        ...
