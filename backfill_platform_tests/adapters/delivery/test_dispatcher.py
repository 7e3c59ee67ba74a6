"""The one door out: in the background, in order, bounded in time, and without secrets."""

import json
import time

from backfill_platform.adapters.delivery.channel import AppriseChannel
from backfill_platform.adapters.delivery.dispatcher import Dispatcher, Patience, Recipient
from backfill_platform.domain.notification import Notification, NotificationKind
from backfill_platform_tests.adapters.delivery.servers import Answer, hook_server

EVERYTHING = frozenset(NotificationKind)


def message(kind: NotificationKind, subject: str = "subject", text: str = "text") -> Notification:
    return Notification((kind,), "logins", subject, text)


def test_a_recipient_gets_the_kinds_it_wants_in_order_at_all_its_addresses() -> None:
    with hook_server() as hook:
        channels = (AppriseChannel(hook.address("/one")), AppriseChannel(hook.address("/two")))
        picky = Recipient("picky", channels, frozenset({NotificationKind.WAITING, NotificationKind.FAILED}))
        dispatcher = Dispatcher([picky], patience=Patience(20, 0.01))
        kinds = (NotificationKind.STARTED, NotificationKind.FAILED, NotificationKind.FINISHED, NotificationKind.WAITING)
        for number, kind in enumerate(kinds):
            dispatcher.post(message(kind, f"number {number}"))
        became = dispatcher.close()
        for path in ("/one", "/two"):
            assert hook.texts_at(path) == ["number 1\ntext", "number 3\ntext"]
        assert [(one.channel, one.problem) for one in became] == [("JSON", "")] * 4


def test_a_message_of_two_kinds_comes_once() -> None:
    with hook_server() as hook:
        dispatcher = Dispatcher([Recipient("all", (AppriseChannel(hook.address()),), EVERYTHING)])
        dispatcher.post(Notification((NotificationKind.FAILED, NotificationKind.WAITING), "logins", "s", "t"))
        dispatcher.close()
        assert len(hook.requests) == 1


def test_posting_does_not_wait_and_closing_waits_no_longer_than_the_patience() -> None:
    with hook_server() as slow, hook_server() as quick:
        slow.answers = [Answer(after=30)] * 4
        recipients = [
            Recipient("slow", (AppriseChannel(slow.address()),), EVERYTHING),
            Recipient("quick", (AppriseChannel(quick.address()),), EVERYTHING),
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
        dispatcher = Dispatcher([Recipient("all", (AppriseChannel(hook.address()),), EVERYTHING)], patience=Patience(20, 0.5))
        dispatcher.post(message(NotificationKind.STARTED, "old"))
        dispatcher.post(message(NotificationKind.FAILED, "new"))
        became = dispatcher.close()
        assert [(one.subject, bool(one.problem)) for one in became] == [("old", True), ("new", False)]


def test_no_secret_leaves_in_any_part_of_a_message() -> None:
    text = "cannot read https://u:hidden1@host/x, or with hidden-password-2"
    with hook_server() as hook:
        dispatcher = Dispatcher(
            [Recipient("all", (AppriseChannel(hook.address()),), EVERYTHING)], secrets=["hidden-password-2"]
        )
        dispatcher.post(message(NotificationKind.FAILED, f"subject {text}\nnext: {text}", text))
        dispatcher.close()
        ((_, _, body),) = hook.requests
        assert "hidden" not in json.dumps(body)
        assert json.dumps(body).count("***@host") == 3
        assert "\n" not in body["title"]


def test_a_channel_with_a_bug_is_reported_and_harms_nobody() -> None:
    class Broken:
        name = "broken"

        def send(self, message: Notification) -> None:
            raise KeyError("secret")

    dispatcher = Dispatcher([Recipient("all", (Broken(),), EVERYTHING)])
    dispatcher.post(message(NotificationKind.FAILED))
    (became,) = dispatcher.close()
    assert became.problem == "the channel broke (KeyError)"
