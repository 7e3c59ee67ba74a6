"""The engine of the embedded warehouse: one statement of a request, run by chDB.

Contains the reading of a request, the sessions and the running of statements. Keep out: HTTP, which `http_server.py` does.
Only the server process imports it; chDB itself is imported when the engine is opened.

Every request runs on a chDB connection of its own, opened and closed with it (0.1 ms): settings, parameters, the database
and a failure end with the request, because no other request uses the connection. Resetting settings on pooled connections is
not the same: `compatibility` changes hundreds of settings that its own reset leaves behind.

There is no lock around the engine. Statements of different connections run in parallel, chDB releases the GIL meanwhile
(measured: held for 0.1 ms at most), and `DROP TABLE ... SYNC` itself waits for the statements that still read the table.
"""

import json
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backfill_platform.devstack.embedded_clickhouse.statement import Statement, StatementError

MAX_SESSIONS = 32

# chDB starts with the settings of clickhouse-local; these are a server's. With mmap, a file that is cut short while it is
# being read would kill the process.
ENGINE_OPTIONS = "implicit_select=0&allow_introspection_functions=0&storage_file_read_method=pread"

# Parameters of the HTTP interface that are no settings of the engine.
# fmt: off
TRANSPORT_PARAMETERS = frozenset({
    "query", "database", "query_id", "session_id", "session_timeout", "session_check", "close_session", "default_format",
    "buffer_size", "compress", "decompress", "wait_end_of_query", "client_protocol_version", "quota_key", "role",
    "stacktrace", "user", "password",
})
# fmt: on

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Call:
    """One request: a statement and everything that holds for this statement alone."""

    statement: Statement
    settings: Mapping[str, str]
    parameters: Mapping[str, str]
    database: str = ""
    session_id: str = ""
    session_seconds: int = 60
    default_format: str = ""

    @classmethod
    def read(cls, values: Mapping[str, str], body: bytes, *, read_only: bool) -> "Call":
        """Read a request from the parameters in its address (and form) and its body.

        Raises:
            StatementError: a name that cannot be a setting, or several statements.
        """
        settings: dict[str, str] = {}
        parameters: dict[str, str] = {}
        for key, value in values.items():
            if key in TRANSPORT_PARAMETERS:
                continue
            if not _NAME.fullmatch(key):
                raise StatementError.own(115, "UNKNOWN_SETTING", f"Unknown setting '{key}'")
            if key.startswith("param_"):
                parameters[key.removeprefix("param_")] = value
            else:
                settings[key] = value
        statement = Statement.read(values.get("query", "").encode(), body)
        if read_only:
            if not statement.only_reads:
                raise StatementError.own(164, "READONLY", "Cannot execute query in readonly mode: send it by POST")
            settings["readonly"] = "1"  # stricter than ClickHouse's 2, with which table functions read and write files
        seconds = values.get("session_timeout", "")
        return cls(
            statement=statement,
            settings=settings,
            parameters=parameters,
            database=values.get("database", ""),
            session_id=values.get("session_id", ""),
            session_seconds=min(int(seconds), 3600) if seconds.isdecimal() else 60,
            default_format=values.get("default_format", ""),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a statement; `format` is None where there is no result set."""

    body: bytes
    format: str | None
    counts: Mapping[str, int]


@dataclass(slots=True)
class _Session:
    """A connection kept for what a client left in it."""

    connection: Any
    expires: float = 0.0  # on the monotonic clock
    busy: bool = False
    spoiled: bool = False


class Engine:
    """The chDB engine of this process. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Open the folder; only one process can at a time.

        Raises:
            RuntimeError: chDB cannot open it.
        """
        import chdb  # here, because it takes 0.5 s and 270 MB, and reads the time zone of the process

        self._rows = path.parent / "rows"  # files of rows that are being inserted
        self._rows.mkdir(exist_ok=True)
        self._connect: Callable[[], Any] = lambda: chdb.connect(f"{path}?{ENGINE_OPTIONS}")
        self._root = self._connect()  # the engine lives until its last connection is closed
        self._sessions: dict[str, _Session] = {}
        self._sessions_lock = threading.Lock()
        self.version: str = self._root.query("SELECT version()", "TabSeparated").bytes().decode().strip()
        formats: str = self._root.query("SELECT lower(name) FROM system.formats", "TabSeparated").bytes().decode()
        self._formats = frozenset(formats.split())
        compresses = self._root.query("SELECT getSetting('enable_http_compression')::String", "TabSeparated").bytes()
        self.compresses: str = compresses.decode().strip()  # the engine's default; it has changed between versions

    def run(self, call: Call) -> Answer:
        """Run one statement.

        Raises:
            StatementError: ClickHouse refuses it, or it fails.
        """
        try:
            with self._connection(call) as connection:
                return self._run(connection, call)
        except RuntimeError as error:  # the base of all that chDB raises
            raise StatementError.from_engine(error) from error

    def cancel_all(self) -> None:
        """Cancel every running statement, without waiting for them to end."""
        with closing(self._connect()) as connection:
            connection.query("KILL QUERY WHERE query_id != queryID() ASYNC", "Null")

    def close(self) -> None:
        """Close the engine; no statement may be running."""
        for session in self._sessions.values():
            session.connection.close()
        self._sessions.clear()
        self._root.close()

    def _run(self, connection: Any, call: Call) -> Answer:
        statement = call.statement
        if statement.insert_format is not None:
            return self._insert(connection, call)
        name = statement.format if statement.format and statement.format.lower() in self._formats else call.default_format
        # Without a name of a format, only the line of names tells an empty result from a statement that returns none.
        result = connection.query(statement.sql, name or "TabSeparatedWithNames", params=dict(call.parameters))
        body: bytes = result.bytes() or b""
        if not name and body:
            name, body = "TabSeparated", body[body.index(b"\n") + 1 :]
        counts = {
            "read_rows": result.storage_rows_read(),
            "read_bytes": result.storage_bytes_read(),
            "written_rows": result.rows_written(),
            "written_bytes": result.bytes_written(),
            "result_rows": result.rows_read(),
            "result_bytes": len(body),
            "elapsed_ns": int(result.elapsed() * 1e9),
        }
        return Answer(body, name or None, counts)

    def _insert(self, connection: Any, call: Call) -> Answer:
        """Rows that came with the statement, through a file: chDB's `send_insert` swallows errors on writing.

        A violated constraint or a block of too many partitions would be reported as written and be lost.
        """
        statement = call.statement
        if not statement.data:
            return Answer(b"", None, {"written_rows": 0})
        with tempfile.NamedTemporaryFile(dir=self._rows) as file:
            file.write(statement.data)
            file.flush()
            source = f" FROM INFILE {_quoted(file.name)} COMPRESSION 'none' ".encode()
            form = f" FORMAT {statement.insert_format}".encode()
            sql = statement.sql + source + statement.insert_settings + form
            written = connection.query(sql, "Null", params=dict(call.parameters))
        counts = {"written_rows": written.rows_written(), "written_bytes": written.bytes_written()}
        return Answer(b"", None, {**counts, "elapsed_ns": int(written.elapsed() * 1e9)})

    @contextmanager
    def _connection(self, call: Call) -> Iterator[Any]:
        """A connection on which everything in `call` but its statement is in force."""
        session = self._session(call) if call.session_id else None
        if session is None:
            with closing(self._connect()) as connection:
                _apply(connection, call)
                yield connection
            return
        try:
            if call.statement.sets_session:  # what it sets is to stay; nothing else in the request matters to it
                yield session.connection
                return
            before = _state(session.connection)
            try:
                _apply(session.connection, call)
                yield session.connection
            finally:
                session.spoiled = not _restored(session.connection, call, before)
        finally:
            session.expires = time.monotonic() + call.session_seconds
            session.busy = False

    def _session(self, call: Call) -> _Session | None:
        """The session of a request, marked busy; None while nothing has been left in it.

        Nearly every client sends the name of a session and never uses it; that costs nothing.

        Raises:
            StatementError: another request is using the session.
        """
        with self._sessions_lock:
            idle = sorted((session.expires, key) for key, session in self._sessions.items() if not session.busy)
            for position, (expires, key) in enumerate(idle):
                too_many = len(idle) - position > MAX_SESSIONS
                if too_many or expires < time.monotonic() or self._sessions[key].spoiled:
                    self._sessions.pop(key).connection.close()
            session = self._sessions.get(call.session_id)
            if session is None:
                if not call.statement.changes_session:
                    return None
                session = self._sessions[call.session_id] = _Session(self._connect())
            elif session.busy:
                text = f"Session {call.session_id} is locked by a concurrent client"
                raise StatementError.own(373, "SESSION_IS_LOCKED", text)
            session.busy = True
            return session


def _quoted(text: str, quote: str = "'") -> str:
    return quote + text.replace("\\", "\\\\").replace(quote, "\\" + quote) + quote


def _apply(connection: Any, call: Call) -> None:
    """Put the database and the settings of a request in force.

    SET takes every setting for every kind of statement; a SETTINGS clause would have to be put into the text and does not
    exist for some. One SET is checked and applied as a whole, as ClickHouse does with the parameters of a request.
    """
    if call.database:
        connection.query(f"USE {_quoted(call.database, '`')}", "Null")
    changes = [f"{name} = {_quoted(value)}" for name, value in call.settings.items()]
    if changes:
        connection.query(f"SET {', '.join(changes)}", "Null")


def _state(connection: Any) -> dict[str, Any]:
    """The database and the changed settings of a connection."""
    sql = "SELECT currentDatabase() AS database, groupArray((name, value)) AS settings FROM system.settings WHERE changed"
    state: dict[str, Any] = json.loads(connection.query(sql, "JSONEachRow").bytes())
    return {"database": state["database"], "settings": dict(map(tuple, state["settings"]))}


def _restored(connection: Any, call: Call, before: dict[str, Any]) -> bool:
    """Take a request's settings back out of a session; False when something stays, so that the session must go."""
    values = {name: before["settings"].get(name) for name in call.settings}
    changes = [f"{name} = {'DEFAULT' if value is None else _quoted(value)}" for name, value in values.items()]
    try:
        if changes:
            connection.query("SET " + ", ".join(changes), "Null")
        if call.database:
            connection.query(f"USE {_quoted(before['database'], '`')}", "Null")
        return _state(connection) == before
    except (RuntimeError, ValueError, KeyError):  # for example: the request made the session read-only
        return False
