"""One way to put each channel through the same test."""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from backfill_platform.adapters.delivery.channel import Channel
from backfill_platform.adapters.delivery.command import Command
from backfill_platform.adapters.delivery.mail import Mail
from backfill_platform.adapters.delivery.webhook import Webhook
from backfill_platform_tests.adapters.delivery.servers import Answer, Hook, Post, hook_server, mail_server

TIMEOUT = 2.0
TOKEN = "T0KEN/B0SS/xoxSecretPath"

# Ends with the next of its exit codes, after it has kept what it was told.
SCRIPT = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
told = sys.stdin.read()
number = len(list(folder.glob("try-*")))
(folder / f"try-{number}").write_text(told)
codes = json.loads((folder / "codes").read_text())
code = codes[number] if number < len(codes) else 0
if code == -1:
    time.sleep(60)
if not code:
    (folder / f"told-{number}").write_text(told)
sys.exit(code)
"""


class Rig(Protocol):
    """A channel and the other end of it."""

    channel: Channel
    secret: str

    def got(self) -> list[tuple[str, str]]:
        """Subjects and texts that have arrived."""

    def tries(self) -> int:
        """How often it was tried."""

    def be_busy(self, times: int) -> None:
        """Put off what comes next, so many times."""

    def refuse(self) -> None:
        """Refuse what comes next for good."""

    def hang(self) -> None:
        """Do not answer what comes next."""


@dataclass
class WebhookRig:
    hook: Hook

    def __post_init__(self) -> None:
        self.secret = TOKEN
        self.channel: Channel = Webhook(f"{self.hook.url}/services/{TOKEN}", timeout=TIMEOUT)

    def got(self) -> list[tuple[str, str]]:
        found = []
        for text in self.hook.texts:
            subject, _, rest = text.partition("\n")
            plain = [part.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for part in (subject[1:-1], rest)]
            found.append((plain[0], plain[1]))
        return found

    def tries(self) -> int:
        return len(self.hook.requests)

    def be_busy(self, times: int) -> None:
        self.hook.answers += [Answer(503 if number % 2 else 500) for number in range(times)]

    def refuse(self) -> None:
        self.hook.answers.append(Answer(404))

    def hang(self) -> None:
        self.hook.answers.append(Answer(after=TIMEOUT + 3))


@dataclass
class MailRig:
    post: Post

    def __post_init__(self) -> None:
        self.secret = "sm7p-Pass"
        self.channel: Channel = Mail(
            host="127.0.0.1",
            port=self.post.port,
            sender="backfill@example.org",
            to=("a@example.org", "b@example.org"),
            security="none",
            password=self.secret,
            timeout=TIMEOUT,
        )

    def got(self) -> list[tuple[str, str]]:
        return [(mail["Subject"], mail.get_content().rstrip("\n")) for _, mail in self.post.mails]

    def tries(self) -> int:
        return self.post.tries

    def be_busy(self, times: int) -> None:
        self.post.answers += ["451 later"] * times

    def refuse(self) -> None:
        self.post.answers.append("550 never")

    def hang(self) -> None:
        self.post.after = TIMEOUT + 3


@dataclass
class CommandRig:
    folder: Path

    def __post_init__(self) -> None:
        self.secret = "argument-secret"
        self.codes: list[int] = []
        self._keep()
        self.channel: Channel = Command((sys.executable, "-c", SCRIPT, str(self.folder), self.secret), timeout=TIMEOUT)

    def _keep(self) -> None:
        (self.folder / "codes").write_text(json.dumps(self.codes))

    def got(self) -> list[tuple[str, str]]:
        told = [json.loads(path.read_text()) for path in sorted(self.folder.glob("told-*"))]
        return [(one["subject"], one["text"]) for one in told]

    def tries(self) -> int:
        return len(list(self.folder.glob("try-*")))

    def be_busy(self, times: int) -> None:
        self.codes += [75] * times
        self._keep()

    def refuse(self) -> None:
        self.codes.append(3)
        self._keep()

    def hang(self) -> None:
        self.codes.append(-1)
        self._keep()


@contextmanager
def rig(kind: str, folder: Path) -> Iterator[Rig]:
    """A channel of the kind with its other end."""
    if kind == "webhook":
        with hook_server() as hook:
            yield WebhookRig(hook)
    elif kind == "email":
        with mail_server() as post:
            yield MailRig(post)
    else:
        yield CommandRig(folder)


def appends_to(path: Path) -> list[str]:
    """A command that appends each message to a file, a line for each."""
    return ["sh", "-c", f"cat >> {shlex.quote(str(path))}; echo >> {shlex.quote(str(path))}"]
