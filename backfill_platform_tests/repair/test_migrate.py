"""Migrations: sequences of changes against rows kept in memory, and kills at each step."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.publishing.patches import load_undone, undoable
from backfill_platform.adapters.clickhouse.publishing.prepare import prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.domain.hours import HOUR
from backfill_platform.errors import PreconditionError
from backfill_platform_tests.repair.migrations import START, WIDER, Declared, Stage

CHANGES = st.lists(st.tuples(st.sampled_from(["add", "widen", "rename", "drop"]), st.integers(0, 99)), min_size=1, max_size=6)


# Not shrunk: each example takes seconds.
@settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes=CHANGES)
def test_any_sequence_of_changes_keeps_every_value(make: Callable[[], Stage], changes: list[tuple[str, int]]) -> None:
    stage = make()
    first = stage.build(START, 1)
    for number, (kind, pick) in enumerate(changes, 1):
        apply(stage, kind, pick, number)
        drops = tuple(stage_drops(stage))
        stage.migrate(*drops)
        assert not stage.plan(*drops).is_needed
        stage.build(START + number * HOUR, number * 100)
        stage.assert_holds()
    undo(stage, first, START)
    assert fingerprints.net(stage.warehouse, stage.table, [START])[START].rows == 0


def apply(stage: Stage, kind: str, pick: int, number: int) -> None:
    """One change of the declaration, if there is a column for it."""
    name = sorted(stage.columns)[pick % len(stage.columns)] if stage.columns else ""
    one = stage.columns.get(name)
    match kind:
        case "add":
            stage.change("", f"new_{number}", Declared(sorted(WIDER)[pick % len(WIDER)]))
        case "widen" if one is not None:
            stage.change(name, name, replace(one, width=min(one.width + 1, len(WIDER[one.family]) - 1)))
        case "rename" if one is not None:
            stage.change(name, f"renamed_{number}", replace(one, was=(*one.was, name)))
        case "drop" if one is not None:
            stage.change(name, "", None)


def stage_drops(stage: Stage) -> list[str]:
    loaded = stage.lake.load(stage.table)
    assert loaded is not None
    known = {name for column in stage.table.columns for name in (column.name, *column.was)}
    return sorted(set(loaded.schema().column_names) - known)


def undo(stage: Stage, repair: str, hour: datetime) -> None:
    """Take a repair back; it wrote all rows of the hour, and they are as it left them."""
    with Staging(stage.warehouse, stage.table, "undoing", [hour], lease_seconds=5) as staging:
        found = undoable(stage.warehouse, stage.table, repair, [hour])
        assert (found.rows, found.conflicts) == ({hour: 3}, 0)
        load_undone(staging, repair, [hour])
        publish(prepare(staging, [hour]))


class Killed(Exception):
    """Stands for kill -9."""


def test_killed_at_every_step_and_done_again(make: Callable[[], Stage]) -> None:
    stage = make()
    stage.columns = {"pages": Declared("number", 1), "old": Declared("text"), "gone": Declared("text")}
    stage.migrate()
    repair = stage.build(START, 1)
    stage.change("", "metric", Declared("measure"))
    stage.change("old", "renamed", Declared("text", was=("old",)))
    stage.change("pages", "pages", Declared("number", 2))
    stage.change("gone", "", None)
    steps = 0

    def killer(number: int) -> Callable[[str], None]:
        seen = iter(range(1000))

        def on_step(step: str) -> None:
            if next(seen) == number:
                raise Killed(step)

        return on_step

    for number in range(2, 100):  # the steps that are done stay done, so the next step is always the third
        del number
        try:
            stage.migrate("gone", on_step=killer(2))
        except Killed:
            steps += 1
            with_error = pytest.raises(PreconditionError, match="migrate --plan") if stage.plan("gone").is_needed else None
            if with_error and stage.lake.column_changes(stage.table, ("gone",)):
                with with_error:
                    stage.lake.ensure(stage.table)
            continue
        break
    assert steps == 9  # four changes of the target, four of its patch, one of the lake
    assert not stage.plan("gone").is_needed
    stage.assert_holds()
    undo(stage, repair, START)


def test_the_ledger_has_what_was_done(make: Callable[[], Stage]) -> None:
    stage = make()
    stage.change("", "metric", Declared("measure"))
    stage.migrate()
    (entry,) = Ledger(stage.warehouse).read(pipeline=stage.name, modes=["migrate"])
    assert (entry.status, entry.reason, entry.hour) == ("done", "add metric float, add metric Nullable(Float32)", START)


def test_what_a_repair_wrote_before_and_was_rebuilt_since_is_a_conflict(make: Callable[[], Stage]) -> None:
    """A row that has got its new metric by now is not what the patch wrote: the undo leaves it, and says so."""
    stage = make()
    first = stage.build(START, 1)
    stage.change("", "metric", Declared("measure"))
    stage.migrate()
    stage.build(START, 1)
    with Staging(stage.warehouse, stage.table, "undoing", [START], lease_seconds=5):
        found = undoable(stage.warehouse, stage.table, first, [START])
    # The row that is NULL everywhere is still what it was.
    assert (found.rows, found.conflicts) == ({START: 1}, 2)
