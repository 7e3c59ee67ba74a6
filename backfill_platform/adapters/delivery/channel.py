"""One address of a recipient, reached by Apprise: Slack, Mattermost, Teams, e-mail, web hooks and many other services.

The address is a secret: no error, log or repr shows it.
"""

import logging
from typing import Protocol

import apprise

from backfill_platform.domain.notification import Notification, NotificationKind
from backfill_platform.errors import ChannelUnavailable, SettingsError

_TYPES = {
    NotificationKind.STARTED: apprise.NotifyType.INFO,
    NotificationKind.FINISHED: apprise.NotifyType.SUCCESS,
    NotificationKind.WAITING: apprise.NotifyType.WARNING,
    NotificationKind.FAILED: apprise.NotifyType.FAILURE,
}
# Apprise writes addresses into its own log.
logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)


class Channel(Protocol):
    """One way to reach one recipient. Safe to use from a thread of its own."""

    @property
    def name(self) -> str:
        """What it is, for people and logs; never its address."""
        ...

    def send(self, notification: Notification) -> None:
        """Hand the notification over, once. It may arrive twice when it is sent again after a time-out.

        Raises ChannelUnavailable when it was not taken; without the address.
        """
        ...


class AppriseChannel:
    """A service of Apprise. Redirects are not followed: they would carry the text to an address that nobody has named."""

    def __init__(self, url: str) -> None:
        asset = apprise.AppriseAsset(app_id="Backfill Platform", async_mode=False, http_redirects=False)
        service = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
        if service is None:
            scheme = url.partition("://")[0] if "://" in url else "no scheme"
            raise SettingsError(f"BACKFILL_RECIPIENTS: an address with {scheme} is none that Apprise can use; see its list")
        self.name = str(service.service_name)
        self._service = service

    def __repr__(self) -> str:
        return f"AppriseChannel({self.name})"

    def send(self, notification: Notification) -> None:
        """Hand the notification over, once. Raises ChannelUnavailable when it was not taken."""
        taken = self._service.notify(
            body=notification.text, title=notification.subject, notify_type=_TYPES[notification.kinds[0]], body_format="text"
        )
        if not taken:
            raise ChannelUnavailable(f"{self.name} did not take it; see that the address is right and the service answers")
