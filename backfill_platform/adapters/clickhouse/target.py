"""What a target is, and how repairs are published to it: read from `system.tables` by `preconditions`."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from backfill_platform.adapters.clickhouse.sql import identifier, names, seen, sign_of, sorting_key
from backfill_platform.domain.tables import Partitioning, Table, TargetEngine

# The ways to write that a table is partitioned by hours, days, weeks or months.
PARTITIONS = {
    Partitioning.HOUR: ("toStartOfHour({})",),
    Partitioning.DAY: ("toYYYYMMDD({})", "toDate({})", "toStartOfDay({})"),
    Partitioning.WEEK: ("toMonday({})",),
    Partitioning.MONTH: ("toYYYYMM({})", "toStartOfMonth({})"),
}


class Mode(StrEnum):
    """How a delta becomes part of a target."""

    ATTACH = "attach"  # all partitions with one statement, which materialized views do not see
    INSERT = "insert"  # partition by partition, each insert with its own token; views see it like any insert
    REPLACE = "replace"  # partition by partition, each rewritten with the rows that stay; views do not see it


@dataclass(frozen=True)
class Target:
    """A table of the warehouse that repairs may be published to, as `system.tables` describes it.

    `version` is the version column, of a VersionedCollapsingMergeTree or a ReplacingMergeTree, that repairs count up;
    `declared_version` is one that the schema declares, so that the lake has it. `views` are the materialized views that read
    the table. `repeatable` says whether an INSERT may be sent again with its token: the table and those that the views fill
    remember it. `own` are columns of the table that are not declared: a cancel copies them, a state gets their default;
    `computed` are those of them that are MATERIALIZED. `one_block` says whether cancels and states of a partition can be
    inserted together. `expires` says whether it may have a TTL, of the table or of a column, that drops rows or values while
    parts are merged. `replaces` says whether the server can replace a partition for good.
    """

    table: Table
    engine: str = "CollapsingMergeTree"
    version: str | None = None
    version_type: str = ""
    declared_version: str | None = None
    views: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    partition: str = ""
    order: str = ""
    repeatable: bool = False
    one_block: bool = True
    expires: bool = False
    replaces: bool = True

    @property
    def replicated(self) -> bool:
        """Whether the engine is a Replicated one."""
        return self.engine.startswith("Replicated")

    @property
    def plain_engine(self) -> str:
        """The engine clauses of a table that merges rows in the same way and is not replicated."""
        sign = self.table.sign if self.table.collapses else None
        arguments = ", ".join(
            identifier(name) for name in (sign, self.version or self.declared_version, self.table.target.deleted) if name
        )
        return f"{self.engine.removeprefix('Replicated')}({arguments}) {self.by_partition}ORDER BY ({self.order})"

    @property
    def by_partition(self) -> str:
        """Its PARTITION BY clause, or nothing."""
        return f"PARTITION BY {self.partition} " if self.partition else ""

    @property
    def copied(self) -> tuple[str, ...]:
        """The columns that a cancel has from the row that it cancels: all but the sign, or the mark of deleted rows."""
        return (*self.table.stored_names, *self.own, *([self.version] if self.version else []))

    @property
    def settings(self) -> Mapping[str, str | int]:
        """What an insert into the table, or into a copy of it, needs so that all of these columns can be written."""
        return {"insert_allow_materialized_columns": 1} if self.computed else {}

    @property
    def rewritable(self) -> bool:
        """Whether the hours that share a partition are those that the declaration says, so that one can be replaced."""
        table = self.table
        if table.target.hour or "DateTime" not in str(table.column(table.hour).stored):
            return False
        if table.column(table.hour).stored.arguments != ("UTC",):
            return False
        expressions = {how.format(identifier(table.hour)) for how in PARTITIONS[table.partitioning]}
        return unquoted(self.partition) in {unquoted(one) for one in expressions}

    @property
    def mode(self) -> Mode:
        """REPLACE where no row takes another one back; INSERT where views would miss an ATTACH, or replicas ignore it."""
        if self.table.target.replaces_partitions:
            return Mode.REPLACE
        return Mode.INSERT if self.views or self.replicated else Mode.ATTACH

    @property
    def promise(self) -> str:
        """The mode with its reason, and what is guaranteed, as text."""
        return f"{self._how}; guaranteed: {self.guarantee}"

    @property
    def why(self) -> str:
        """The mode and its reason, as text; with what is guaranteed, where that is less than usual."""
        return self._how if self.table.collapses else self.promise

    @property
    def _how(self) -> str:
        if self.mode is Mode.REPLACE:
            return f"replace, partition by partition: rows of a {self.engine} cannot be taken back one by one"
        if self.replicated:
            return "insert, partition by partition: replicas may ignore an attached delta as a repetition"
        if self.views:
            return f"insert, partition by partition: {', '.join(self.views)} must see it"
        return "attach, all hours in one statement: no materialized view reads the table"

    @property
    def guarantee(self) -> str:
        """What readers and other writers of the table can rely on while it is repaired, in one sentence."""
        engine, at_once = self.table.target.engine, "all hours" if self.mode is Mode.ATTACH else "each partition"
        whole = f"{at_once} as before or as after"
        if self.mode is Mode.REPLACE:
            readers = "every reader sees" if engine == TargetEngine.PLAIN else "readers with FINAL see"
            others = "what others write to other partitions is kept; a partition that somebody writes meanwhile is refused"
            where = "" if self.partition else "; without PARTITION BY the whole table is rewritten"
            views = f"; {', '.join(self.views)} must be rebuilt for the hours" if self.views else ""
            return f"{readers} {whole}, {others}{where}{views}"
        if engine == TargetEngine.REPLACING:
            views = f", and {', '.join(self.views)} adds a changed row to what it had of it" if self.views else ""
            others = "others old rows beside new ones until merges; what others write is kept"
            return f"readers with FINAL see {whole}, {others}{views}"
        return f"readers with FINAL, or of sums over {self.table.sign}, see {whole}; what others write is kept"

    def stored(self, where: str) -> str:
        """A SELECT of the stored rows as readers should see them: what FINAL shows. `where` filters by the hour column.

        FINAL of a versioned collapsing table may show cancels, and several versions of one key, of which the newest counts.
        """
        everything = ", ".join(["*", *map(identifier, self.computed)])
        rows = f"SELECT {everything} FROM {seen(self.table)} WHERE {where}"
        if self.version is None or not self.table.collapses:
            return rows
        keys = names(sorting_key(self.table))
        return f"{rows} AND {sign_of(self.table)} = 1 ORDER BY {keys}, {identifier(self.version)} DESC LIMIT 1 BY {keys}"


def unquoted(expression: str) -> str:
    """An expression of ClickHouse without the quotes around its names."""
    return expression.replace("`", "")
