"""Dagster's real web server behind the gate: what pages of others may not do, and what the web page and programs still can."""

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from backfill_platform.devstack.processes import answers_http, free_port
from backfill_platform_tests.fixtures_stack import ROOT
from backfill_platform_tests.fixtures_warehouse import wait_until

READS = "{ version }"
CHANGES = "mutation { setNuxSeen }"
SEEN = "{ shouldShowNux }"


@dataclass(frozen=True)
class Web:
    """A running web server."""

    port: int

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def send(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
        """One request with these headers alone; `_` stands for `-` in their names."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        named = {"host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        data = body.encode() if body is not None else b""
        for name, value in (named | ({"content-length": str(len(data))} if body is not None else {})).items():
            connection.putheader(name, value)
        connection.endheaders(data)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        connection.close()
        return answer.status, text

    def get(self, query: str, **headers: str) -> tuple[int, str]:
        return self.send("GET", f"/graphql?{urlencode({'query': query})}", **headers)

    def post(self, query: str, **headers: str) -> tuple[int, str]:
        return self.send("POST", "/graphql", json.dumps({"query": query}), **{"content_type": "application/json", **headers})


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The web server of `backfill up`, without a pipeline."""
    home: Path = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    port = free_port()
    command = [sys.executable, "-m", "backfill_platform.orchestration.dagster_overrides.web_server"]
    process = subprocess.Popen(
        [*command, "-h", "127.0.0.1", "-p", str(port), "--empty-workspace"],
        cwd=ROOT,
        env={**os.environ, "DAGSTER_HOME": str(home), "BACKFILL_WEB_URL": "https://Dagster.example.com/"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: answers_http(f"http://127.0.0.1:{port}/server_info"), 120)
        yield Web(port)
    finally:
        process.terminate()
        process.wait(30)


def test_a_change_by_get_is_refused(web: Web) -> None:
    asked = json.loads(web.post(SEEN)[1])["data"]
    hidden = "query a { version } mutation b { setNuxSeen }"
    for query in (CHANGES, f"# nothing\n{CHANGES}", hidden):
        assert web.get(query)[0] == 403
    twice = f"/graphql?{urlencode({'query': CHANGES})}&{urlencode({'query': READS})}"
    for path in (
        twice,
        f"/graphql?operationName=b&query={quote(hidden)}",
        f"/%67raphql?query={quote(CHANGES)}",
        f"/graphql?query={'%7Ba' * 3000}",  # deeper than anybody can read
    ):
        assert web.send("GET", path)[0] in (400, 403), path
    assert json.loads(web.post(SEEN)[1])["data"] == asked


@pytest.mark.parametrize("kind", ["text/plain", "text/plain; application/json", "application/x-www-form-urlencoded", ""])
def test_a_change_that_a_form_can_send_is_refused(web: Web, kind: str) -> None:
    headers = {"content_type": kind} if kind else {}
    assert web.send("POST", f"/graphql?{urlencode({'query': CHANGES})}", json.dumps({"query": CHANGES}), **headers)[0] == 403


@pytest.mark.parametrize(
    "host",
    ["evil.example", "a@127.0.0.1", "a@127.0.0.1:{port}", "127.0.0.1:{port}.evil.example", "127.0.0.1", "127.0.0.1:1", ""],
)
def test_another_host_is_refused(web: Web, host: str) -> None:
    named = host.format(port=web.port)
    for status, _ in (web.get(READS, host=named), web.post(READS, host=named), web.send("GET", "/assets", host=named)):
        assert status == 403


def test_two_hosts_are_refused(web: Web) -> None:
    with socket.create_connection(("127.0.0.1", web.port), timeout=30) as connection:
        connection.sendall(f"GET /server_info HTTP/1.1\r\nHost: {web.host}\r\nHost: evil.example\r\n\r\n".encode())
        assert connection.recv(1000).split()[1] in (b"400", b"403")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:{port}"},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},  # a page of another server on this machine
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"},
        {"sec_fetch_site": "same-origin", "origin": "http://evil.example"},
    ],
)
def test_a_page_of_another_server_is_refused(web: Web, headers: dict[str, str]) -> None:
    sent = {name: value.format(port=web.port) for name, value in headers.items()}
    for status, _ in (web.get(READS, **sent), web.post(CHANGES, **sent), web.send("GET", "/assets", **sent)):
        assert status == 403
    with pytest.raises(InvalidStatus) as refused:
        connect(
            f"ws://{web.host}/graphql",
            origin=Origin(sent["origin"]) if "origin" in sent else None,
            additional_headers={name.replace("_", "-"): value for name, value in sent.items() if name != "origin"},
        )
    assert refused.value.response.status_code == 403


def test_a_link_of_a_message_opens_a_page_and_nothing_else(web: Web) -> None:
    followed = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert web.send("GET", "/runs/1", **followed)[0] == 200
    assert web.send("POST", "/runs/1", "", **followed)[0] == 403
    assert web.get(READS, **followed)[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://127.0.0.1:{port}", "sec_fetch_site": "same-origin"},
        {"host": "localhost:{port}", "origin": "http://localhost:{port}"},
        {"host": "LOCALHOST:{port}", "sec_fetch_site": "none"},
        {"host": "dagster.example.com", "origin": "https://dagster.example.com"},
    ],
)
def test_the_web_page_and_local_programs_are_answered(web: Web, headers: dict[str, str]) -> None:
    sent = {name: value.format(port=web.port) for name, value in headers.items()}
    assert json.loads(web.get(READS, **sent)[1])["data"]["version"]
    assert json.loads(web.post(CHANGES, **sent)[1])["data"] == {"setNuxSeen": True}
    assert web.send("POST", "/graphql", READS, content_type="application/graphql; charset=utf-8", **sent)[0] == 200
    assert web.send("GET", "/assets", **sent)[0] == 200


def test_the_subscriptions_of_the_web_page_are_answered(web: Web) -> None:
    with connect(
        f"ws://{web.host}/graphql", origin=Origin(f"http://{web.host}"), subprotocols=[Subprotocol("graphql-ws")]
    ) as page:
        page.send(json.dumps({"type": "connection_init"}))
        assert json.loads(page.recv(timeout=30)) == {"type": "connection_ack"}
        query = "subscription { locationStateChangeEvents { event { message } } }"
        page.send(json.dumps({"type": "start", "id": "1", "payload": {"query": query}}))
        page.send(json.dumps({"type": "start", "id": "2", "payload": {"query": CHANGES}}))
        assert json.loads(page.recv(timeout=30))["type"] == "error", "a subscription changes nothing either"
