"""Whether other hosts may use the storage of an instance."""

import dagster as dg
from dagster._core.storage.runs import SqliteRunStorage


def is_shared(instance: dg.DagsterInstance) -> bool:
    """Whether runs are stored in a database that other hosts may use too, and not in a file of this home."""
    return not isinstance(instance.run_storage, SqliteRunStorage)
