"""What of the recipients' addresses no message may hold, and what it may."""

from dataclasses import replace

import pytest
from pydantic import SecretStr

from backfill_platform.domain.notification import NotificationKind
from backfill_platform.examples import clickstream
from backfill_platform.notifications.recipients import audience_of
from backfill_platform.settings import RecipientSettings, Settings

PIPELINE = replace(clickstream.pipeline, recipients=("web-team",))


def cleaned(url: str, text: str) -> str:
    recipient = RecipientSettings(urls=(SecretStr(url),), events=(NotificationKind.FAILED,))
    secrets = audience_of(PIPELINE, Settings(recipients={"web-team": recipient})).secrets
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def test_a_host_that_is_looked_up_is_no_secret() -> None:
    assert (
        cleaned("jsons://ops.example.com/hook", "see https://ops.example.com/runs/abc")
        == "see https://ops.example.com/runs/abc"
    )


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("jsons://ops.example.com/hooks/0123456789abcdef", "0123456789abcdef"),
        ("jsons://ada:p%40ssw0rd@ops.example.com/hook", "p@ssw0rd"),
        ("jsons://ada:p%40ssw0rd@ops.example.com/hook", "p%40ssw0rd"),
        ("tgram://123456789012:abcdefghijkl/4242", "123456789012:abcdefghijkl"),
    ],
)
def test_tokens_and_passwords_are_secrets_in_every_form(url: str, secret: str) -> None:
    assert secret not in cleaned(url, f"delivery to {secret} failed")
