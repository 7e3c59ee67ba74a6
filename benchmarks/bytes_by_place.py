"""Where the bytes of a Dagster home in SQLite lie: files, tables with their indexes, and events by their type."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path


def bytes_by_place(home: Path, asset_hours: int) -> str:
    """Lines of bytes per asset-hour, the largest first."""
    found: list[tuple[float, str]] = []
    for file in home.rglob("*"):
        if file.is_file():
            found.append((file.stat().st_size, f"file {_kind(file)}"))
    for file in home.rglob("*.db"):
        found += [(size, f"{_kind(file)}: {place}") for size, place in _inside(file)]
    shown = [(size / asset_hours, place) for size, place in sorted(found, reverse=True) if size > 20 * asset_hours]
    return "".join(f"{size:10.1f}  {place}\n" for size, place in shown)


def _kind(file: Path) -> str:
    return file.name if len(file.stem) < 30 else f"<run>{file.suffix}"


def _inside(file: Path) -> Iterator[tuple[int, str]]:
    with sqlite3.connect(file) as connection:
        names = dict(connection.execute("SELECT name, type FROM sqlite_master"))
        for name, size in connection.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"):
            yield size, f"{names.get(name, 'table')} {name}"
        if "event_logs" in names:
            query = "SELECT dagster_event_type, sum(length(event)), count(*) FROM event_logs GROUP BY 1"
            for kind, size, count in connection.execute(query):
                yield size or 0, f"text of {count} events {kind}"
        if "asset_check_executions" in names:
            query = "SELECT execution_status, sum(length(evaluation_event)), count(*) FROM asset_check_executions GROUP BY 1"
            for kind, size, count in connection.execute(query):
                yield size or 0, f"text of {count} check executions {kind}"
