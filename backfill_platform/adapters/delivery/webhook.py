"""Slack's incoming webhooks, and what is compatible with them: Mattermost, Rocket.Chat, Discord's `/slack` addresses."""

import time
from email.utils import parsedate_to_datetime

import requests

from backfill_platform.adapters.delivery.channel import TRY_SECONDS
from backfill_platform.domain.notification import Notification
from backfill_platform.errors import ChannelUnavailable, Undeliverable

_MOST_CHARACTERS = 15_000  # what Mattermost takes; Slack takes 40,000


class Webhook:
    """Posts `{"text": ...}` to an address that is a secret. `timeout` is in seconds, for connecting and between two bytes."""

    name = "webhook"

    def __init__(self, url: str, *, timeout: float = TRY_SECONDS) -> None:
        self._url = url
        self._timeout = timeout

    def send(self, message: Notification) -> None:
        """Post the message; a redirect is not followed, because it would carry the message to an address nobody has named."""
        text = f"*{_escaped(message.subject)}*\n{_escaped(message.text)}"
        if len(text) > _MOST_CHARACTERS:
            text = text[:_MOST_CHARACTERS] + " ..."
        try:
            with requests.post(
                self._url, json={"text": text}, timeout=self._timeout, allow_redirects=False, stream=True
            ) as answer:
                status, after = answer.status_code, answer.headers.get("Retry-After", "")
        # The texts of these errors hold the address, so neither they nor their chain go on.
        except (requests.ConnectionError, requests.Timeout) as error:
            raise ChannelUnavailable(f"the webhook does not answer ({type(error).__name__})") from None
        except (requests.RequestException, ValueError) as error:
            raise Undeliverable(f"the webhook cannot be used ({type(error).__name__}); see its address") from None
        if status == 429 or status >= 500:
            raise ChannelUnavailable(f"the webhook answered {status}", retry_after=_seconds(after))
        if not 200 <= status < 300:
            raise Undeliverable(f"the webhook answered {status}: it is gone, or does not take such messages")


def _escaped(text: str) -> str:
    """Text that Slack shows as it is: neither a link nor a mention of everybody can come out of a reason."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _seconds(after: str) -> float:
    """`Retry-After` in seconds, given as such or as a date; 0 for neither."""
    try:
        return max(0.0, float(after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
    except ValueError:
        return 0.0
