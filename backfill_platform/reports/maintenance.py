"""What maintenance has removed, table by table, for pages and terminals."""

from collections.abc import Iterable

from backfill_platform.repair.maintain import MaintainedTable

COLUMNS = ("lake table", "snapshots", "branches", "files", "bytes freed", "data kept", "metadata kept", "patches")


def lines(done: Iterable[MaintainedTable]) -> list[tuple[str | int, ...]]:
    """A line for each table; sizes are bytes."""
    return [
        (
            one.table,
            len(one.lake.snapshots),
            len(one.lake.branches),
            len(one.lake.files),
            one.lake.bytes,
            one.lake.kept_data,
            one.lake.kept_metadata,
            one.patches,
        )
        for one in done
    ]
