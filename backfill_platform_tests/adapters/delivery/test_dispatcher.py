"""The one door out: in the background, in order, bounded in time, and without secrets."""

import json
import time
from pathlib import Path

from backfill_platform.adapters.delivery.command import Command
from backfill_platform.adapters.delivery.dispatcher import Dispatcher, Patience, Recipient
from backfill_platform.adapters.delivery.webhook import Webhook
from backfill_platform.domain.notification import Notification, NotificationKind
from backfill_platform_tests.adapters.delivery.rigs import appends_to
from backfill_platform_tests.adapters.delivery.servers import Answer, hook_server

EVERYTHING = frozenset(NotificationKind)


def message(kind: NotificationKind, subject: str = "subject", text: str = "text") -> Notification:
    return Notification((kind,), "logins", subject, text, {"error": text, "rows": [1, {"why": text}]})


def test_a_recipient_gets_the_kinds_it_wants_in_order_by_all_its_channels(tmp_path: Path) -> None:
    with hook_server() as hook:
        path = tmp_path / "told"
        picky = Recipient(
            "picky",
            (Webhook(hook.url), Command(appends_to(path))),
            frozenset({NotificationKind.WAITING, NotificationKind.FAILED}),
        )
        dispatcher = Dispatcher([picky], patience=Patience(20, 0.01))
        for number, kind in enumerate(
            (NotificationKind.STARTED, NotificationKind.FAILED, NotificationKind.FINISHED, NotificationKind.WAITING)
        ):
            dispatcher.post(message(kind, f"number {number}"))
        became = dispatcher.close()
        assert [text.partition("\n")[0] for text in hook.texts] == ["*number 1*", "*number 3*"]
        assert [json.loads(line)["subject"] for line in path.read_text().splitlines()] == ["number 1", "number 3"]
        assert [(one.channel, one.problem) for one in became] == [("webhook", "")] * 2 + [("command", "")] * 2


def test_a_message_of_two_kinds_comes_once() -> None:
    with hook_server() as hook:
        dispatcher = Dispatcher([Recipient("all", (Webhook(hook.url),), EVERYTHING)])
        dispatcher.post(Notification((NotificationKind.FAILED, NotificationKind.WAITING), "logins", "s", "t"))
        dispatcher.close()
        assert len(hook.requests) == 1


def test_posting_does_not_wait_and_closing_waits_no_longer_than_the_patience() -> None:
    with hook_server() as slow, hook_server() as quick:
        slow.answers = [Answer(after=30)] * 4
        recipients = [
            Recipient("slow", (Webhook(slow.url),), EVERYTHING),
            Recipient("quick", (Webhook(quick.url),), EVERYTHING),
        ]
        dispatcher = Dispatcher(recipients, patience=Patience(1.0, 0.01))
        began = time.monotonic()
        dispatcher.post(message(NotificationKind.STARTED))
        dispatcher.post(message(NotificationKind.FINISHED))
        assert time.monotonic() - began < 0.5
        became = dispatcher.close()
        assert time.monotonic() - began < 3
        assert [(one.recipient, bool(one.problem)) for one in became] == [("slow", True)] * 2 + [("quick", False)] * 2
        assert len(quick.requests) == 2


def test_a_message_that_is_tried_again_gives_way_to_a_newer_one() -> None:
    with hook_server() as hook:
        hook.answers = [Answer(500)]
        dispatcher = Dispatcher([Recipient("all", (Webhook(hook.url),), EVERYTHING)], patience=Patience(20, 0.5))
        dispatcher.post(message(NotificationKind.STARTED, "old"))
        dispatcher.post(message(NotificationKind.FAILED, "new"))
        became = dispatcher.close()
        assert [(one.subject, bool(one.problem)) for one in became] == [("old", True), ("new", False)]


def test_no_secret_leaves_in_any_part_of_a_message(tmp_path: Path) -> None:
    path = tmp_path / "told"
    text = "cannot read https://u:hidden1@host/x, or with hidden-password-2"
    with hook_server() as hook:
        both = Recipient("both", (Webhook(hook.url), Command(appends_to(path))), EVERYTHING)
        dispatcher = Dispatcher([both], secrets=["hidden-password-2"])
        dispatcher.post(message(NotificationKind.FAILED, f"subject {text}\nnext: {text}", text))
        dispatcher.close()
        told = json.dumps(hook.texts) + path.read_text()
        assert "hidden" not in told
        assert told.count("***@host") == 2 + 2 + 4  # subject and text, and in the file two facts as well, one of them twice
        assert "\n" not in json.loads(path.read_text())["subject"]


def test_a_channel_with_a_bug_is_reported_and_harms_nobody() -> None:
    class Broken:
        name = "broken"

        def send(self, message: Notification) -> None:
            raise KeyError("secret")

    dispatcher = Dispatcher([Recipient("all", (Broken(),), EVERYTHING)])
    dispatcher.post(message(NotificationKind.FAILED))
    (became,) = dispatcher.close()
    assert became.problem == "the channel broke (KeyError)"
