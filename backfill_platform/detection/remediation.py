"""What gaps need to be repaired: for each asset the hours that have to be materialized, as the lake tells."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.gaps import Gap, Place
from backfill_platform.domain.impact import Damage
from backfill_platform.domain.plan import WAREHOUSE, AssetPath
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.planning.impact import find_impact
from backfill_platform.planning.live import apart

_INSTANT = timedelta(microseconds=1)


def wanted_hours(pipeline: Pipeline, lake: Lake, gaps: Iterable[Gap], now: datetime) -> dict[AssetPath, set[datetime]]:
    """The hours of each asset that mend the gaps: their own, and those computed from them in turn.

    A warehouse hour is published again. A raw hour is damage to the event times it should hold; its impact is built.
    """
    every = pipeline.hours_until(now)
    found: dict[AssetPath, set[datetime]] = {}
    lake_hours: dict[str, set[datetime]] = {}
    for gap in gaps:
        if gap.place is Place.WAREHOUSE:
            found.setdefault((WAREHOUSE, gap.table.partition("/")[2]), set()).add(gap.hour)
        else:
            lake_hours.setdefault(gap.table, set()).add(gap.hour)
    changed = _changed_by_landing(pipeline, lake, lake_hours.get(str(pipeline.raw.table), set()), now)
    for node in pipeline.nodes:
        own = changed.setdefault(node.table.path, set())
        own |= lake_hours.get(str(node.table), set())
        if node.reads is not None and node.reads != pipeline.raw.table:
            for hour in changed[node.reads.path]:
                own |= set(node.window.reached_by(hour, hour + _INSTANT).intersect(every) or ())
        if own:
            found.setdefault(node.table.path, set()).update(own)
            if node.published:
                found.setdefault((WAREHOUSE, node.table.name), set()).update(own)
    return found


def _changed_by_landing(pipeline: Pipeline, lake: Lake, landed: set[datetime], now: datetime) -> dict[AssetPath, set[datetime]]:
    """The raw hours that are landed, and the hours that are computed from the events of these times."""
    if not landed:
        return {}
    changed = {pipeline.raw.table.path: landed}
    for span in apart(pipeline, landed):
        for affected in find_impact(pipeline, lake, Damage(span.start, span.end), now).tables[1:]:
            changed.setdefault(affected.node.table.path, set()).update(affected.hours)
    return changed
