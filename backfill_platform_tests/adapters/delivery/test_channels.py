"""What every channel does, in one body of tests, and what each does in its own way."""

import logging
import socket
import ssl
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from backfill_platform.adapters.delivery.command import Command
from backfill_platform.adapters.delivery.dispatcher import Patience, deliver
from backfill_platform.adapters.delivery.mail import Mail
from backfill_platform.adapters.delivery.webhook import Webhook
from backfill_platform.domain.notification import Notification, NotificationKind
from backfill_platform.errors import ChannelUnavailable, Undeliverable
from backfill_platform_tests.adapters.delivery.rigs import TIMEOUT, TOKEN, Rig, rig
from backfill_platform_tests.adapters.delivery.servers import Answer, Hook, Post, hook_server, mail_server
from backfill_platform_tests.fixtures_warehouse import wait_until

MESSAGE = Notification(
    (NotificationKind.FAILED,),
    "clickstream",
    "[backfill] clickstream: 3 < 4 & naïve",
    "What was wrong: a *broker* <!channel>\n. a line with a dot\n- 1,758 rows → 4,446 & more",
    {"repair": "r1"},
)
SOON = Patience(seconds=20, pause=0.01)


@pytest.fixture(params=["webhook", "email", "command"])
def end(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    with rig(request.param, tmp_path) as found:
        yield found


def test_a_message_arrives_as_it_is(end: Rig) -> None:
    deliver(end.channel, MESSAGE, SOON)
    assert end.got() == [(MESSAGE.subject, MESSAGE.text)]


def test_what_is_put_off_is_tried_again_until_it_arrives(end: Rig) -> None:
    end.be_busy(2)
    deliver(end.channel, MESSAGE, SOON)
    assert end.tries() == 3
    assert end.got()[-1] == (MESSAGE.subject, MESSAGE.text)


def test_what_is_refused_is_tried_once(end: Rig) -> None:
    end.refuse()
    with pytest.raises(Undeliverable):
        deliver(end.channel, MESSAGE, SOON)
    assert end.tries() == 1


def test_what_is_put_off_for_ever_is_given_up_in_time(end: Rig) -> None:
    end.be_busy(1000)
    began = time.monotonic()
    with pytest.raises(ChannelUnavailable):
        deliver(end.channel, MESSAGE, Patience(seconds=1.5, pause=0.2))
    assert time.monotonic() - began < 1.5 + TIMEOUT
    assert 2 <= end.tries() <= 5


def test_one_that_does_not_answer_is_left(end: Rig) -> None:
    end.hang()
    began = time.monotonic()
    with pytest.raises((ChannelUnavailable, Undeliverable)):
        deliver(end.channel, MESSAGE, Patience(seconds=0.5, pause=0.1))
    assert TIMEOUT <= time.monotonic() - began < TIMEOUT + 2.5


@pytest.mark.parametrize("trouble", ["refuse", "be_busy", "hang"])
def test_no_error_repr_or_log_has_the_secret(end: Rig, trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (lambda: end.be_busy(1000))() if trouble == "be_busy" else getattr(end, trouble)()
    with pytest.raises((ChannelUnavailable, Undeliverable)) as caught:
        deliver(end.channel, MESSAGE, Patience(seconds=0.1, pause=0.05))
    chain: BaseException | None = caught.value
    while chain is not None:
        assert end.secret not in str(chain)
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    assert end.secret not in repr(end.channel) + end.channel.name + caplog.text


@pytest.fixture
def hook() -> Iterator[Hook]:
    with hook_server() as found:
        yield found


def test_a_webhook_gets_json_in_which_slack_sees_no_markup_of_ours(hook: Hook) -> None:
    Webhook(f"{hook.url}/services/{TOKEN}").send(MESSAGE)
    ((path, kind, body),) = hook.requests
    assert (path, kind) == (f"/services/{TOKEN}", "application/json")
    assert "&lt;!channel&gt;" in body["text"]
    assert "<" not in body["text"]


@pytest.mark.parametrize("after", ["1", "date"])
def test_a_webhook_is_left_alone_for_as_long_as_it_asks(hook: Hook, after: str) -> None:
    value = after if after == "1" else formatdate(time.time() + 2.5, usegmt=True)
    hook.answers = [Answer(429, {"Retry-After": value})]
    deliver(Webhook(hook.url), MESSAGE, SOON)
    assert hook.times[1] - hook.times[0] >= 1


def test_a_webhook_that_asks_for_more_than_we_have_is_given_up_at_once(hook: Hook) -> None:
    hook.answers = [Answer(429, {"Retry-After": "3600"})]
    began = time.monotonic()
    with pytest.raises(ChannelUnavailable, match="429"):
        deliver(Webhook(hook.url), MESSAGE, SOON)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("status", [301, 307, 400, 403, 404, 410])
def test_a_webhook_that_refuses_or_moves_is_tried_once(hook: Hook, status: int) -> None:
    hook.answers = [Answer(status, {"Location": f"{hook.url}/elsewhere"})]
    with pytest.raises(Undeliverable, match=str(status)):
        deliver(Webhook(hook.url), MESSAGE, SOON)
    assert len(hook.requests) == 1


def test_nobody_at_the_port_may_be_a_restart() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        # What requests says of a lost connection holds the whole path.
        with pytest.raises(ChannelUnavailable, match="does not answer") as caught:
            Webhook(f"http://127.0.0.1:{port}/{TOKEN}").send(MESSAGE)
        assert TOKEN not in "".join(traceback.format_exception(caught.value))
        with pytest.raises(ChannelUnavailable, match="does not answer"):
            Mail(host="127.0.0.1", port=port, sender="a@b.c", to=("d@e.f",), security="none").send(MESSAGE)


@pytest.fixture
def post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Post]:
    """A mail server with a certificate that this process trusts."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with mail_server(context) as found:
        found.password = "sm7p-Pass"
        yield found


def mail(port: int, password: str = "sm7p-Pass", to: tuple[str, ...] = ("a@example.org",)) -> Mail:
    sender = "backfill@example.org"
    return Mail(host="localhost", port=port, sender=sender, to=to, security="starttls", user="me", password=password, timeout=5)


def test_a_mail_is_encrypted_before_the_password_is_said(post: Post) -> None:
    mail(post.port).send(MESSAGE)
    assert post.logins == [("me", "sm7p-Pass")]
    ((to, got),) = post.mails
    assert (to, got["To"], got["From"]) == (["a@example.org"], "a@example.org", "backfill@example.org")
    assert got["Auto-Submitted"] == "auto-generated"
    assert got["Message-ID"].endswith("@example.org>")


def test_a_wrong_password_is_not_repeated_by_the_error(post: Post) -> None:
    with pytest.raises(Undeliverable, match="535") as caught:
        mail(post.port, "an0ther-Pass").send(MESSAGE)
    assert "an0ther-Pass" not in str(caught.value)


def test_a_mail_server_without_encryption_or_with_a_strange_certificate_gets_nothing(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(Undeliverable, match="not trusted"):
        mail(post.port).send(MESSAGE)
    with mail_server() as plain, pytest.raises(Undeliverable, match="does not offer"):
        mail(plain.port).send(MESSAGE)
    assert not post.logins


def test_a_recipient_who_is_refused_is_counted_and_the_others_get_it(post: Post) -> None:
    with pytest.raises(Undeliverable, match="1 of 2 recipients"):
        mail(post.port, to=("a@example.org", "nobody@example.org")).send(MESSAGE)
    assert len(post.mails) == 1
    with pytest.raises(Undeliverable, match="every recipient: 550"):
        mail(post.port, to=("nobody@example.org",)).send(MESSAGE)


def test_a_command_past_its_time_is_killed_with_its_children(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    child = f"import time\nwhile True:\n    open({str(alive)!r}, 'a').write('x'); time.sleep(0.05)"
    code = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    with pytest.raises(Undeliverable, match="not done within 1"):
        Command((sys.executable, "-c", code), timeout=1.5).send(MESSAGE)

    def still() -> bool:
        size = alive.stat().st_size if alive.exists() else 0
        time.sleep(0.3)
        return (alive.stat().st_size if alive.exists() else 0) == size

    wait_until(still, seconds=5)


def test_a_command_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(Undeliverable, match="No such file") as caught:
        Command((str(tmp_path / "missing"), "--token=abcdef")).send(MESSAGE)
    assert "abcdef" not in str(caught.value)


def test_a_command_that_does_not_read_is_fine() -> None:
    Command(("true",)).send(MESSAGE)
