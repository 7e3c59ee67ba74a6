"""The table of the contract tests of a warehouse server."""

from collections import Counter

from clickhouse_connect.driver.client import Client

MAX_THREADS = "SELECT getSetting('max_threads')"
ROWS = [(1, "plain"), (2, "it's \\ a\ttab\nand a line"), (3, "")]
TABLE = "(a UInt64, s String) ENGINE = MergeTree ORDER BY a"


def content(client: Client, table: str) -> Counter[tuple[object, ...]]:
    """The rows of a table and how often each occurs."""
    return Counter(map(tuple, client.query(f"SELECT * FROM {table}").result_rows))
