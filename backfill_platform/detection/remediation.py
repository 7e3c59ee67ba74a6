"""What gaps need to be repaired: for each asset the hours that have to be materialized, and the commands that do it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.gaps import Gap, GapKind, Place
from backfill_platform.domain.hours import HourRange, format_hour, merge_hours
from backfill_platform.domain.impact import Damage
from backfill_platform.domain.plan import WAREHOUSE, AssetPath
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.planning.impact import find_impact
from backfill_platform.planning.live import apart

_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True)
class Remedy:
    """One repair that mends gaps: of a range of hours, or of raw events and of all that they may have changed."""

    pipeline: str
    hours: HourRange
    of_events: bool = False  # the hours are event times
    rewrites_inconsistent: bool = False

    @property
    def command(self) -> str:
        """The command that does it."""
        first, end = ("--damaged-from", "--damaged-to") if self.of_events else ("--from", "--to")
        bounds = f"{first} {format_hour(self.hours.start)} {end} {format_hour(self.hours.end)}"
        return f"backfill run {self.pipeline} {bounds}{' --rewrite-inconsistent' if self.rewrites_inconsistent else ''}"


def remedies(pipeline: Pipeline, lake: Lake, gaps: Collection[Gap], now: datetime) -> tuple[Remedy, ...]:
    """The repairs that mend the gaps, in the order to run them: damaged raw hours first, which all others are computed from.

    Partitions are rewritten only where an hour is inconsistent.
    """
    raw = str(pipeline.raw.table)
    inconsistent = {gap.hour for gap in gaps if gap.kind is GapKind.INCONSISTENT}
    wanted = wanted_hours(pipeline, lake, [gap for gap in gaps if gap.table != raw], now)
    found = []
    for span in apart(pipeline, {gap.hour for gap in gaps if gap.table == raw}):
        impact = find_impact(pipeline, lake, Damage(span.start, span.end), now)
        reached = {table.node.table.name: set(table.hours) for table in impact.tables}
        rewrites = any(not hours.isdisjoint(inconsistent) for hours in reached.values())
        found.append(Remedy(pipeline.name, span, of_events=True, rewrites_inconsistent=rewrites))
        wanted = {asset: hours - reached[asset[1]] for asset, hours in wanted.items()}
    left = {hour for hours in wanted.values() for hour in hours}
    ranges = [Remedy(pipeline.name, hours) for hours in merge_hours(left - inconsistent)]
    ranges += [Remedy(pipeline.name, hours, rewrites_inconsistent=True) for hours in merge_hours(left & inconsistent)]
    return (*found, *sorted(ranges, key=lambda remedy: remedy.hours.start))


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
        for source in node.inputs:
            if source.elsewhere or source.table == pipeline.raw.table:
                continue
            for hour in changed[source.table.path]:
                own |= set(source.window.reached_by(hour, hour + _INSTANT).intersect(every) or ())
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
