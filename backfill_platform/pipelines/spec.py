"""The declarations a pipeline is written with.

A pipeline is one Python value: a source of lines, a parser, one pandera schema per table, and a pure
`DataFrame -> DataFrame` function with a declared window per derived table. Assets, checks, lake tables, ClickHouse tables and
the command line follow from it. `clickstream.py` is an example to copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from pandera.pyspark import DataFrameModel

from backfill_platform.adapters.files.formats import Text
from backfill_platform.adapters.files.hourly import FileSource
from backfill_platform.adapters.iceberg.source_table import IcebergTable
from backfill_platform.adapters.kafka.consumer import Handler
from backfill_platform.adapters.kafka.topic import MESSAGE_COLUMNS, KafkaTopic
from backfill_platform.adapters.records.fitting import TYPES as FITTED
from backfill_platform.adapters.records.frames import GIVEN
from backfill_platform.adapters.spark.checks import AUDIT_CHECKS, SESSION_CHECKS, HourRule, RowRule, Rules, check_name
from backfill_platform.adapters.spark.column_types import spark_type
from backfill_platform.adapters.spark.schema_rules import rules_of
from backfill_platform.adapters.spark.sessions import SESSION_START
from backfill_platform.adapters.spark.stored_values import storable
from backfill_platform.adapters.sql.query import SqlQuery
from backfill_platform.domain.change_limits import ChangeLimits
from backfill_platform.domain.code_version import code_digest
from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.expected_empty_hours import ExpectedEmptyHours
from backfill_platform.domain.gap_policy import GapPolicy
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import Node
from backfill_platform.domain.run_order import PRIORITIES
from backfill_platform.domain.tables import Layer, Partitioning, Table, TargetTable, check_storable
from backfill_platform.domain.windows import NO_MARGIN, UntilClosed, Window
from backfill_platform.errors import SpecError, UsageError
from backfill_platform.pipelines.declared_tables import table_of, with_earlier_names
from backfill_platform.pipelines.inputs import check_inputs, check_lineage, inputs_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Schema = type[DataFrameModel]
DeclaredSource = FileSource | KafkaTopic | IcebergTable | SqlQuery

# As many as the shipped dagster.yaml has limits for.
RUNS_AT_ONCE = range(1, 9)
_OWNER = re.compile(r"team:[\w.-]+\Z|[^@\s]+@[^@\s]+\.[^@\s]+\Z")


@dataclass(frozen=True)
class RawTable:
    """The first table of a pipeline: the events as they arrived, by ingestion hour.

    `parse` takes a DataFrame with the column `line` and returns it with the schema's columns added, except the hour; values
    that it cannot read become NULL, which the schema's checks find. Files of records need no parser: without one, the columns
    are taken from them by name; one that is given gets the records' own columns. `same_event` names the columns that identify
    an event: rows that are equal in them are one event delivered several times; all are landed and counted, and derived tables
    see the event once. `version` and `was` are as in DerivedTable.
    """

    name: str
    schema: Schema
    parse: Callable[[DataFrame], DataFrame] | None = None
    event_time: str = "event_time"
    same_event: tuple[str, ...] = ()
    rules: tuple[RowRule | HourRule, ...] = ()
    version: str = ""
    was: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def table(self) -> Table:
        """The table as the engines see it."""
        plain = table_of(Layer.RAW, self.name, self.schema, hour="ingestion_hour", key=(), partitioning=Partitioning.HOUR)
        if renamed := sorted({self.event_time, *MESSAGE_COLUMNS} & self.was.keys()):
            raise SpecError(f"{plain}: {', '.join(renamed)} cannot be renamed; the hours of events are found by it")
        return replace(plain, columns=tuple(with_earlier_names(plain, self.was)))

    @cached_property
    def taken(self) -> Mapping[str, str]:
        """The columns taken from records by name, with Spark's names of their types; none where a parser makes them."""
        columns = [] if self.parse else [column for column in self.table.columns if column.name != self.table.hour]
        return {column.name: spark_type(column.type).simpleString() for column in columns}


@dataclass(frozen=True)
class DerivedTable:
    """A table computed from others.

    `build` is a pure function of the rows of `reads` within the declared window; where the window reads until sessions are
    closed, each row also has `session_started_at`. With several `reads` it gets their rows in this order; `window` is that of
    the first, a table of this pipeline, and `windows` has fixed margins for others, by name. The others may be derived tables
    of the pipelines that this one names as `upstream`. An hour is built when all of them have what it needs. Of its result,
    only rows of the hours that are built are used. `key` names the columns that, with the hour, identify a row; it orders the
    ClickHouse table. `tenant` is the key column with the owner of the row, so that the rows of one tenant can be undone alone.
    `version` replaces the digest of the code, by which hours built by other code are found (`domain/code_version.py`).
    `lineage` names, for computed columns, the columns of `reads` that they come from; columns with the same name in `reads`
    need no entry. `owners` are the pipeline's where none are named. `stored_as` gives columns another type in ClickHouse than
    their own, such as `{"status": "LowCardinality(String)", "id": "UUID"}`; rows with a value that would be wrapped, rounded,
    cut or padded there go to quarantine. `target` names a ClickHouse table that has another name, or collapses by another
    column. `was` gives columns that were renamed the name, or the names, that they had before, such as `{"total": "amount"}`;
    it stays, because older files of the lake have these names (`backfill migrate`).
    """

    layer: Layer
    name: str
    schema: Schema
    reads: str | tuple[str, ...]
    build: Callable[..., DataFrame]
    window: Window = NO_MARGIN
    key: tuple[str, ...] = ()
    rules: tuple[RowRule | HourRule, ...] = ()
    partitioning: Partitioning = Partitioning.DAY
    publish: bool = True
    tenant: str = ""
    version: str = ""
    lineage: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    windows: Mapping[str, Window] = field(default_factory=dict)
    owners: tuple[str, ...] = ()
    stored_as: Mapping[str, str] = field(default_factory=dict)
    target: TargetTable = field(default_factory=TargetTable)
    was: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tables that it reads, in the order in which `build` gets them."""
        return (self.reads,) if isinstance(self.reads, str) else self.reads

    @cached_property
    def table(self) -> Table:
        """The table as the engines see it."""
        plain = table_of(self.layer, self.name, self.schema, hour="hour", key=self.key, partitioning=self.partitioning)
        if unknown := sorted(self.stored_as.keys() - set(plain.column_names)):
            raise SpecError(f"{plain}: stored_as names {', '.join(unknown)}, which is no column of it")
        columns = tuple(
            replace(column, stored_as=self.stored_as.get(column.name, "")) for column in with_earlier_names(plain, self.was)
        )
        return replace(plain, columns=columns, tenant=self.tenant, target=self.target)


@dataclass(frozen=True)
class Pipeline:
    """One event stream and the tables derived from it.

    `start` is its first hour, `end` the end of its last one; an `end` of None means that it is live. `seal_after` is how long
    after its end an hour may still be written by others; until then no repair is published to it. `expected_empty_hours` are
    hours in which no events are expected. `on_gaps` says how gaps are handled; without it, they are only searched for on
    request. `recipients` names who gets messages about its repairs; their addresses are secret, and so a setting
    (BACKFILL_RECIPIENTS). `upstream` are other pipelines whose derived tables are read here by name. `handlers` are what
    `backfill drain` can do with messages, by name: each gets a batch and returns what to send onward. `owners` are addresses
    of mail or `team:NAME`. `priority` says whose runs go first where several pipelines wait, from -10 to 10; runs of one
    priority go by their hours, the newest first. `runs_at_once` is the most runs of the pipeline that Dagster starts at a time,
    up to 8; without it, dagster.yaml says how many. Raises SpecError when tables do not fit together.
    """

    name: str
    description: str
    start: datetime
    end: datetime | None
    source: DeclaredSource
    raw: RawTable
    derived: tuple[DerivedTable, ...]
    owners: tuple[str, ...] = ()
    seal_after: timedelta = timedelta(hours=1)
    expected_empty_hours: tuple[ExpectedEmptyHours, ...] = ()
    on_gaps: GapPolicy | None = None
    recipients: tuple[str, ...] = ()
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    upstream: tuple[Pipeline, ...] = ()
    priority: int = 0
    runs_at_once: int | None = None

    def __post_init__(self) -> None:
        names: object = self.recipients
        if isinstance(names, str):  # a forgotten comma
            raise SpecError(f"pipeline {self.name}: recipients are a tuple of names, such as ('{names}',)")
        self._check_turns()
        self._check_owners(self.name, self.owners)
        for table in self.derived:
            self._check_owners(f"{self.name}: {table.name}", table.owners)
        self._check_order()
        self._check_parser()
        self._check_event_time()
        self._check_names("same_event", self.raw.same_event, self.raw.table)
        for derived in self.derived:
            check_lineage(self, derived)
            self._check_names(f"the lineage of {derived.name}", tuple(derived.lineage), derived.table)
            if derived.publish:
                check_storable(derived.table)
            if isinstance(derived.window.lookahead, UntilClosed):
                self._check_sessions(derived, derived.window.lookahead)
        for name in (self.raw.name, *(derived.name for derived in self.derived)):
            self._check_rule_names(name)
        if self.on_gaps and self.on_gaps.change_limits:
            try:
                self.check_change_limits(ChangeLimits.parse(self.on_gaps.change_limits))
            except UsageError as error:
                raise SpecError(f"pipeline {self.name}: on_gaps: {error}") from None

    def _check_turns(self) -> None:
        """Refuse a priority or a limit that the run queue does not know."""
        if self.priority not in PRIORITIES:
            raise SpecError(f"pipeline {self.name}: priority is from {PRIORITIES[0]} to {PRIORITIES[-1]}, not {self.priority}")
        if self.runs_at_once is not None and self.runs_at_once not in RUNS_AT_ONCE:
            raise SpecError(
                f"pipeline {self.name}: runs_at_once is from {RUNS_AT_ONCE[0]} to {RUNS_AT_ONCE[-1]}, not {self.runs_at_once}"
            )

    def _check_owners(self, of: str, owners: tuple[str, ...]) -> None:
        """Refuse owners that Dagster does not take: it would refuse all pipelines with them."""
        given: object = owners
        if isinstance(given, str):  # a forgotten comma
            raise SpecError(f"pipeline {of}: owners are a tuple of names, such as ('{given}',)")
        for owner in owners:
            if not _OWNER.match(owner):
                raise SpecError(f"pipeline {of}: '{owner}' is no owner; write an address of mail, or team:NAME")

    def _check_order(self) -> None:
        """Refuse derived tables of other layers, of a name that is taken, or declared before the table they read."""
        declared = {self.raw.name}
        for derived in self.derived:
            if derived.layer not in (Layer.TRANSFORMED, Layer.AGGREGATED):
                raise SpecError(f"pipeline {self.name}: {derived.name} must be transformed or aggregated")
            check_inputs(self, derived, declared)
            if derived.name in declared:
                raise SpecError(f"pipeline {self.name}: '{derived.name}' is declared twice")
            others = (other for other in self.derived if other.publish)
            same = list(dict.fromkeys(other.name for other in others if other.table.stored_in == derived.table.stored_in))
            if derived.publish and len(same) > 1:
                place = ".".join(derived.table.stored_in)
                raise SpecError(f"pipeline {self.name}: {' and '.join(same)} are both published to {place}")
            declared.add(derived.name)

    def _check_parser(self) -> None:
        """Refuse a source of lines or messages without a parser, and columns that records cannot be taken into."""
        if self.raw.parse:
            return
        if others := sorted(f"{name} ({kind})" for name, kind in self.raw.taken.items() if kind not in FITTED):
            raise SpecError(
                f"pipeline {self.name}: records are taken into {', '.join(FITTED)}, not into {', '.join(others)}; take the "
                f"column as one of these and convert it in a derived table, or give {self.raw.name} a parse"
            )
        if isinstance(self.source, KafkaTopic) or isinstance(getattr(self.source, "format", None), Text):
            raise SpecError(
                f"pipeline {self.name}: its source gives lines, so {self.raw.name} needs a parse that takes them apart"
            )
        if clash := sorted(name for name in self.raw.taken if name.lower() in GIVEN):
            raise SpecError(f"pipeline {self.name}: the platform adds {', '.join(clash)} to its records; rename the column")

    def _check_event_time(self) -> None:
        """Refuse a raw table without a usable event time, or without the columns of its topic."""
        event_time, columns = self.raw.event_time, self.raw.table.column_names
        if event_time not in columns:
            raise SpecError(f"pipeline {self.name}: the event time '{event_time}' is not a column of {self.raw.name}")
        if self.raw.table.column(event_time).nullable or self.raw.table.column(event_time).type is not ColumnType.TIMESTAMP:
            raise SpecError(f"pipeline {self.name}: the event time '{event_time}' must be a timestamp that is not nullable")
        lacking = [name for name in MESSAGE_COLUMNS if name not in columns]
        if isinstance(self.source, KafkaTopic) and lacking:
            raise SpecError(
                f"pipeline {self.name}: its source is a topic, so the schema of {self.raw.name} must extend KafkaMessage "
                f"(backfill_platform.pipelines.kafka); it lacks {', '.join(lacking)}"
            )

    def _check_sessions(self, derived: DerivedTable, ahead: UntilClosed) -> None:
        """Refuse a table of sessions that does not read the raw table, or lacks columns."""
        if derived.inputs[0] != self.raw.name:
            raise SpecError(
                f"pipeline {self.name}: {derived.name} reads until sessions are closed, so it must read the raw table "
                f"{self.raw.name} first, not {derived.inputs[0]}"
            )
        self._check_names(f"the session key of {derived.name}", (ahead.key,), self.raw.table)
        if SESSION_START in map(str.lower, self.raw.table.column_names):
            raise SpecError(
                f"pipeline {self.name}: the platform adds {SESSION_START} to the events of {derived.name}; rename the "
                f"column of {self.raw.name}"
            )
        columns = derived.table.column_names
        if lacking := [name for name in (ahead.started, ahead.ended, "is_open") if name not in columns]:
            raise SpecError(
                f"pipeline {self.name}: {derived.name} reads until sessions are closed, so its schema needs "
                f"{', '.join(lacking)}"
            )

    def _check_rule_names(self, name: str) -> None:
        """Refuse blocking rules of a table whose names are equal once they are check names, or are names of the platform."""
        names = [check_name(rule.name) for rule in self.rules(name).blocking]
        if clash := sorted({check for check in names if names.count(check) > 1 or check in AUDIT_CHECKS + SESSION_CHECKS}):
            raise SpecError(f"pipeline {self.name}: {name} has several checks named {', '.join(clash)}; rename a rule")

    def _check_names(self, what: str, names: tuple[str, ...], table: Table) -> None:
        if unknown := ", ".join(name for name in names if name not in table.column_names):
            have = ", ".join(table.column_names)
            raise SpecError(f"pipeline {self.name}: {what} names {unknown}, which {table} does not have; it has {have}")

    def declared(self, name: str) -> RawTable | DerivedTable:
        """The declaration of a table by its bare name. Raises KeyError."""
        if name == self.raw.name:
            return self.raw
        for derived in self.derived:
            if derived.name == name:
                return derived
        raise KeyError(name)

    def owners_of(self, name: str) -> tuple[str, ...]:
        """The owners of a table: its own, else those of the pipeline."""
        declared = self.declared(name)
        return (isinstance(declared, DerivedTable) and declared.owners) or self.owners

    def rules(self, name: str) -> Rules:
        """The checks of a table: its schema's and its own."""
        declared = self.declared(name)
        fitting = storable(declared.table) if isinstance(declared, DerivedTable) and declared.publish else ()
        return rules_of(declared.schema, (*declared.rules, *fitting))

    def audit_checks(self, name: str) -> tuple[str, ...]:
        """The names of the checks that the platform itself makes of each hour of a table."""
        declared = self.declared(name)
        sessions = isinstance(declared, DerivedTable) and isinstance(declared.window.lookahead, UntilClosed)
        return AUDIT_CHECKS + SESSION_CHECKS if sessions else AUDIT_CHECKS

    def lineage(self, name: str) -> dict[str, tuple[str, ...]]:
        """For each column of a derived table that comes from other columns: these columns of the table it reads."""
        declared = self.declared(name)
        if isinstance(declared, RawTable):
            return {}
        above = {column for one in inputs_of(self, declared) for column in one.table.column_names}
        same = {column: (column,) for column in declared.table.column_names if column in above}
        return {**same, **{column: names for column, names in declared.lineage.items() if names}}

    def code_version(self, name: str) -> str:
        """The version of the code that computes a table: as declared, else a digest of it and of the table's declaration."""
        declared = self.declared(name)
        if declared.version:
            return declared.version
        function = (declared.parse or self._how_taken()) if isinstance(declared, RawTable) else declared.build
        window = None if isinstance(declared, RawTable) else declared.window
        rules = self.rules(name)
        checks = tuple(rule.name for rule in (*rules.rows, *rules.blocking))
        columns = tuple(
            (column.name, str(column.type), column.nullable, *filter(None, [column.stored_as]))
            for column in declared.table.columns
        )
        # Only where there are several inputs: what others were built with must not change.
        beside = () if isinstance(declared, RawTable) or not declared.inputs[1:] else (declared.inputs, dict(declared.windows))
        return code_digest(function, window, columns, checks, *beside, *(rule.holds for rule in declared.rules))

    def _how_taken(self) -> str:
        """What decides how records become rows, besides the table itself: a format, or which rows are asked for."""
        return repr(getattr(self.source, "format", self.source))

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables, the raw one first."""
        return (self.raw.table, *(derived.table for derived in self.derived))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The tables in the order of the flow."""
        raw = Node(self.raw.table, None)
        found = [raw]
        for derived in self.derived:
            first, *beside = inputs_of(self, derived)
            found.append(Node(derived.table, first.table, first.window, derived.publish, tuple(beside)))
        return tuple(found)

    @property
    def published(self) -> tuple[Table, ...]:
        """The tables that are kept in ClickHouse."""
        return tuple(derived.table for derived in self.derived if derived.publish)

    @property
    def backfill_topic(self) -> str:
        """The topic for replays of its hours: as its source topic declares, or named after the pipeline if it reads files."""
        return self.source.backfill_topic if isinstance(self.source, KafkaTopic) else f"{self.name}.backfill"

    def check_tenants(self, tenants: Collection[str]) -> None:
        """Raise UsageError when tenants are given, but no table has a tenant column."""
        if tenants and not any(table.tenant for table in self.tables):
            raise UsageError(f"pipeline {self.name} declares no tenant column, so its rows cannot be told apart by tenant")

    def check_change_limits(self, limits: ChangeLimits) -> None:
        """Raise UsageError when the limits name a table or column that the pipeline does not publish."""
        limits.check_names(self.published)

    def hours_until(self, now: datetime) -> HourRange:
        """All hours of the pipeline up to its end, or up to the last full hour before `now` where it is live."""
        return HourRange(self.start, self.end or now.replace(minute=0, second=0, microsecond=0))
