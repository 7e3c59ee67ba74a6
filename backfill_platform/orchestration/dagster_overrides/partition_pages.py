"""The newest partitions of a pipeline that has an end.

Dagster pages back from now, whatever the end of the partitions: plots of a pipeline that ended in 1998 showed hours of today,
which have nothing.
"""

from datetime import UTC, datetime
from typing import Any

import dagster as dg


def page_back_from_the_end() -> None:
    """Let descending pages of partition keys begin at the end of the partitions, where that is past."""
    from_now = dg.TimeWindowPartitionsDefinition.get_paginated_partition_keys

    def from_the_end(
        self: dg.TimeWindowPartitionsDefinition, context: Any, limit: int, ascending: bool, cursor: str | None = None
    ) -> Any:
        if not ascending and cursor is None and self.end is not None and self.end < context.effective_dt:
            end = datetime.fromtimestamp(self.end.timestamp(), UTC)
            context = context.updated(effective_dt=end, dynamic_partitions_store=None)
        return from_now(self, context, limit, ascending, cursor)

    dg.TimeWindowPartitionsDefinition.get_paginated_partition_keys = from_the_end  # type: ignore[method-assign]
