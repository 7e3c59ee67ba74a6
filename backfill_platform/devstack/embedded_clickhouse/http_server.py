"""The HTTP side of the embedded warehouse: requests of clickhouse-connect, answered by the engine (`engine.py`).

Contains the web application and its server. Only the server process imports it; `server.py` starts that, and lists what this
server leaves out.
"""

import base64
import gzip
import hmac
import json
import logging
import os
import re
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import anyio
import anyio.to_thread
import lz4.frame
import uvicorn
import zstandard
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from backfill_platform.adapters.clickhouse.embedded_endpoint import HOST
from backfill_platform.devstack.embedded_clickhouse.body import MOST_BYTES, decompressed, too_large
from backfill_platform.devstack.embedded_clickhouse.engine import Call, Engine
from backfill_platform.devstack.embedded_clickhouse.statement import StatementError

GRACE_SECONDS = 10.0  # how long a shutdown lets running statements finish before it cancels them
KEEP_ALIVE_SECONDS = 3600  # long: the client should close an idle connection first, because it may not repeat every statement

MOST_READERS = 16  # statements by GET at a time
MOST_STATEMENTS = 128

_NOT_AUTHENTIC = "default: Authentication failed: every statement brings the secret of the data folder as the password"
_FORM_FIELD = re.compile(rb'name="([^"]*)"(; *filename=)?')

_log = logging.getLogger(__name__)


def _compressed(body: bytes, accepted: str) -> tuple[bytes, str | None]:
    """Compress an answer by the first accepted method that is known here."""
    for encoding in (part.partition(";")[0].strip() for part in accepted.split(",")):
        match encoding:
            case "lz4":
                return lz4.frame.compress(body), encoding
            case "zstd":
                return zstandard.ZstdCompressor(level=1).compress(body), encoding
            case "gzip":
                return gzip.compress(body, compresslevel=1), encoding
    return body, None


def _form(content_type: str, body: bytes) -> dict[str, str]:
    """The fields of a multipart form, which clickhouse-connect sends when bound parameters are long."""
    boundary = content_type.partition("boundary=")[2].partition(";")[0].strip('"')
    fields: dict[str, str] = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode())[1:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        field = _FORM_FIELD.search(head)
        if field is None or field[2]:
            raise StatementError.own(48, "NOT_IMPLEMENTED", "The embedded warehouse takes no external data")
        fields[field[1].decode()] = value.decode(errors="replace")
    return fields


def _respond(engine: Engine, request: Request, body: bytes) -> Response:
    """Answer one request; runs in a thread of its own."""
    values = dict(request.query_params)
    headers = {"X-ClickHouse-Query-Id": values.get("query_id") or str(uuid.uuid4()), "X-ClickHouse-Timezone": "UTC"}
    try:
        body = decompressed(body, request.headers.get("content-encoding", ""))
        content_type = request.headers.get("content-type", "")
        if content_type.startswith("multipart/form-data"):
            values, body = {**values, **_form(content_type, body)}, b""
        call = Call.read(values, body, read_only=request.method == "GET")
        answer = engine.run(call)
    except StatementError as error:
        # Any status but 429, 503 and 504 will do: at those the client tries again by itself.
        refused = _refused(engine, error, 500)
        refused.headers.update(headers)
        return refused
    headers["X-ClickHouse-Summary"] = json.dumps({name: str(count) for name, count in answer.counts.items()})
    headers["X-ClickHouse-Timezone"] = call.settings.get("session_timezone") or "UTC"
    if answer.format is not None:
        headers["X-ClickHouse-Format"] = answer.format
    body, encoding = answer.body, None
    if body and call.settings.get("enable_http_compression", engine.compresses) not in ("0", "false"):
        body, encoding = _compressed(body, request.headers.get("accept-encoding", ""))
    if encoding:
        headers["Content-Encoding"] = encoding
    return Response(body, 200, headers, media_type="application/octet-stream")


def application(engine: Engine, secret: str) -> Starlette:
    """The web application over an engine; each statement must bring the secret."""
    # Of their own, so that readers that sleep keep no thread from the statements that work.
    readers, workers = anyio.CapacityLimiter(MOST_READERS), anyio.CapacityLimiter(MOST_STATEMENTS)

    async def ping(_: Request) -> Response:
        return PlainTextResponse("Ok.\n")

    async def statement(request: Request) -> Response:
        if not _is_local(request):
            return PlainTextResponse("This server answers local programs only, not web pages.\n", 403)
        if request.method == "GET" and "query" not in request.query_params:
            return PlainTextResponse("Ok.\n")
        # What reads both in another order than we do, such as a proxy, would see another request.
        if "content-length" in request.headers and "transfer-encoding" in request.headers:
            return PlainTextResponse("A body has a length or an encoding, not both.\n", 400, {"Connection": "close"})
        if not _is_authentic(request, secret):
            return _refused(engine, StatementError.own(516, "AUTHENTICATION_FAILED", _NOT_AUTHENTIC), 403)
        try:
            body = await _body(request)
        except StatementError as error:
            return _refused(engine, error, 413)
        limiter = readers if request.method == "GET" else workers
        return await anyio.to_thread.run_sync(_respond, engine, request, body, limiter=limiter)

    return Starlette(routes=[Route("/", statement, methods=["GET", "POST"]), Route("/ping", ping)])


def _is_local(request: Request) -> bool:
    """Whether no browser sent the request: its pages may be anybody's, and a name of theirs may point at this machine."""
    _, port = request.scope["server"]
    # As it was sent: what a URL makes of `a@127.0.0.1` is 127.0.0.1.
    hosts = request.headers.getlist("host")
    is_ours = len(hosts) == 1 and hosts[0].lower() in (f"{HOST}:{port}", f"localhost:{port}")
    return is_ours and "origin" not in request.headers and "sec-fetch-site" not in request.headers


def _is_authentic(request: Request, secret: str) -> bool:
    """Whether the request brings the secret, by one of the two headers that clients of ClickHouse send."""
    given = request.headers.get("x-clickhouse-key", "")
    scheme, _, coded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):
            given = base64.b64decode(coded, validate=True).partition(b":")[2].decode()
    return hmac.compare_digest(given.encode(), secret.encode())


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise too_large(MOST_BYTES)
    return bytes(body)


def _refused(engine: Engine, error: StatementError, status: int) -> Response:
    version = f" (version {engine.version})"
    headers = {"X-ClickHouse-Exception-Code": str(error.code)}
    return PlainTextResponse(f"{str(error).removesuffix(version)}{version}\n", status, headers)


class Server(uvicorn.Server):
    """The web server over one engine; `run` returns when `stop` is set or a signal asks for it.

    `on_ready` is called once it answers, `on_stopping` as soon as it takes no more requests.
    """

    def __init__(
        self,
        application: Starlette,
        engine: Engine,
        stop: threading.Event,
        *,
        on_ready: Callable[[], None],
        on_stopping: Callable[[], None],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                lifespan="off",
                access_log=False,
                log_config=None,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                http="h11",  # httptools refuses addresses of more than 64 KiB; bound parameters of commands travel there
                h11_max_incomplete_event_size=1 << 20,  # ClickHouse's own limit
            )
        )
        self._engine = engine
        self._stop = stop
        self._on_ready = on_ready
        self._on_stopping = on_stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at a signal; unlike uvicorn's own, never at once, and without dying of the signal in the end."""
        self._stop.set()

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop; asked ten times a second."""
        return await super().on_tick(counter) or self._stop.is_set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then call `on_ready`."""
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish for GRACE_SECONDS, cancel the rest; leave the process if even that does not end them.

        Leaving a running statement behind is no loss: what ClickHouse confirmed is on disk.
        """
        self._on_stopping()
        for seconds, act in ((GRACE_SECONDS, self._cancel), (2 * GRACE_SECONDS, self._leave)):
            timer = threading.Timer(seconds, act)
            timer.daemon = True
            timer.start()
        await super().shutdown(sockets)

    def _cancel(self) -> None:
        _log.warning("cancelling the statements that still run %g s after the request to stop", GRACE_SECONDS)
        self._engine.cancel_all()

    def _leave(self) -> None:
        _log.warning("leaving while statements still run")
        os._exit(0)
