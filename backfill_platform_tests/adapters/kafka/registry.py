"""A schema registry for tests: the calls that Confluent's serializers make, over HTTP on a free loopback port."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def schema_registry() -> Iterator[str]:
    """Yields its address. Schemas get ids in the order they are first registered."""
    schemas: list[dict[str, object]] = []
    subjects: dict[str, list[int]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            schema = {name: sent[name] for name in ("schema", "schemaType", "references") if name in sent}
            if schema not in schemas:
                schemas.append(schema)
            number = schemas.index(schema) + 1
            subject = self.path.split("/")[2]
            versions = subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
            self._answer({"id": number, "subject": subject, "version": versions.index(number) + 1, **schema})

        def do_GET(self) -> None:
            parts = self.path.split("?")[0].split("/")
            if parts[1:3] == ["schemas", "ids"] and int(parts[3]) <= len(schemas):
                self._answer(schemas[int(parts[3]) - 1])
            else:
                self._answer({"error_code": 40403, "message": "not found"}, 404)

        def _answer(self, body: dict[str, object], status: int = 200) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
