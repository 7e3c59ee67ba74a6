"""Hours that would be built otherwise by now: other events, rows of their source, or code than they were built with.

What an hour was built from is known from the ledger, which has the time and a hash of the content of every landing and build.
Events are looked at only where one of them says that something has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow.compute as pc

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.finalizable_sessions import finalizable_sessions
from backfill_platform.adapters.iceberg.inventory import TableInventory
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.gaps import Written, code_changed, has_changed, seen_by
from backfill_platform.domain.hours import HOUR, HourRange, format_hour, hour_of
from backfill_platform.domain.impact import Damage, Impact
from backfill_platform.domain.plan import Node
from backfill_platform.domain.windows import NO_MARGIN, UntilClosed, contiguous_runs
from backfill_platform.errors import UsageError
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.planning.impact import find_impact
from backfill_platform.planning.live import apart

_INSTANT = timedelta(microseconds=1)
_MOST_KEYS = 10_000  # of late events that are followed one by one

History = Mapping[datetime, list[Written]]
Reasons = dict[datetime, str]


@dataclass(frozen=True)
class Known:
    """What lake and ledger have of the tables of a pipeline, by the path of the table; `raw` with the spans of its events.

    `history` is of all hours that the ledger knows, `there` are those that the lake has.
    """

    lake: Lake
    raw: TableInventory
    history: Mapping[tuple[str, str], History]
    there: Mapping[tuple[str, str], Collection[datetime]]

    def built(self, node: Node, hours: HourRange) -> dict[datetime, Written]:
        """The last build of each hour of the range that the ledger knows."""
        history = self.history[node.table.path]
        return {hour: history[hour][-1] for hour in hours if hour in history}


def stale_hours(pipeline: Pipeline, hours: HourRange, known: Known, now: datetime) -> dict[tuple[str, str], Reasons]:
    """The stale hours of each derived table within the range, with the reason; sources before what is computed from them."""
    found: dict[tuple[str, str], Reasons] = {node.table.path: {} for node in pipeline.nodes}
    for node in pipeline.nodes[1:]:
        built = known.built(node, hours)
        code = code_changed(built, pipeline.code_version(node.table.name))
        found[node.table.path] = {**_source_changed(pipeline, node, built, known), **code}
    for damage, arrived, why in _changes(pipeline, hours, known):
        try:
            impact = find_impact(pipeline, known.lake, damage, now)
        except UsageError:  # events of hours that the pipeline does not have
            continue
        for path, reached in _reached(pipeline, hours, known, impact, arrived).items():
            for hour, how in reached.items():
                found[path].setdefault(hour, f"{why}; {how}")
    return found


def _source_changed(pipeline: Pipeline, node: Node, built: Mapping[datetime, Written], known: Known) -> Reasons:
    """Hours that were computed from rows of another derived table which has others by now."""
    found: Reasons = {}
    for source in node.inputs:
        if source.table == pipeline.raw.table:
            continue
        history = known.history[source.table.path]
        for hour, claim in built.items():
            for at in source.window.needs(hour, source.bounds(pipeline.start, pipeline.end)[0]):
                if at in history and has_changed(claim, history[at]):
                    found.setdefault(hour, f"{source} of {format_hour(at)} has other rows by now")
    return found


def _reached(
    pipeline: Pipeline, hours: HourRange, known: Known, impact: Impact, arrived: datetime
) -> dict[tuple[str, str], Reasons]:
    """The hours of each derived table that were built before the damage arrived and that it reaches; with how."""
    found: dict[tuple[str, str], Reasons] = {}
    for affected in impact.tables[1:]:
        path, own = affected.node.table.path, [one for one in affected.node.inputs if not one.elsewhere]
        above = [one for one in own if one.table != pipeline.raw.table]
        reasons = found.setdefault(path, {})
        for hour, claim in known.built(affected.node, hours).items():
            reached = any(not found[one.table.path].keys().isdisjoint(one.window.needs(hour, pipeline.start)) for one in above)
            if len(above) < len(own):
                # Of an hour that is lost nobody can tell; that it is lost is said elsewhere.
                reached = reached or (hour in affected.why and hour in known.there[path])
            if reached and claim.started_at < arrived:
                reasons[hour] = affected.why.get(hour, f"computed from {', '.join(map(str, own))}")
    return found


def finalizable_hours(
    pipeline: Pipeline, node: Node, hours: Iterable[datetime], warehouse: Warehouse, landed: set[datetime]
) -> Reasons:
    """Hours with sessions that were open when they were built and would be decided by what has landed since."""
    ahead = node.window.lookahead
    if not isinstance(ahead, UntilClosed):
        return {}
    found: Reasons = {}
    parts, _ = contiguous_runs(hours, landed, NO_MARGIN, pipeline.start, pipeline.end)
    for part in parts:
        decided = finalizable_sessions(
            warehouse,
            node.table,
            part.hours,
            ended=ahead.ended,
            gap=ahead.gap,
            cap=ahead.cap,
            available_until=part.available_until,
        )
        found |= {
            hour: f"{rows} session{'s' * (rows != 1)} open when the hour was built, and closed or longer by now"
            for hour, rows in decided.items()
            if rows
        }
    return found


def _changes(pipeline: Pipeline, hours: HourRange, known: Known) -> Iterator[tuple[Damage, datetime, str]]:
    """Event times of raw hours that came, or changed, after hours had been built that they reach: with when, and what."""
    history = known.history[pipeline.raw.table.path]
    spans = _spans(known.raw)
    nodes = [node for node in pipeline.nodes if node.windows_on(pipeline.raw.table)]
    built = {node.table.path: known.built(node, hours) for node in nodes}
    first_build = min((claim.started_at for one in built.values() for claim in one.values()), default=None)
    if first_build is None:
        return
    for raw_hour, versions in history.items():
        low, high = spans.get(raw_hour, (raw_hour, raw_hour))
        last = versions[-1]
        beyond = low < raw_hour or high >= raw_hour + HOUR
        # What has landed once, with events of its own hour alone, changes nothing that was built before.
        if last.finished_at <= first_build or (len(versions) == 1 and not beyond):
            continue
        reached = [
            claim
            for node in nodes
            for window in node.windows_on(pipeline.raw.table)
            for hour in window.reached_by(min(low, raw_hour), max(high, raw_hour) + HOUR).intersect(hours) or ()
            if (claim := built[node.table.path].get(hour)) is not None and claim.started_at < last.finished_at
        ]
        unseen = [claim for claim in reached if seen_by(claim, versions) is None]
        if any(has_changed(claim, versions) for claim in reached):
            whole = Damage(min(low, raw_hour), max(high, raw_hour + HOUR))
            yield whole, last.finished_at, f"raw events of {format_hour(raw_hour)} have landed again, and are others"
        elif unseen and beyond:
            for damage, events in _late(pipeline, known.lake, raw_hour):
                text = f"{events} events of this time arrived late, in {format_hour(raw_hour)}"
                yield damage, last.finished_at, text


def _late(pipeline: Pipeline, lake: Lake, raw_hour: datetime) -> Iterator[tuple[Damage, int]]:
    """The event times of an ingestion hour that lie outside of it, far apart ones by themselves, with how many events."""
    raw, time = pipeline.raw.table, pipeline.raw.event_time
    windows = [window.lookahead for node in pipeline.nodes for window in node.windows_on(raw)]
    keys = {ahead.key for ahead in windows if isinstance(ahead, UntilClosed)}
    key = keys.pop() if len(keys) == 1 and all(isinstance(ahead, UntilClosed) for ahead in windows) else ""
    outside = f"({time} < '{raw_hour.isoformat()}' or {time} >= '{(raw_hour + HOUR).isoformat()}')"
    names = (time, key) if key else (time,)
    rows = lake.read(raw, names, f"{raw.hour} = '{raw_hour.isoformat()}' and {outside}")
    event_hours = set(pc.unique(pc.floor_temporal(rows.column(time), unit="hour")).to_pylist())
    for span in apart(pipeline, {hour_of(one) for one in event_hours}):
        moments = rows.column(time)
        mine = rows.filter(pc.and_(pc.greater_equal(moments, span.start), pc.less(moments, span.end)))
        first, last = pc.min_max(mine.column(time)).as_py().values()
        whose = frozenset(pc.unique(mine.column(key)).to_pylist()) if key else frozenset()
        yield Damage(first, last + _INSTANT, (), whose if key and len(whose) <= _MOST_KEYS else None), mine.num_rows


def _spans(raw: TableInventory) -> dict[datetime, tuple[datetime, datetime]]:
    found: dict[datetime, tuple[datetime, datetime]] = {}
    for file in raw.files:
        if file.uri in raw.spans:
            low, high = raw.spans[file.uri]
            before = found.get(file.hour, (low, high))
            found[file.hour] = (min(low, before[0]), max(high, before[1]))
    return found
