"""Surveying a range: what the lake and the warehouse hold, hour by hour, and which hours are damaged.

Truth comes from data: row counts from Iceberg metadata, fingerprints taken by ClickHouse of its own rows and of the lake's
files. Nothing is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from backfill_platform.core.gaps import Gap, lake_gaps, landing_gaps, stale_gaps, warehouse_gaps
from backfill_platform.core.hours import HourRange
from backfill_platform.core.identity import EMPTY, Fingerprint
from backfill_platform.core.tables import Table
from backfill_platform.core.windows import NO_MARGIN, UntilClosed, stretches
from backfill_platform.lake.tables import Lake, LakeFile
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.warehouse import fingerprints
from backfill_platform.warehouse.client import Warehouse
from backfill_platform.warehouse.outdated import decided_since
from backfill_platform.warehouse.preconditions import target_exists
from backfill_platform.warehouse.staging import Loading, file_fingerprints

Prints = Mapping[datetime, Fingerprint]


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
    """The state of all tables of a pipeline over `hours`, and the damaged hours found in it."""

    pipeline: str
    hours: HourRange
    tables: tuple[TableState, ...]
    gaps: tuple[Gap, ...]


def survey(pipeline: Pipeline, hours: HourRange, lake: Lake, warehouse: Warehouse, loading: Loading = Loading.PULL) -> Survey:
    """Look at every table of the pipeline over the half-open range of hours."""
    states: list[TableState] = []
    gaps: list[Gap] = []
    built: dict[tuple[str, str], set[datetime]] = {}
    for node in pipeline.nodes:
        table = node.table
        here = built[table.path] = lake.built_hours(table)
        state = TableState(table, lake.rows_by_hour(table, hours), frozenset(here))
        if node.reads is None:
            gaps += landing_gaps(str(table), hours, here)
        else:
            gaps += lake_gaps(str(table), str(node.reads), hours, here, built[node.reads.path])
        if node.published:
            state = _with_fingerprints(state, hours, lake.files(table, hours), warehouse, loading)
            # An hour that the lake does not have is built first; until then there is nothing to compare with.
            comparable = [hour for hour in hours if hour in here]
            gaps += warehouse_gaps(f"warehouse/{table.name}", comparable, state.lake, state.net, state.final)
        ahead = node.window.lookahead
        if node.published and isinstance(ahead, UntilClosed) and target_exists(warehouse, table) and here:
            landed = built[pipeline.raw.table.path]
            parts, _ = stretches([hour for hour in hours if hour in here], landed, NO_MARGIN, pipeline.start, pipeline.end)
            for part in parts:
                outdated = decided_since(
                    warehouse, table, part.hours, ended=ahead.ended, gap=ahead.gap, cap=ahead.cap, horizon=part.horizon
                )
                gaps += stale_gaps(str(table), outdated)
        states.append(state)
    return Survey(pipeline.name, hours, tuple(states), tuple(sorted(gaps)))


def _with_fingerprints(
    state: TableState, hours: HourRange, files: list[LakeFile], warehouse: Warehouse, loading: Loading
) -> TableState:
    table, every = state.table, list(hours)
    lake = file_fingerprints(warehouse, table, every, [file.uri for file in files], loading)
    if target_exists(warehouse, table):
        net, final = fingerprints.net(warehouse, table, every), fingerprints.final(warehouse, table, every)
    else:
        net = final = dict.fromkeys(every, EMPTY)
    return replace(state, published=True, lake=lake, net=net, final=final)
