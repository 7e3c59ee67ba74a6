"""What is let through to Dagster's web server, which answers whoever asks: web pages of others are not.

A browser on this machine also shows pages of others, and each of them can make it send requests here. Such a request names
another page in `Origin` or `Sec-Fetch-Site`, or, where a name was pointed at this machine, another `Host`. What is no
browser's sends neither, and is let through: only the loopback address and the file system protect from it.
"""

from collections.abc import Iterable
from urllib.parse import parse_qsl, urlsplit

from graphql import GraphQLError, OperationDefinitionNode, OperationType, parse
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Anything else can be sent by a form of another page, and Dagster would read the query from the address.
_GRAPHQL_BODIES = ("application/json", "application/graphql")


class WebGate:
    """An ASGI application that answers 403 to requests that are not of this server's own pages or of local programs.

    `web_url` is the address of the web page for other people, where a proxy hands their requests on; it may be None.
    """

    def __init__(self, app: ASGIApp, web_url: str | None = None) -> None:
        self._app = app
        self._shared = _origin(web_url) if web_url else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        why = self._refusal(scope) if scope["type"] in ("http", "websocket") else ""
        if not why:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(code=1008, reason=why)(scope, receive, send)  # before it is accepted: 403
        else:
            await PlainTextResponse(f"{why}\n", 403)(scope, receive, send)

    def _refusal(self, scope: Scope) -> str:
        """Why the request is refused; empty when it is not."""
        origins = self._own_origins(scope)
        hosts = [host.decode("latin-1").lower() for host in _values(scope, b"host")]
        # As it was sent: what a URL makes of `a@127.0.0.1` is 127.0.0.1.
        if len(hosts) != 1 or hosts[0] not in {origin.partition("://")[2] for origin in origins}:
            return "This server is not the host that was asked for."
        if any(origin.decode("latin-1").lower() not in origins for origin in _values(scope, b"origin")):
            return "This server does not answer pages of other servers."
        if any(site not in (b"same-origin", b"none") for site in _values(scope, b"sec-fetch-site")) and not _is_link(scope):
            return "This server does not answer pages of other servers."
        return _graphql_refusal(scope) if scope["path"].rstrip("/").endswith("/graphql") else ""

    def _own_origins(self, scope: Scope) -> set[str]:
        address, port = scope["server"]
        own = {_origin(f"http://{name}:{port}") for name in (address, "127.0.0.1", "localhost")}
        return own | ({self._shared} if self._shared else set())


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value.strip() for key, value in scope["headers"] if key.lower() == name]


def _origin(url: str) -> str:
    """The scheme and host of a URL as browsers write them, without the port that the scheme implies."""
    parts = urlsplit(url.lower())
    port = f":{parts.port}" if parts.port and parts.port != _DEFAULT_PORTS.get(parts.scheme) else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def _is_link(scope: Scope) -> bool:
    """Whether somebody follows a link of another page, such as one of a message, to a page of ours in a tab of its own."""
    is_page = scope["type"] == "http" and scope["method"] == "GET" and not scope["path"].rstrip("/").endswith("/graphql")
    return is_page and _values(scope, b"sec-fetch-dest") == [b"document"]


def _graphql_refusal(scope: Scope) -> str:
    if scope["type"] != "http":
        return ""
    if scope["method"] == "POST":
        kinds = [kind.partition(b";")[0].strip().lower().decode("latin-1") for kind in _values(scope, b"content-type")]
        return "" if len(kinds) == 1 and kinds[0] in _GRAPHQL_BODIES else "GraphQL is sent as application/json."
    queries = (value for name, value in parse_qsl(scope["query_string"].decode("latin-1")) if name == "query")
    return "Changes are asked for by POST, not by GET." if _changes_something(queries) else ""


def _changes_something(queries: Iterable[str]) -> bool:
    """Whether a query may be a mutation; one that cannot be read, so deep that it may not be read, counts as one."""
    try:
        definitions = [definition for query in queries for definition in parse(query, no_location=True).definitions]
    except GraphQLError:
        return False  # Dagster says what is wrong with it
    except RecursionError:
        return True
    return any(
        isinstance(definition, OperationDefinitionNode) and definition.operation is OperationType.MUTATION
        for definition in definitions
    )
