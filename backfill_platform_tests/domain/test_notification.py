"""What is taken out of texts before people see them, and what is left alone."""

import pytest

from backfill_platform.domain.notification import Notification, NotificationKind, redact
from backfill_platform.domain.visible_text import JOINER
from backfill_platform.reports.markdown import harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at http://ada:pa:ss%40@host:8123/x", "at http://***@host:8123/x"),
        ("postgresql+psycopg2://me:secret@db/lake", "postgresql+psycopg2://***@db/lake"),
        ("https://token@host", "https://***@host"),
        ("https://h/x?user=ada&password=abc&table=t", "https://h/x?user=ada&password=***&table=t"),
        ("https://h/x?X-Amz-Signature=abc&sig=d%2F&a=1", "https://h/x?X-Amz-Signature=***&sig=***&a=1"),
        ("aws_secret_access_key = abc, next", "aws_secret_access_key = ***, next"),
        ('{"password": "abc", "rows": 1}', '{"password": "***", "rows": 1}'),
        ("Authorization: Bearer abcdefghijklmnop", "Authorization: Bearer ***"),
        ("see https://hooks.slack.com/services/T0/B0/xyz.", "see https://hooks.slack.com/***"),
        ("url: /services/T01/B02/abc123 (Caused by", "url: /services/*** (Caused by"),
        ("discord.com/api/webhooks/123/abc-def/slack", "discord.com/api/webhooks/***/slack"),
    ],
)
def test_secrets_are_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "- warehouse/password_resets: 3 hours changed (1998-04-30 22:00 to 01:00 UTC)",
        "checks passed: 4; bypass: 2",
        "Run: http://127.0.0.1:3000/runs/1b2c",
        "s3://bucket/services/logs/hour=3/part.parquet",
        "backfill undo logins r20260101T000000-abc",
        "ada@example.org asked for basic numbers",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_known_secrets_are_hidden_wherever_they_are_the_longest_first() -> None:
    message = Notification((NotificationKind.FAILED,), "p", "abc-def and abc", "abc")
    clean = message.without(["abc", "abc-def"])
    assert (clean.subject, clean.text) == ("*** and ***", "***")


@pytest.mark.parametrize(
    "text",
    ["at http://ada:abcdefg@host:8123/x", "https://hooks.slack.com/services/T0/B0/abcdefg", "www.abcdefg", "of p@ss]w<rd://x!"],
)
def test_what_is_parted_so_that_it_becomes_no_link_is_hidden_too(text: str) -> None:
    assert JOINER in harmless(text)
    hidden = redact(harmless(text), ["www.abcdefg", "p@ss]w<rd://x"])
    assert "abcdefg" not in hidden
    assert "rd" not in hidden
