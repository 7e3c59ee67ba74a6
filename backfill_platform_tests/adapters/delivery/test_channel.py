"""Notifications by Apprise, against servers on this machine."""

import logging

import pytest

from backfill_platform.adapters.delivery.channel import AppriseChannel
from backfill_platform.adapters.delivery.dispatcher import Patience, deliver
from backfill_platform.domain.notification import Notification, NotificationKind
from backfill_platform.errors import ChannelUnavailable, SettingsError
from backfill_platform_tests.adapters.delivery.servers import Answer, hook_server, mail_server

MESSAGE = Notification((NotificationKind.WAITING,), "logins", "3 hours wait", "first <b>line</b> & more\nsecond *line*")
TOKEN = "xoxSecretPath"


def test_a_web_hook_gets_the_message_as_it_is() -> None:
    with hook_server() as hook:
        AppriseChannel(hook.address(f"/{TOKEN}")).send(MESSAGE)
        ((path, kind, body),) = hook.requests
    assert path.rstrip("/") == f"/{TOKEN}"
    assert kind == "application/json"
    assert (body["title"], body["message"], body["type"]) == (MESSAGE.subject, MESSAGE.text, "warning")


def test_a_mail_has_the_message_for_everybody() -> None:
    with mail_server() as post:
        url = f"mailto://127.0.0.1:{post.port}?from=backfill@example.org&to=ada@example.org,bob@example.org&mode=insecure"
        AppriseChannel(f"{url}&smtp=127.0.0.1&format=text").send(MESSAGE)
    assert {name for to, _ in post.mails for name in to} == {"ada@example.org", "bob@example.org"}
    assert {mail["Subject"] for _, mail in post.mails} == {MESSAGE.subject}
    assert "second *line*" in post.mails[0][1].as_string()


def test_what_is_not_taken_is_tried_again_until_it_arrives() -> None:
    with hook_server() as hook:
        hook.answers = [Answer(503), Answer(503)]
        deliver(AppriseChannel(hook.address()), MESSAGE, Patience(20, 0.01))
        assert len(hook.requests) == 3


def test_what_is_never_taken_is_given_up_in_time() -> None:
    with hook_server() as hook:
        hook.answers = [Answer(500)] * 100
        with pytest.raises(ChannelUnavailable):
            deliver(AppriseChannel(hook.address()), MESSAGE, Patience(0.5, 0.05))
        assert 1 < len(hook.requests) < 10


def test_a_redirect_is_not_followed() -> None:
    with hook_server() as hook, hook_server() as elsewhere:
        hook.answers = [Answer(307, {"Location": elsewhere.url})]
        with pytest.raises(ChannelUnavailable):
            AppriseChannel(hook.address()).send(MESSAGE)
        assert elsewhere.requests == []


def test_no_error_repr_or_log_has_the_address(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), hook_server() as hook:
        hook.answers = [Answer(404)]
        channel = AppriseChannel(hook.address(f"/{TOKEN}"))
        with pytest.raises(ChannelUnavailable) as caught:
            channel.send(MESSAGE)
    assert TOKEN not in caplog.text + repr(channel) + str(caught.value)
    assert TOKEN not in repr(caught.value.__context__)


def test_the_address_of_an_incoming_web_hook_of_slack_can_be_pasted() -> None:
    channel = AppriseChannel("https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ")
    assert channel.name == "Slack"


@pytest.mark.parametrize("url", [f"nonsense://{TOKEN}", f"slack://{TOKEN}", TOKEN])
def test_an_address_that_nothing_can_use_is_refused_without_saying_it(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        AppriseChannel(url)
    assert TOKEN not in str(caught.value)
