"""The one place that opens a connection to ClickHouse.

Each statement has a short description (`doing`), so that an error says what failed. Nothing here repeats a statement by itself:
a write whose answer was lost may have happened, and only a new diff can tell. Callers for whom repeating is safe use `resend`.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError
from tenacity import Retrying, before_sleep_log, retry_if_exception_type, stop_after_attempt, wait_incrementing
from urllib3.exceptions import HTTPError

from backfill_platform.errors import BackfillError, UsageError, WarehouseError, WarehouseUnavailable

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10
STATEMENT_SECONDS = 3600  # an OPTIMIZE or a load of a large hour; ClickHouse answers only when it is done

# The server answered, but trying again may work: time-outs, too many queries or parts, a query id that still runs.
_TRANSIENT_CODES = frozenset({159, 202, 209, 210, 216, 252, 425})

# A user's profile may set these to what changes or cuts what we read; each is sent with every statement. Where a limit of the
# profile is exceeded, a statement must fail: with `break` it would answer with some of the rows, and a damaged hour look whole.
_OVERFLOWS = ("distinct", "group_by", "join", "read", "result", "set", "sort", "timeout", "transfer")
_UNALTERED: Mapping[str, str | int] = {
    "final": 0,  # the net state would be read with FINAL, too, and no hour would look inconsistent
    "limit": 0,
    "offset": 0,
    "use_query_cache": 0,  # a cached answer would hide what a live writer does
    "use_cache_for_count_from_files": 0,
    "additional_table_filters": "{}",
    "additional_result_filter": "",
    "apply_deleted_mask": 1,
    "ignore_cold_parts_seconds": 0,
    "skip_unavailable_shards": 0,
    "enable_parallel_replicas": 0,
    "partial_result_on_first_cancel": 0,
    "join_use_nulls": 0,  # our SQL takes a row that a join does not find for 0
    "group_by_use_nulls": 0,
    "transform_null_in": 0,
    "aggregate_functions_null_for_empty": 0,
    "prefer_column_name_to_alias": 0,
    "cast_keep_nullable": 0,
    "implicit_transaction": 0,
    "async_insert": 0,  # answers before the rows are there
    "wait_for_async_insert": 1,
    "session_timezone": "UTC",
    "max_query_size": 64 << 20,  # a year of single hours in one statement
}

EXACT: Mapping[str, str | int] = {
    **_UNALTERED,
    **{f"{name}_overflow_mode": "throw" for name in _OVERFLOWS},
    "read_overflow_mode_leaf": "throw",
    "timeout_overflow_mode_leaf": "throw",
}
# Staging tables may be dropped whatever their size.
_DROPPING = {"max_table_size_to_drop": 0, "max_partition_size_to_drop": 0}

Row = tuple[Any, ...]
Settings = Mapping[str, str | int]


TRIES = 3
PAUSE_SECONDS = 2.0


def resend(send: Callable[[int], None], *, tries: int = TRIES) -> None:
    """Call `send`, with the number of the try, until the warehouse answers, pausing longer each time.

    Only for inserts under a token that all tables they reach remember. Raises WarehouseUnavailable after the last try.
    """
    for attempt in Retrying(
        retry=retry_if_exception_type(WarehouseUnavailable),
        stop=stop_after_attempt(tries),
        wait=wait_incrementing(PAUSE_SECONDS, PAUSE_SECONDS),
        before_sleep=before_sleep_log(logger, logging.WARNING),
        reraise=True,
    ):
        with attempt:
            send(attempt.retry_state.attempt_number)


class Warehouse:
    """A ClickHouse server reached over HTTP, such as `http://user:password@host:8123`.

    Safe to use from several threads: it has no session, and keeps nothing between statements but what is prepared. Not across
    `fork`. `settings` are sent with every statement, as if the user's profile set them; EXACT and those of the statement win.
    Raises WarehouseUnavailable when nothing answers or an answer takes longer than `statement_seconds`, WarehouseError when
    ClickHouse refuses a statement, UsageError when the URL is not one of a server.
    """

    def __init__(self, url: str, *, statement_seconds: int = STATEMENT_SECONDS, settings: Settings | None = None) -> None:
        parts = _parts(url)
        self.shown_url = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        with _errors(f"connecting to the warehouse at {self.shown_url}"):
            self._client = clickhouse_connect.get_client(
                interface=parts.scheme,
                host=parts.hostname,
                port=parts.port or (8443 if parts.scheme == "https" else 8123),
                username=unquote(parts.username) if parts.username else None,
                password=unquote(parts.password or ""),
                autogenerate_session_id=False,  # statements of one session run one after the other
                connect_timeout=CONNECT_SECONDS,
                send_receive_timeout=statement_seconds,
                tz_mode="aware",
                settings=dict(settings or {}),
            )
        # Servers of other versions lack some of the settings, and what they lack nobody can have set.
        self._exact = {name: value for name, value in EXACT.items() if name in self._client.server_settings}
        self._prepared: set[str] = set()

    @property
    def server_version(self) -> str:
        """The version of the server. Fingerprints of different versions must not be compared."""
        return str(self._client.server_version)

    def command(
        self,
        sql: str,
        *,
        doing: str,
        parameters: Mapping[str, Any] | None = None,
        settings: Settings | None = None,
        query_id: str | None = None,
    ) -> None:
        """Run a statement that returns no rows. It is never sent twice, even when the connection breaks."""
        merged = {**self._exact, **(settings or {})}
        with _errors(doing):
            self._client.command(sql, parameters=_parameters(parameters), settings=_settings(merged, query_id))

    def prepare(self, statements: Iterable[str], *, doing: str) -> None:
        """Run statements that create what is absent, each once in the life of this object."""
        for statement in statements:
            if statement not in self._prepared:
                self.command(statement, doing=doing)
                self._prepared.add(statement)

    def drop(self, name: str, *, doing: str) -> None:
        """Drop a quoted table of any size if it exists, after the statements that use it have ended."""
        self.command(f"DROP TABLE IF EXISTS {name} SYNC", settings=_DROPPING, doing=doing)

    def empty(self, name: str, *, doing: str) -> None:
        """Remove all rows of a quoted table of any size. Raises WarehouseError when the table does not exist."""
        self.command(f"TRUNCATE TABLE {name} SYNC", settings=_DROPPING, doing=doing)

    def rows(
        self,
        sql: str,
        *,
        doing: str,
        parameters: Mapping[str, Any] | None = None,
        settings: Settings | None = None,
    ) -> list[Row]:
        """All rows of a SELECT."""
        with _errors(doing):
            merged = {**self._exact, **(settings or {})}
            result = self._client.query(sql, parameters=_parameters(parameters), settings=_settings(merged, None))
            return [tuple(row) for row in result.result_rows]

    def insert_rows(
        self,
        database: str,
        table: str,
        column_names: Sequence[str],
        rows: Sequence[Sequence[Any]],
        *,
        doing: str,
        settings: Settings | None = None,
    ) -> None:
        """Insert Python rows.

        clickhouse-connect sends them again when the connection closes before the answer, and reports success: the caller must
        count the rows afterwards, or accept duplicates.
        """
        if not rows:
            return
        with _errors(doing):
            merged = {**self._exact, **(settings or {})}
            self._client.insert(table, rows, column_names, database=database, settings=_settings(merged, None))

    def insert_arrow(self, destination: str, rows: "pa.Table", *, doing: str, settings: Settings | None = None) -> None:
        """Insert an Arrow table into a quoted table. It may be sent twice, as with `insert_rows`, so pass a token."""
        with _errors(doing):
            self._client.insert_arrow(destination, rows, settings=_settings({**self._exact, **(settings or {})}, None))

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._client.close()


def _parts(url: str) -> SplitResult:
    """The parts of the address of a server. Raises UsageError without repeating it: it may hold a password."""
    look = "the warehouse URL must look like http://user:password@host:8123"
    try:
        parts = urlsplit(url)
        is_whole = parts.port != 0 and "@" not in parts.path + parts.query + parts.fragment
    except ValueError:  # it names what it took for the port, which may be a part of the password
        is_whole = False
    if not is_whole:
        raise UsageError(f"{look}; in the password, write / ? # @ : as %2F %3F %23 %40 %3A") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(look)
    return parts


@contextmanager
def _errors(doing: str) -> Iterator[None]:
    """Turn what clickhouse-connect and urllib3 raise into our errors, and say what we were doing."""
    try:
        yield
    except (ClickHouseError, HTTPError, OSError) as error:
        raise _translated(error, doing) from error


def _translated(error: Exception, doing: str) -> BackfillError:
    code = getattr(error, "code", None)
    text = f"{doing}: {_first_line(str(error))}"
    if code in _TRANSIENT_CODES:
        return WarehouseUnavailable(f"{text}; try again later")
    # An OperationalError without a code comes from the connection; with a code, the server refused with a status of 5xx.
    if isinstance(error, ClickHouseError) and not (isinstance(error, OperationalError) and code is None):
        return WarehouseError(text)
    return WarehouseUnavailable(
        f"{text}; is the warehouse running and reachable? A statement that timed out may still be running: a new attempt "
        "waits for it and compares again"
    )


_WRAPPING = re.compile(r"\A(?:Received ClickHouse exception, code: \d+, server response: )?(.*?)(?: \(for url \S+\))?\Z", re.S)


def _first_line(text: str) -> str:
    match = _WRAPPING.match(text.strip())
    return (match.group(1) if match else text).strip().partition("\n")[0]


def _parameters(parameters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return dict(parameters) if parameters else None


def _settings(settings: Settings | None, query_id: str | None) -> dict[str, Any]:
    return {**(settings or {}), **({"query_id": query_id} if query_id else {})}
