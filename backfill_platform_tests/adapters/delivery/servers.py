"""What messages are sent to in tests, on loopback: a web hook and a mail server that do as they are told, and remember."""

import base64
import json
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """How the hook answers once: after so many seconds, with a status and headers."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    after: float = 0.0


@dataclass
class Hook:
    """A webhook; `answers` are used up one by one, and then everything is fine."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        """Subject and text of the requests, whether they were answered well or not."""
        return [f"{body['title']}\n{body['message']}" for _, _, body in self.requests]

    def address(self, path: str = "") -> str:
        """The hook as Apprise writes it."""
        return self.url.replace("http://", "json://") + path

    def texts_at(self, path: str) -> list[str]:
        """Those of a path."""
        return [f"{body['title']}\n{body['message']}" for at, _, body in self.requests if at.startswith(path)]


@contextmanager
def hook_server() -> Iterator[Hook]:
    """A server on a free port; it accepts any path."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = hook.answers.pop(0) if hook.answers else Answer()
            hook.times.append(time.monotonic())
            hook.requests.append((self.path, self.headers["Content-Type"], json.loads(body)))
            time.sleep(answer.after)
            with suppress(OSError):
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        hook.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield hook
        server.shutdown()


@dataclass
class Post:
    """A mail server; `answers` are what it says to MAIL, one by one, and then everything is fine."""

    port: int = 0
    answers: list[str] = field(default_factory=list)
    mails: list[tuple[list[str], Any]] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    tries: int = 0
    password: str = ""
    after: float = 0.0


@contextmanager
def mail_server(tls: ssl.SSLContext | None = None) -> Iterator[Post]:
    """A server on a free port, which offers STARTTLS and logins where it has a certificate."""
    post = Post()

    class Handler(socketserver.StreamRequestHandler):
        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def handle(self) -> None:
            with suppress(OSError):
                self.talk()

        def talk(self) -> None:
            time.sleep(post.after)
            self.say("220 here")
            to: list[str] = []
            encrypted = False
            while line := self.rfile.readline().decode().strip():
                verb, _, rest = line.partition(" ")
                verb = verb.upper()
                if verb == "EHLO":
                    offers = ["AUTH PLAIN"] if encrypted else ["STARTTLS"] if tls else []
                    self.say("250-here")
                    for offer in offers:
                        self.say(f"250-{offer}")
                    self.say("250 8BITMIME")
                elif verb == "STARTTLS" and tls:
                    self.say("220 go on")
                    self.connection = tls.wrap_socket(self.connection, server_side=True)
                    self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
                    encrypted = True
                elif verb == "AUTH":
                    _, user, password = base64.b64decode(rest.split()[1]).decode().split("\0")
                    post.logins.append((user, password))
                    self.say("235 welcome" if password == post.password else f"535 {user} with {password}: no")
                elif verb == "MAIL":
                    post.tries += 1
                    self.say(post.answers.pop(0) if post.answers else "250 ok")
                elif verb == "RCPT":
                    to.append(rest.partition("<")[2].partition(">")[0])
                    self.say("550 nobody here" if to[-1].startswith("nobody") else "250 ok")
                elif verb == "DATA":
                    self.say("354 go on")
                    lines = []
                    while (read := self.rfile.readline().rstrip(b"\r\n")) != b".":
                        lines.append(read.removeprefix(b"."))
                    post.mails.append((to, message_from_bytes(b"\n".join(lines), policy=policy.default)))
                    self.say("250 kept")
                elif verb == "QUIT":
                    self.say("221 bye")
                    return
                else:
                    self.say("250 ok")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        post.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield post
        server.shutdown()
