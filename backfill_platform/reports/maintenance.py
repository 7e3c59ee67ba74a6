"""What maintenance has removed, or would remove, table by table, for pages and terminals."""

from collections.abc import Iterable

from backfill_platform.repair.maintain import MaintainedTable

COLUMNS = ("lake table", "snapshots", "branches", "files", "bytes", "data kept", "metadata kept", "patches")


def lines(done: Iterable[MaintainedTable]) -> list[tuple[str | int, ...]]:
    """A line for each table. Sizes are bytes, those of the files and of what is kept."""
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
