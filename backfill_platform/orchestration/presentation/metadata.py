"""How outcomes look in Dagster: metadata of an hour, and a table with bars over a range."""

from collections.abc import Mapping, Sequence

import dagster as dg

from backfill_platform.domain.hours import format_hour
from backfill_platform.domain.plan import DRY_RUN, WAREHOUSE, AssetPath
from backfill_platform.domain.tables import Table
from backfill_platform.domain.visible_text import visible
from backfill_platform.pipelines.spec import Pipeline, RawTable
from backfill_platform.repair.outcomes import CheckResult, Fact, HourOutcome, Rows
from backfill_platform.reports.facts import facts_of, tables_of
from backfill_platform.reports.markdown import markdown

_BAR = 12
_MOST_HOURS = 200


def hour_metadata(outcome: HourOutcome, table: Table, repair_id: str) -> dict[str, dg.MetadataValue]:
    """The facts of an hour, and its tables as Markdown. Dagster plots its own name of the row count."""
    facts = facts_of(outcome)
    rows = {"dagster/row_count": facts["rows"]} if "rows" in facts else {}
    return {**_metadata({**rows, **facts}, tables_of(outcome, table)), "repair": dg.MetadataValue.text(repair_id)}


def check_metadata(check: CheckResult) -> dict[str, dg.MetadataValue]:
    """What a check found, with its sample rows as Markdown."""
    return _metadata(check.facts, check.tables)


def facts_metadata(facts: Mapping[str, Fact]) -> dict[str, dg.MetadataValue]:
    """Facts as typed metadata: Dagster plots the numbers over hours."""
    metadata: dict[str, dg.MetadataValue] = {}
    for name, value in facts.items():
        if isinstance(value, bool):
            metadata[name] = dg.MetadataValue.bool(value)
        elif isinstance(value, int):
            metadata[name] = dg.MetadataValue.int(value)
        elif isinstance(value, float):
            metadata[name] = dg.MetadataValue.float(value)
        else:
            metadata[name] = dg.MetadataValue.text(visible(value))
    return metadata


def range_overview(outcomes: Sequence[HourOutcome]) -> str:
    """A Markdown table of the hours of a step: the verdict, a bar of the rows, and all numeric facts that are not always 0."""
    ordered = sorted(outcomes, key=lambda outcome: outcome.hour)
    facts = {outcome.hour: facts_of(outcome) for outcome in ordered}
    names = list(
        dict.fromkeys(name for values in facts.values() for name, value in values.items() if _is_number(value) and value)
    )
    most = max((_rows(outcome) for outcome in ordered), default=0)
    rows = [
        (
            # The page breaks lines at hyphens; this one looks the same and holds an hour together.
            format_hour(outcome.hour).replace("-", "\N{NON-BREAKING HYPHEN}"),
            outcome.error or "ok",
            "█" * round(_BAR * _rows(outcome) / most) if most else "",
            *(facts[outcome.hour].get(name, "") for name in names),
        )
        for outcome in ordered[:_MOST_HOURS]
    ]
    headers = ("hour (UTC)", "verdict", "", *(name.replace("_", " ") for name in names))
    text = markdown(Rows("hours", headers, tuple(rows)))
    hidden = len(ordered) - len(rows)
    return text + (f"\n\n{hidden} more hours are not shown; each has its own page." if hidden else "")


def column_schema(table: Table) -> dg.TableSchema:
    """The declared columns, as Dagster shows them."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                column.name,
                str(column.type),
                description=column.description,
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in table.columns
        ]
    )


def column_lineage(pipeline: Pipeline, asset: AssetPath) -> dg.TableColumnLineage | None:
    """Where the columns of an asset come from: as declared for lake tables, and as they are for their warehouse copies."""
    prefix, name = asset
    declared = pipeline.declared(name)
    columns: dict[str, tuple[str, ...]] = {}
    if prefix in (DRY_RUN, WAREHOUSE):
        sources = [declared.table]
        columns = {column: (column,) for column in declared.table.column_names}
    elif isinstance(declared, RawTable):
        return None
    else:
        sources = [one.table for node in pipeline.nodes if node.table == declared.table for one in node.inputs]
        columns = pipeline.lineage(name)
    return dg.TableColumnLineage(
        {
            column: [
                dg.TableColumnDep(dg.AssetKey(list(source.path)), above)
                for above in names
                for source in sources
                if above in source.column_names
            ]
            for column, names in columns.items()
        }
    )


def _metadata(facts: Mapping[str, Fact], tables: Sequence[Rows]) -> dict[str, dg.MetadataValue]:
    return {**facts_metadata(facts), **{rows.title: dg.MetadataValue.md(markdown(rows)) for rows in tables}}


def _is_number(value: Fact) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rows(outcome: HourOutcome) -> int:
    if outcome.lake is not None:
        return outcome.lake.rows
    return outcome.target.result.desired.rows if outcome.target is not None else 0
