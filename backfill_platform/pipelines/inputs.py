"""What a derived table reads: tables of its own pipeline, and derived tables of the pipelines upstream."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from backfill_platform.domain.plan import Input
from backfill_platform.domain.windows import NO_MARGIN, UntilClosed
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from backfill_platform.pipelines.spec import DerivedTable, Pipeline


def inputs_of(pipeline: Pipeline, derived: DerivedTable) -> tuple[Input, ...]:
    """The inputs of a derived table with their windows, in the order in which its `build` gets them."""
    own = {table.name: table for table in pipeline.tables}
    found = []
    for name in derived.inputs:
        window = derived.window if name == derived.inputs[0] else derived.windows.get(name, NO_MARGIN)
        if name in own:
            found.append(Input(own[name], window))
            continue
        other = next(one for one in pipeline.upstream if name in {table.name for table in one.tables})
        found.append(Input(other.declared(name).table, window, other.name, other.start, other.end))
    return tuple(found)


def check_inputs(pipeline: Pipeline, derived: DerivedTable, declared: Collection[str]) -> None:
    """Refuse inputs that are not there, are ambiguous, or have a window that cannot be kept.

    `declared` names the pipeline's tables that come before it. Raises SpecError.
    """
    own, who = sorted(declared), f"pipeline {pipeline.name}: {derived.name}"
    theirs = [table.name for other in pipeline.upstream for table in other.tables[1:]]
    first = derived.inputs[:1]
    if not first or first[0] not in declared:
        raise SpecError(f"{who} reads '{''.join(first)}', which is not declared before it; declared are {', '.join(own)}")
    for name in derived.inputs[1:]:
        if name not in declared and name in {other.raw.name for other in pipeline.upstream}:
            raise SpecError(f"{who} reads '{name}', the raw table of another pipeline; read a table that is derived from it")
        if [*own, *theirs].count(name) != 1:
            how = "has more than one meaning" if name in theirs else "is not declared before it"
            raise SpecError(f"{who} reads '{name}', which {how}; there are {', '.join([*own, *theirs])}")
    if len(set(derived.inputs)) < len(derived.inputs):
        raise SpecError(f"{who} reads a table twice: {', '.join(derived.inputs)}")
    if unknown := sorted(set(derived.windows) - set(derived.inputs[1:])):
        raise SpecError(
            f"{who} has a window for {', '.join(unknown)}; `windows` are for its inputs after the first, which has `window`"
        )
    if open_ended := [name for name, one in derived.windows.items() if isinstance(one.lookahead, UntilClosed)]:
        raise SpecError(f"{who} can read only its first input until sessions are closed, not {', '.join(open_ended)}")


def check_lineage(pipeline: Pipeline, derived: DerivedTable) -> None:
    """Refuse a lineage from columns that no input has. Raises SpecError."""
    tables = [one.table for one in inputs_of(pipeline, derived)]
    known = [name for table in tables for name in table.column_names]
    sources = dict.fromkeys(name for names in derived.lineage.values() for name in names)
    if unknown := ", ".join(name for name in sources if name not in known):
        raise SpecError(
            f"pipeline {pipeline.name}: the lineage of {derived.name} names {unknown}, which {' and '.join(map(str, tables))} "
            f"does not have; it has {', '.join(known)}"
        )
