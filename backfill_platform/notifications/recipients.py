"""Who is told of the repairs of a pipeline: the names it declares, and the addresses that the settings have for them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from backfill_platform.adapters.delivery.channel import AppriseChannel
from backfill_platform.adapters.delivery.dispatcher import PATIENCE, Dispatcher, Patience, Recipient
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.settings import Settings

_SHORTEST_SECRET = 6  # a shorter one is part of ordinary words
_SHORTEST_TOKEN = 12  # in the path of a webhook, which has ordinary words as well


@dataclass(frozen=True)
class Audience:
    """The recipients of a pipeline that can be reached, and the names of those that cannot."""

    recipients: tuple[Recipient, ...] = ()
    missing: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    patience: Patience = PATIENCE

    def __repr__(self) -> str:
        return f"Audience({', '.join(recipient.name for recipient in self.recipients)})"

    def dispatcher(self) -> Dispatcher:
        """A fresh dispatcher to these recipients."""
        return Dispatcher(self.recipients, secrets=self.secrets, patience=self.patience)


NOBODY = Audience()


def audience_of(pipeline: Pipeline, settings: Settings, patience: Patience = PATIENCE) -> Audience:
    """Who is told of the repairs of the pipeline. Opens nothing. Raises SettingsError for an address that nothing can use."""
    found, missing = [], []
    for name in dict.fromkeys(pipeline.recipients):
        reached = settings.recipients.get(name)
        if reached is None:
            missing.append(name)
        else:
            channels = tuple(AppriseChannel(url.get_secret_value()) for url in reached.urls)
            found.append(Recipient(name, channels, frozenset(reached.events)))
    return Audience(tuple(found), tuple(missing), tuple(_secrets(settings)), patience)


def unknown_recipients(pipeline: Pipeline, settings: Settings) -> str:
    """One sentence about recipients that are named and not reachable; empty when there are none, or none is set up at all.

    A machine without any is one on which nobody wants to be told, such as a laptop.
    """
    missing = audience_of(pipeline, settings).missing
    if not missing or not settings.recipients:
        return ""
    return (
        f"pipeline {pipeline.name}: nobody is told as {', '.join(missing)}, because BACKFILL_RECIPIENTS has only "
        f"{', '.join(settings.recipients)}"
    )


def web_address(settings: Settings) -> str:
    """Where the web page is: the address set for others, else the local one while `backfill up` runs; empty for neither."""
    if settings.web_url:
        return settings.web_url.rstrip("/")
    try:
        return str(json.loads(settings.services_file.read_text())["web_url"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _secrets(settings: Settings) -> Iterable[str]:
    """All that no message may hold: addresses of recipients, passwords, and URLs with credentials, as wholes and in parts."""
    found: list[str] = []
    for recipient in settings.recipients.values():
        for secret in recipient.urls:
            url = secret.get_secret_value()
            parts = urlsplit(url)
            # Errors show it without its host, or in pieces: /services/TEAM/CHANNEL/TOKEN.
            # A host that can be looked up is no secret, and pages of runs may be on it; in other schemes it is a token.
            host = "" if "." in parts.netloc and "@" not in parts.netloc else parts.netloc
            words = [word for word in (host, *parts.path.split("/")) if len(word) >= _SHORTEST_TOKEN]
            found += [url, parts.path, parts.path.lstrip("/").partition("/")[2], parts.query, *words]
            found += [parts.password or "", unquote(parts.password or "")]
    urls = [settings.lake_catalog_uri or "", settings.s3_endpoint_url or ""]
    if settings.clickhouse_url is not None:
        urls.append(settings.clickhouse_url.get_secret_value())
    for url in urls:
        password = urlsplit(url).password or ""
        found += [password, unquote(password)]
    return {secret for secret in found if len(secret) >= _SHORTEST_SECRET}
