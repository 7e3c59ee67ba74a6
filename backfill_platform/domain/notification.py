"""What people are told about a repair: when, in which words, and without secrets.

A message is a value; `notifications.messages` makes it, `adapters.delivery` delivers it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from backfill_platform.domain.visible_text import JOINER


class NotificationKind(StrEnum):
    """The moments at which somebody is told; one message may be about two of the last three."""

    STARTED = "started"
    FINISHED = "finished"  # it ended, and nothing is left to do
    WAITING = "waiting"  # something waits for a person to decide
    FAILED = "failed"


@dataclass(frozen=True)
class Notification:
    """One message; `kinds` names the most serious first."""

    kinds: tuple[NotificationKind, ...]
    pipeline: str
    subject: str
    text: str

    def without(self, secrets: Iterable[str]) -> "Notification":
        """The message with the given secrets, and whatever looks like one, replaced by `***`."""
        known = tuple(secrets)
        return replace(
            self,
            subject=" ".join(redact(self.subject, known).split()),  # one line: it becomes a header of e-mail
            text=redact(self.text, known),
        )


HIDDEN = "***"

_SECRET_NAME = (
    r"[\w.-]*(?:password|passwd|passphrase|\bpass\b|pwd|secret|token|signature|\bsig\b|credential|api_?key|access_?key)[\w.-]*"
)
_PATTERNS = (
    # scheme://user:password@host, and a token alone before the @; a joiner may keep the address from becoming a link
    (re.compile(rf"(?i)\b([a-z][a-z0-9+.-]*:{JOINER}?//)[^\s/?#@'\"]+@"), rf"\1{HIDDEN}@"),
    # ?token=..., password=..., "password": "..."
    (re.compile(rf"(?i)(?<![\w.-])({_SECRET_NAME}(?:\s*=\s*['\"]?|['\"]\s*:\s*['\"]?))[^\s&'\",;)}}\]]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[a-z0-9._~+/=-]{12,}"), rf"\1{HIDDEN}"),
    # The address of an incoming webhook is its password.
    (re.compile(rf"(?i)(https?:{JOINER}?//hooks\.[^\s/'\"]+/)[^\s'\")<>]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(/services/)T\w+/B\w+/\w+|(/api/webhooks/)\d+/[\w-]+"), rf"\1\2{HIDDEN}"),
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without the given secrets, without passwords and tokens in URLs, and without `name=value` of secret names."""
    # The longest first: a secret may hold another one.
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = re.sub(f"{JOINER}?".join(map(re.escape, secret)), HIDDEN, text)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text
