"""An HTTP proxy before the warehouse that can lose answers, and whose server may be replaced."""

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Drop = Callable[[int, str], bool]


class Proxy:
    """Forwards requests to `upstream`, which may be changed.

    `drop` is called after the server has answered, with the number of the request and its statement; where it returns True, the
    answer is lost.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.requests = 0
        self.drop: Drop = lambda number, statement: False
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        secret = urlsplit(upstream).netloc.rpartition("@")[0]
        self.url = f"http://{secret}@127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def count_request(self) -> int:
        """The number of the next request."""
        with self._lock:
            self.requests += 1
            return self.requests

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.forward(b"")

    def do_POST(self) -> None:
        self.forward(self.body())

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().strip().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def forward(self, body: bytes) -> None:
        number = self.proxy.count_request()
        address = urlsplit(self.proxy.upstream)
        line = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        headers = {n: v for n, v in self.headers.items() if n.lower() not in ("transfer-encoding", "host", "connection")}
        headers["Content-Length"] = str(len(body))
        try:
            line.request(self.command, self.path, body, headers)
            answer = line.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self.close_connection = True
            return
        finally:
            line.close()
        if self.proxy.drop(number, self.path + body[:2000].decode("utf-8", "replace")):
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass
