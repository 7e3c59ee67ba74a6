"""Quarantined lines go through a corrected parser: each once, counted, whatever becomes of the source."""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.staging import Loading
from backfill_platform.adapters.clickhouse.state.ledger import Ledger, LedgerEntry
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.adapters.spark.checks import HourRule
from backfill_platform.detection.survey import survey
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import Plan, plan_from_document, requeue_plan
from backfill_platform.errors import HourLeased, PreconditionError, UsageError
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.outcomes import HourOutcome
from backfill_platform.repair.requeue import check_requeue, rehearse_requeue
from backfill_platform.repair.undo import UndoScope
from backfill_platform_tests.events import Click, hour
from backfill_platform_tests.repair.requeue_world import HOPELESS, HOURS, MENDED, hourly_world, of_today
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATUS = "status: missing"


@pytest.fixture
def world(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    """Three hours that were landed, built and published by yesterday's parser."""
    world = hourly_world(tmp_path, spark, warehouse)
    outcomes = world.run(world.everything)
    assert not [o.error for by_hour in outcomes.values() for o in by_hour.values() if o.error]
    yield world
    world.drop()


def plan(world: World, *reasons: str, hours: HourRange | None = None) -> Plan:
    return requeue_plan(world.pipeline.name, world.pipeline.nodes[0], hours or world.hours, reasons)


def requeue(world: World, *reasons: str, pipeline: Pipeline | None = None) -> dict[int, HourOutcome]:
    """Requeue with the parser of today; the outcomes by the number of the hour."""
    job = world.job(pipeline or of_today(world.pipeline))
    found = world.walk([plan(world, *reasons)], job)
    return {(at - hour(0)).seconds // 3600: one for at, one in found.get(world.pipeline.raw.table.path, {}).items()}


def rejected(world: World) -> dict[int, Counter[str]]:
    """The lines in quarantine, by the number of their hour."""
    rows = world.lake.read(quarantine_of(world.pipeline.raw.table), ("hour", "payload"), "payload is not null").to_pylist()
    return {n: Counter(row["payload"] for row in rows if row["hour"] == hour(n)) for n in range(HOURS)}


def landed(world: World) -> Counter[tuple[object, ...]]:
    """All rows of the raw table."""
    names = world.pipeline.raw.table.column_names
    rows = world.lake.read(world.pipeline.raw.table, names, "client_id >= 0").to_pylist()
    return Counter(tuple(row[name] for name in names) for row in rows)


def all_of(*lines: dict[int, list[str]]) -> dict[int, Counter[str]]:
    return {number: Counter(line for one in lines for line in one[number]) for number in range(HOURS)}


def entries(world: World) -> list[LedgerEntry]:
    return Ledger(world.warehouse).read(target=str(world.pipeline.raw.table), modes=["requeue"], hours=list(world.hours))


def ours(world: World) -> list[LedgerEntry]:
    """What the ledger has of the requeues of this world: tests share raw table names, not snapshots."""
    table = world.lake.table_id(world.pipeline.raw.table)
    return [entry for entry in entries(world) if entry.lake_table == table]


def test_lines_that_pass_by_now_are_rows_and_the_others_stay(world: World) -> None:
    assert rejected(world) == all_of(MENDED, HOPELESS)
    before = landed(world)
    outcomes = requeue(world)
    assert {number: one.error for number, one in outcomes.items()} == {0: "", 1: "", 2: ""}
    assert {n: one.lake.measures["requeued"] for n, one in outcomes.items() if one.lake} == {0: 3, 1: 1, 2: 0}
    assert {n: one.lake.quarantined for n, one in outcomes.items() if one.lake} == {0: 2, 1: 1, 2: 1}
    assert rejected(world) == all_of(HOPELESS)
    new = landed(world) - before
    assert not before - landed(world)
    assert sorted((client, url, status) for _, _, client, url, status, _ in new.elements()) == [
        (71, "/a", 200),
        (72, "/b", 200),
        (72, "/b", 200),
        (73, "/c", 200),
    ]


def test_it_leaves_what_landing_the_source_again_would(
    world: World, tmp_path: Path, spark: "SparkSession", warehouse: Warehouse
) -> None:
    (tmp_path / "again").mkdir()
    again = hourly_world(tmp_path / "again", spark, warehouse)
    audits = again.run([again.pipeline.raw.table.path], pipeline=of_today(again.pipeline))[again.pipeline.raw.table.path]
    requeued = requeue(world)
    assert landed(world) == landed(again)
    assert rejected(world) == rejected(again)
    for number, one in requeued.items():
        wanted = audits[hour(number)].lake
        assert one.lake is not None
        assert wanted is not None
        assert one.lake.content == wanted.content
        assert one.lake.measures["duplicates"] == wanted.measures["duplicates"]


def test_it_needs_no_source(world: World) -> None:
    shutil.rmtree(world.folder / "events")
    requeue(world)
    assert rejected(world) == all_of(HOPELESS)


def test_a_second_time_there_is_nothing_to_do(world: World) -> None:
    requeue(world)
    rows, left = landed(world), rejected(world)
    again = requeue(world)
    assert {n: one.lake.measures["requeued"] for n, one in again.items() if one.lake} == {0: 0, 1: 0, 2: 0}
    assert (landed(world), rejected(world)) == (rows, left)


def test_only_lines_that_were_rejected_for_the_reason_are_taken(world: World) -> None:
    """Of `also broken` everything is missing, and so the status besides."""
    reasons = world.lake.read(quarantine_of(world.pipeline.raw.table), ("reason", "payload"), "payload = 'also broken'")
    (reason,) = {row["reason"] for row in reasons.to_pylist()}
    assert STATUS in reason.split("; ")
    assert requeue(world, "url: nobody has this reason") == {}
    assert rejected(world) == all_of(MENDED, HOPELESS)
    found = requeue(world, "bytes: greater_than_or_equal_to(0)")
    assert set(found) == {0, 1, 2}
    assert rejected(world)[0] == all_of(MENDED, HOPELESS)[0], "of the mended lines only the status was wrong"
    requeue(world, STATUS)
    assert rejected(world) == all_of(HOPELESS)


def test_a_reason_that_changes_is_told(world: World) -> None:
    where = "payload = '74,30/Apr/1998,23:10:00,/c,-,many'"
    table = quarantine_of(world.pipeline.raw.table)
    before = world.lake.read(table, ("reason",), where).to_pylist()[0]["reason"]
    requeue(world)
    after = world.lake.read(table, ("reason",), where).to_pylist()[0]["reason"]
    assert STATUS in before.split("; ")
    assert STATUS not in after.split("; ")


def test_a_rehearsal_says_the_same_and_writes_nothing(world: World) -> None:
    raw, snapshot = world.pipeline.raw.table, world.lake.snapshot(world.pipeline.raw.table)
    told = rehearse_requeue(world.spark, world.lake, of_today(world.pipeline), list(world.hours), ())
    assert [(one.taken, one.moved, sum(one.stayed.values())) for one in told.values()] == [(5, 3, 2), (2, 1, 1), (1, 0, 1)]
    assert world.lake.snapshot(raw) == snapshot
    assert rejected(world) == all_of(MENDED, HOPELESS)
    moved = {n: one.lake.measures["requeued"] for n, one in requeue(world).items() if one.lake}
    assert moved == {(at - hour(0)).seconds // 3600: one.moved for at, one in told.items()}


def test_hours_computed_from_them_are_stale_until_the_ordinary_run(world: World) -> None:
    now = datetime.now(UTC)

    def stale() -> set[tuple[str, int]]:
        found = survey(world.pipeline, world.hours, world.lake, world.warehouse, Loading.PULL, now=now).gaps
        return {(gap.table, (gap.hour - hour(0)).seconds // 3600) for gap in found if gap.kind == "stale"}

    assert not stale()
    requeue(world)
    sessions, hourly = (str(one.table) for one in world.pipeline.derived)
    assert {(sessions, 0), (sessions, 1), (hourly, 0), (hourly, 1)} <= stale()
    world.run(world.derived, pipeline=of_today(world.pipeline))
    assert not stale()


def test_the_ledger_tells_it(world: World) -> None:
    requeue(world)
    told = {(entry.hour - hour(0)).seconds // 3600: entry for entry in ours(world)}
    assert {number: (entry.status, entry.rows_quarantined) for number, entry in told.items()} == {
        0: ("done", 2),
        1: ("done", 1),
        2: ("done", 1),
    }
    landing = Ledger(world.warehouse).lake_history(str(world.pipeline.raw.table))[hour(0)]
    assert landing[-1].source_version == landing[-2].source_version, "the lines came with that version of the files"


def test_it_cannot_be_undone_and_says_so(world: World) -> None:
    requeue(world)
    with pytest.raises(UsageError, match="r2 changed nothing of clickstream that could be undone"):
        world.undo(UndoScope("r2"))


def test_a_parser_that_loses_a_line_moves_nothing(world: World) -> None:
    def lossy(lines: DataFrame) -> DataFrame:
        return of_today(world.pipeline).raw.parse(lines).limit(1)  # type: ignore[misc]

    pipeline = replace(world.pipeline, raw=replace(world.pipeline.raw, parse=lossy))
    before = landed(world), rejected(world)
    outcomes = requeue(world, pipeline=pipeline)
    assert any("the parser must return each line once" in one.error for one in outcomes.values())
    for number, one in outcomes.items():
        if one.error:
            assert rejected(world)[number] == before[1][number]


def test_an_hour_that_breaks_a_rule_with_them_stays_as_it_is(world: World) -> None:
    rule = HourRule("nobody of seventy-one", lambda: F.max("client_id") < 71, "for the test")
    mended = of_today(world.pipeline)
    pipeline = replace(mended, raw=replace(mended.raw, rules=(*mended.raw.rules, rule)))
    outcomes = requeue(world, pipeline=pipeline)
    assert {number: bool(one.error) for number, one in outcomes.items()} == {0: True, 1: True, 2: False}
    assert rejected(world)[0] == all_of(MENDED, HOPELESS)[0]


def test_quarantined_lines_that_are_gone_are_named(world: World) -> None:
    for file in world.lake.files(quarantine_of(world.pipeline.raw.table), [hour(1)]):
        Path(file.uri.removeprefix("file://")).unlink()
    outcomes = requeue(world)
    assert "gone from the lake's storage" in outcomes[1].error
    assert (outcomes[0].error, outcomes[2].error) == ("", "")


def test_an_hour_that_another_repair_has_landed_meanwhile_is_not_written_over(world: World) -> None:
    """Its lines went through the parser, but before the commit the hour got other rows: these must not be lost."""
    late = Click(75, 600)
    events = world.folder / "events" / f"{hour(0):%Y-%m-%dT%H}.csv"
    commit = world.lake.commit_together

    def land_first(changes: Any) -> None:
        world.lake.commit_together = commit  # type: ignore[method-assign]
        events.write_text(events.read_text() + late.line + "\n")
        world.run([world.pipeline.raw.table.path], HourRange(hour(0), hour(1)))
        commit(changes)

    promote = world.lake.promote

    def promoting(*given: Any, **named: Any) -> None:
        world.lake.promote = promote  # type: ignore[method-assign]
        world.lake.commit_together = land_first  # type: ignore[method-assign]
        promote(*given, **named)

    world.lake.promote = promoting  # type: ignore[method-assign]
    with pytest.raises(HourLeased, match="another repair has written hours of raw/clickstream"):
        requeue(world)
    assert 75 in {row[2] for row in landed(world)}
    assert rejected(world)[0] == all_of(MENDED, HOPELESS)[0]
    requeue(world)
    assert {71, 72, 75} <= {row[2] for row in landed(world)}


def test_other_sources_are_refused_with_what_to_do(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> None:
    archive = World.over(tmp_path, spark, warehouse, ["broken"], 1)
    with pytest.raises(PreconditionError, match="backfill run clickstream --select raw/clickstream"):
        check_requeue(archive.pipeline)


def test_its_plan_is_handed_over_as_a_document(world: World) -> None:
    made = plan(world, STATUS)
    assert plan_from_document(made.to_document(), world.pipeline.name, world.pipeline.nodes) == made
    assert made.assets == (world.pipeline.raw.table.path,)
