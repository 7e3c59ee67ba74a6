"""Surveying a range: what the lake and the warehouse hold, hour by hour, and which hours are damaged.

Truth comes from data: row counts from Iceberg metadata, files from the storage, fingerprints taken by ClickHouse of its own
rows and of the lake's files. A file never changes, so a fingerprint of it that the ledger has is not taken again. Nothing is
written.
"""

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.lake_files import file_fingerprints, file_tenants
from backfill_platform.adapters.clickhouse.preconditions import target_exists
from backfill_platform.adapters.clickhouse.publishing.staging import Loading
from backfill_platform.adapters.clickhouse.schema import schema_hash
from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.iceberg.inventory import LakeFile, TableInventory
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.kafka.topic import KafkaTopic
from backfill_platform.adapters.records.connections import Connect, no_connections
from backfill_platform.detection.staleness import History, Known, finalizable_hours, stale_hours
from backfill_platform.domain.expected_empty_hours import expected_empty_hours
from backfill_platform.domain.fingerprint import EMPTY, Fingerprint
from backfill_platform.domain.gaps import (
    Gap,
    GapKind,
    Place,
    RowCounts,
    Written,
    count_gaps,
    lake_gaps,
    landing_gaps,
    offset_gaps,
    source_gaps,
    stale_gaps,
    warehouse_gaps,
)
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import WAREHOUSE
from backfill_platform.domain.tables import Table
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.audit_log import input_digest
from backfill_platform.repair.sources import versions_of

Prints = Mapping[datetime, Fingerprint]
_MOST_TENANTS = 20
_HOURS_BY_TENANT = 200  # more damaged hours than these are not told apart by tenant


@dataclass(frozen=True)
class TableState:
    """What one table holds: rows and built hours in the lake, and fingerprints in lake and warehouse if published."""

    table: Table
    rows: Mapping[datetime, int]
    built: frozenset[datetime] = frozenset()
    published: bool = False
    lake: Prints = field(default_factory=dict)
    net: Prints = field(default_factory=dict)
    final: Prints = field(default_factory=dict)


@dataclass(frozen=True)
class Survey:
    """The state of all tables of a pipeline over `hours`, and the damaged hours found in it.

    `rows` has the counts of every hour of every table, by the names that gaps have, such as `warehouse/sessions`.
    """

    pipeline: str
    hours: HourRange
    tables: tuple[TableState, ...]
    gaps: tuple[Gap, ...]
    rows: Mapping[tuple[str, datetime], RowCounts] = field(default_factory=dict)


def survey(
    pipeline: Pipeline,
    hours: HourRange,
    lake: Lake,
    warehouse: Warehouse,
    loading: Loading = Loading.PULL,
    *,
    now: datetime | None = None,
    connect: Connect = no_connections,
) -> Survey:
    """Look at every table of the pipeline over the half-open range of hours.

    `now` bounds the hours of a live pipeline that may be stale; the end of the range by default. `connect` gives the properties
    of the connection that its source names.
    """
    ledger = Ledger(warehouse)
    raw = pipeline.raw.table
    with ThreadPoolExecutor() as threads:
        # The warehouse sums up its rows while we read the lake's metadata.
        asked = {table.path: threads.submit(_stored, warehouse, table, hours) for table in pipeline.published}
        read = [source.table for node in pipeline.nodes for source in node.inputs if source.elsewhere]
        tables = tuple(dict.fromkeys((*pipeline.tables, *read)))
        inventory = {table.path: lake.inventory(table, pipeline.raw.event_time if table == raw else "") for table in tables}
        # After the lake: what is written in between is not in the snapshots that we know, and is left out.
        history = {table.path: _of_this_lake(ledger.lake_history(str(table)), inventory[table.path]) for table in tables}
        there = {path: _hours_of(held) for path, held in inventory.items()}
        stale = stale_hours(pipeline, hours, Known(lake, inventory[raw.path], history, there), now or hours.end)
    states: list[TableState] = []
    gaps: list[Gap] = []
    counts: dict[tuple[str, datetime], RowCounts] = {}
    for node in pipeline.nodes:
        table, held = node.table, inventory[node.table.path]
        here = there[table.path]
        gone = lake.gone([file for file in held.files if file.hour in hours])
        every = _rows(held.files)
        written = {hour: versions[-1] for hour, versions in history[table.path].items()}
        found = _lost_files(table, hours, held.files, gone)
        if node.reads is None:
            expected_empty = expected_empty_hours(hours, pipeline.expected_empty_hours, every, here)
            found += landing_gaps(str(table), hours, here, every, expected_empty, written)
        else:
            above = set.intersection(*(set(there[source.table.path]) for source in node.inputs))
            found += lake_gaps(str(table), [str(source) for source in node.inputs], hours, here, above)
        found += count_gaps(str(table), [hour for hour in hours if hour in here], every, written)
        if node.reads is None and not isinstance(pipeline.source, KafkaTopic):
            # Files that nobody noted have nothing to differ from.
            noted = [hour for hour in hours if hour in here and hour in written and written[hour].source_version]
            versions = versions_of(pipeline.source, connect, lambda: now or hours.end, noted)
            found += source_gaps(str(table), versions, written)
        if node.reads is None and isinstance(pipeline.source, KafkaTopic):
            with_next = HourRange(hours.start, hours.end + HOUR)
            counted = {gap.hour for gap in found}
            by_offset = offset_gaps(str(table), hours, ledger.offsets(str(table), list(with_next)))
            found += [gap for gap in by_offset if gap.hour not in counted]
        damaged = {gap.hour for gap in found}
        counts |= _lake_counts(str(table), hours, _rows(file for file in held.files if file.uri not in gone), written)
        state = TableState(table, {hour: rows for hour, rows in every.items() if hour in hours}, frozenset(here))
        if node.published:
            # An hour that the lake has lost is built first; until then there is nothing to compare with.
            comparable = [hour for hour in hours if hour in here and hour not in damaged]
            files = [file for file in held.files if file.hour in hours and file.hour not in damaged]
            stored = asked[table.path].result()
            state = _with_fingerprints(state, hours, comparable, files, warehouse, ledger, loading, stored)
            judged = warehouse_gaps(f"warehouse/{table.name}", hours, state.lake, state.net, state.final, set(comparable))
            gaps += _with_tenants(judged, table, files, warehouse, loading) if stored else judged
            counts |= _warehouse_counts(state, hours, set(comparable), counts)
            reasons = dict(stale[table.path])
            if stored:
                decided = finalizable_hours(
                    pipeline, node, [hour for hour in hours if hour in here], warehouse, there[raw.path]
                )
                reasons = {**decided, **reasons}
        else:
            reasons = dict(stale[table.path])
        found += stale_gaps(str(table), {hour: why for hour, why in reasons.items() if hour in here})
        gaps += _first_of_each_hour(found)
        states.append(state)
    return Survey(pipeline.name, hours, tuple(states), tuple(sorted(gaps)), _known(counts, gaps))


def _lake_counts(
    table: str, hours: HourRange, rows: Mapping[datetime, int], written: Mapping[datetime, Written]
) -> dict[tuple[str, datetime], RowCounts]:
    """What the ledger says was written, and what can be read."""
    claims = {hour: written[hour].rows if hour in written else None for hour in hours}
    return {(table, hour): RowCounts(claims[hour], rows.get(hour, 0)) for hour in hours}


def _warehouse_counts(
    state: TableState, hours: HourRange, comparable: Collection[datetime], lake: Mapping[tuple[str, datetime], RowCounts]
) -> dict[tuple[str, datetime], RowCounts]:
    """What the lake has, or should have where it is damaged itself, and what the warehouse has."""
    table, counts = f"{WAREHOUSE}/{state.table.name}", {}
    for hour in hours:
        expected = state.lake[hour].rows if hour in comparable else lake[str(state.table), hour].expected
        counts[table, hour] = RowCounts(expected, state.net[hour].rows)
    return counts


def _known(counts: Mapping[tuple[str, datetime], RowCounts], gaps: Iterable[Gap]) -> dict[tuple[str, datetime], RowCounts]:
    """The counts without expectations that a gap has refuted: a lake hour that is damaged has not all its rows."""
    refuted = {
        key: RowCounts(None, counts[key].found)
        for gap in gaps
        if gap.place is Place.LAKE and (counts[key := (gap.table, gap.hour)].expected == counts[key].found)
    }
    return {**counts, **refuted}


def _of_this_lake(history: History, held: TableInventory) -> History:
    """Without what was written to another lake whose ledger is in the same warehouse, and what the inventory does not have yet.

    Its snapshots are not ours; and what was written to our lake has a snapshot, or one that has expired.
    """

    def is_ours(one: Written) -> bool:
        expired = one.lake_table == held.table_id and one.started_at < held.expired_until
        return expired or one.snapshot_id in held.snapshots

    own = {hour: [one for one in versions if is_ours(one)] for hour, versions in history.items()}
    return {hour: versions for hour, versions in own.items() if versions}


def _hours_of(held: TableInventory) -> set[datetime]:
    return {file.hour for file in held.files} | held.empty


def _rows(files: Iterable[LakeFile]) -> dict[datetime, int]:
    counts: dict[datetime, int] = {}
    for file in files:
        counts[file.hour] = counts.get(file.hour, 0) + file.rows
    return counts


def _lost_files(table: Table, hours: HourRange, files: Iterable[LakeFile], gone: Collection[str]) -> list[Gap]:
    if not gone:
        return []
    by_hour: dict[datetime, list[LakeFile]] = {}
    for file in files:
        if file.hour in hours:
            by_hour.setdefault(file.hour, []).append(file)
    found = []
    for hour, own in by_hour.items():
        lost = [file for file in own if file.uri in gone]
        if lost:
            kind = GapKind.MISSING if len(lost) == len(own) else GapKind.SHORT
            rows = sum(file.rows for file in lost)
            evidence = f"{len(lost)} of {len(own)} files with {rows} rows are gone from the storage, or damaged"
            found.append(Gap(str(table), hour, Place.LAKE, kind, evidence))
    return found


def _first_of_each_hour(gaps: Iterable[Gap]) -> list[Gap]:
    """One gap for each hour of a table: the first, which is the one to be mended first."""
    found: dict[datetime, Gap] = {}
    for gap in gaps:
        found.setdefault(gap.hour, gap)
    return list(found.values())


def _stored(warehouse: Warehouse, table: Table, hours: HourRange) -> tuple[Prints, Prints] | None:
    """The fingerprints of net state and FINAL; None where the warehouse has no such table."""
    if not target_exists(warehouse, table):
        return None
    every = list(hours)
    return fingerprints.net(warehouse, table, every), fingerprints.final(warehouse, table, every)


def _with_fingerprints(
    state: TableState,
    hours: HourRange,
    comparable: Collection[datetime],
    files: list[LakeFile],
    warehouse: Warehouse,
    ledger: Ledger,
    loading: Loading,
    stored: tuple[Prints, Prints] | None,
) -> TableState:
    """The state with the fingerprints of the lake, and of what is `stored` in the warehouse."""
    table, every = state.table, list(hours)
    by_hour: dict[datetime, list[LakeFile]] = {hour: [] for hour in comparable}
    for file in files:
        by_hour[file.hour].append(file)
    lake = dict.fromkeys(every, EMPTY)
    published = ledger.published_from(
        str(table), every, server_version=warehouse.server_version, schema_hash=schema_hash(table)
    )
    for hour, (digest, desired) in published.items():
        if (own := by_hour.get(hour)) and digest == input_digest(own):
            lake[hour] = desired
            del by_hour[hour]
    unknown = {hour: own for hour, own in by_hour.items() if own}
    lake |= file_fingerprints(warehouse, table, list(unknown), [file.uri for own in unknown.values() for file in own], loading)
    net, final = stored or (dict.fromkeys(every, EMPTY), dict.fromkeys(every, EMPTY))
    return replace(state, published=True, lake=lake, net=net, final=final)


def _with_tenants(
    gaps: list[Gap], table: Table, files: Iterable[LakeFile], warehouse: Warehouse, loading: Loading
) -> list[Gap]:
    """The gaps with the tenants whose rows differ, where rows belong to tenants and the damage is not boundless."""
    hours = {gap.hour for gap in gaps}
    if not table.tenant or not hours or len(hours) > _HOURS_BY_TENANT:
        return gaps
    want = file_tenants(warehouse, table, hours, [file.uri for file in files if file.hour in hours], loading)
    have, read = fingerprints.by_tenant(warehouse, table, hours), fingerprints.by_tenant(warehouse, table, hours, final=True)
    found = []
    for gap in gaps:
        one, two, three = (prints.get(gap.hour, {}) for prints in (want, have, read))
        names = sorted({*one, *two, *three})
        if gap.kind is GapKind.INCONSISTENT:
            differing = [name for name in names if two.get(name, EMPTY) != three.get(name, EMPTY)]
        else:
            differing = [name for name in names if one.get(name, EMPTY) != two.get(name, EMPTY)]
        found.append(replace(gap, tenants=tuple(differing[:_MOST_TENANTS])))
    return found
