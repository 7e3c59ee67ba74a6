"""The HTTP side of the embedded warehouse: requests of clickhouse-connect, answered by the engine (`engine.py`).

Contains the web application and its server. Only the server process imports it; `server.py` starts that, and lists what this
server leaves out.
"""

import gzip
import json
import logging
import os
import re
import socket
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator
from types import FrameType

import lz4.frame
import uvicorn
import zstandard
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from backfill_platform.devstack.embedded_clickhouse.engine import Call, Engine
from backfill_platform.devstack.embedded_clickhouse.statement import StatementError

GRACE_SECONDS = 10.0  # how long a shutdown lets running statements finish before it cancels them
KEEP_ALIVE_SECONDS = 3600  # long: the client should close an idle connection first, because it may not repeat every statement

_LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost"})
_FORM_FIELD = re.compile(rb'name="([^"]*)"(; *filename=)?')

_log = logging.getLogger(__name__)


def _lz4_frames(body: memoryview) -> Iterator[bytes]:
    while body:  # one call of `decompress` stops, silently, after the first frame
        data, length = lz4.frame.decompress(body, return_bytes_read=True)
        body = body[length:]
        yield data


def _zstd_frames(body: bytes) -> Iterator[bytes]:
    while body:  # the readers over all frames take a frame that is cut short for the end
        frame = zstandard.ZstdDecompressor().decompressobj()
        yield frame.decompress(body)
        if not frame.eof:
            raise EOFError("the last frame is cut short")
        body = frame.unused_data


def _decompressed(body: bytes, encoding: str) -> bytes:
    """Undo the Content-Encoding of a request; clickhouse-connect sends one lz4 or zstd frame per chunk."""
    try:
        match encoding:
            case "" | "identity":
                return body
            case "lz4":
                return b"".join(_lz4_frames(memoryview(body)))
            case "zstd":
                return b"".join(_zstd_frames(body))
            case "gzip":
                return gzip.decompress(body)
            case "deflate":
                return zlib.decompress(body)
    except (RuntimeError, EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        raise StatementError.own(271, "CANNOT_DECOMPRESS", f"Cannot decompress the request: {error}") from error
    raise StatementError.own(89, "UNKNOWN_COMPRESSION_METHOD", f"Unknown compression method: {encoding}")


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
        body = _decompressed(body, request.headers.get("content-encoding", ""))
        content_type = request.headers.get("content-type", "")
        if content_type.startswith("multipart/form-data"):
            values, body = {**values, **_form(content_type, body)}, b""
        call = Call.read(values, body, read_only=request.method == "GET")
        answer = engine.run(call)
    except StatementError as error:
        # Any status but 429, 503 and 504 will do: at those the client tries again by itself.
        headers["X-ClickHouse-Exception-Code"] = str(error.code)
        version = f" (version {engine.version})"
        return PlainTextResponse(f"{str(error).removesuffix(version)}{version}\n", 500, headers)
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


def _application(engine: Engine) -> Starlette:
    async def ping(_: Request) -> Response:
        return PlainTextResponse("Ok.\n")

    async def statement(request: Request) -> Response:
        # Only the loopback address protects this server, so a web page that is open in a browser must be refused.
        if "origin" in request.headers or request.url.hostname not in _LOCAL_HOSTS:
            return PlainTextResponse("This server answers local programs only, not web pages.\n", 403)
        if request.method == "GET" and "query" not in request.query_params:
            return PlainTextResponse("Ok.\n")
        return await run_in_threadpool(_respond, engine, request, await request.body())

    return Starlette(routes=[Route("/", statement, methods=["GET", "POST"]), Route("/ping", ping)])


class Server(uvicorn.Server):
    """The web server over one engine; `run` returns when `stop` is set or a signal asks for it.

    `on_ready` is called once it answers, `on_stopping` as soon as it takes no more requests.
    """

    def __init__(
        self, engine: Engine, stop: threading.Event, *, on_ready: Callable[[], None], on_stopping: Callable[[], None]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                _application(engine),
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
