"""What becomes of rows that fail checks, of hours that do, and of counts that do not agree."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as T
import pytest
from pandera.pyspark import Field, check, dataframe_check
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.adapters.spark import checks, observed, writer
from backfill_platform.adapters.spark import split_rejects as sift
from backfill_platform.adapters.spark.checks import ROWS_ADD_UP, ROWS_VALID
from backfill_platform.adapters.spark.dedupe import Counts, Deduplicated
from backfill_platform.domain.hours import HourRange
from backfill_platform.errors import CheckFailed
from backfill_platform.examples.clickstream import Sessions
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair import land
from backfill_platform.repair import write_audit_promote as audit
from backfill_platform.repair.outcomes import CheckResult, HourOutcome
from backfill_platform.repair.write_audit_promote import SAMPLES
from backfill_platform.reports.facts import facts_of
from backfill_platform_tests.events import Click, hour
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Client 1 comes back within the first hour, clients 2 to 4 come in the second; two events were delivered more than once.
CHANGED = "its files have changed meanwhile, or the parser does not return each line once"
CLICKS = [
    Click(1, 0),
    Click(1, 0),
    Click(1, 3000),
    Click(2, 3600),
    Click(2, 3600),
    Click(2, 3600),
    Click(3, 3700),
    Click(4, 4000),
]
READ, KEPT = {0: 3, 1: 5}, {0: 2, 1: 3}
REJECTED = [f"{client},30/Apr/1998,22:10:00,/{'x' * client * 100},-,0" for client in range(1, 8)]


@pytest.fixture
def world(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> World:
    """Two hours of clicks and seven lines without a status. Of the warehouse only the ledger is used."""
    lines = [click.line for click in CLICKS] + REJECTED
    return World.over(tmp_path, spark, warehouse, lines, 2)


def outcomes(
    world: World, pipeline: Pipeline | None = None, hours: HourRange | None = None
) -> dict[str, dict[int, HourOutcome]]:
    found = world.run([table.path for table in world.pipeline.tables], hours, pipeline=pipeline)
    return {
        asset[0]: {int((at - hour(0)).total_seconds()) // 3600: one for at, one in by.items()} for asset, by in found.items()
    }


def sessions_with(world: World, schema: type) -> Pipeline:
    sessions, hourly = world.pipeline.derived
    return replace(world.pipeline, derived=(replace(sessions, schema=schema), hourly))


def named(outcome: HourOutcome, name: str) -> CheckResult:
    return next(found for found in outcome.checks if found.name == name)


class FewSessions(Sessions):
    """Sessions, of which an hour may have two."""

    @dataframe_check
    @classmethod
    def _two_at_most(cls, frame: DataFrame) -> bool:
        """At most two sessions start in an hour."""
        return bool(frame.count() <= 2)


class OncePerHour(Sessions):
    """Sessions, of which a client may start one in an hour."""

    class Config:
        """pandera reads it."""

        unique = "client_id"


class EvenClients(Sessions):
    """Sessions of clients with even numbers."""

    client_id: T.LongType = Field(ge=0)

    @check("client_id")
    def _even(cls, client: Column) -> Column:
        return client % 2 == 0


@pytest.mark.whole
@pytest.mark.parametrize(
    ("schema", "name", "blocked"), [(FewSessions, "_two_at_most", 1), (OncePerHour, "unique_client_id", 0)]
)
def test_a_check_of_the_whole_table_blocks_the_hour_that_fails_it(
    world: World, caplog: pytest.LogCaptureFixture, schema: type, name: str, blocked: int
) -> None:
    with caplog.at_level(logging.WARNING):
        found = outcomes(world, sessions_with(world, schema))["transformed"]
    assert [bool(found[n].error) for n in (0, 1)] == [n == blocked for n in (0, 1)]
    assert "failed" in found[blocked].error
    assert set(world.lake.rows_by_hour(world.pipeline.derived[0].table)) == {hour(1 - blocked)}
    assert [named(found[n], name).passed for n in (0, 1)] == [n != blocked for n in (0, 1)]
    assert named(found[blocked], name).blocking
    by_pandera = "checked by pandera, in 2 extra passes" in caplog.text
    assert by_pandera == (schema is FewSessions)
    if by_pandera:
        assert "extra pass" in named(found[0], name).description
        assert "_two_at_most" in str(named(found[blocked], name).facts["found"])


@pytest.mark.whole
@pytest.mark.parametrize("seen", [1, 2], ids=["seen once", "seen twice, as after a lost task"])
def test_rows_that_fail_a_custom_check_are_set_aside_with_its_name(
    world: World, monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    real = observed.observed

    def repeatedly(observation: Any) -> Any:  # Spark does not lose a task's output when it is asked to
        once = real(observation)
        return once and {name: found and found * seen for name, found in once.items()}

    monkeypatch.setattr(sift, "observed", repeatedly)
    found = outcomes(world, sessions_with(world, EvenClients))["transformed"]
    assert {n: (facts_of(one)["rows"], facts_of(one)["quarantined"], one.error[:22]) for n, one in found.items()} == {
        0: (0, 2, "all 2 rows failed a ch"),
        1: (2, 1, ""),
    }
    assert named(found[1], ROWS_ADD_UP).facts["computed"] == 3
    files = [file.uri for file in world.lake.files(quarantine_of(world.pipeline.derived[0].table))]
    assert [row["reason"] for row in world.spark.read.parquet(*files).collect()] == ["client_id: _even"]


@pytest.mark.whole
def test_a_few_rows_are_shown_of_each_check_that_failed_the_same_in_any_chunking(world: World) -> None:
    together = named(outcomes(world)["raw"][0], ROWS_VALID)
    (samples,) = together.tables
    assert (samples.title, samples.columns) == (SAMPLES, ("check", "row"))
    assert samples.rows == tuple(("status: missing", line[:500]) for line in sorted(REJECTED)[:3])
    assert together.facts == {"quarantined": 7, "status: missing": 7}
    alone = named(outcomes(world, hours=HourRange(hour(0), hour(1)))["raw"][0], ROWS_VALID)
    assert alone == together
    assert named(outcomes(world)["raw"][1], ROWS_VALID).tables == ()


@pytest.mark.whole
def test_what_was_read_is_among_the_facts_of_every_hour(world: World) -> None:
    found = outcomes(world)
    raw = {
        n: (facts_of(one)["rows_read"], facts_of(one)["rows"], facts_of(one)["quarantined"]) for n, one in found["raw"].items()
    }
    assert raw == {0: (10, 3, 7), 1: (5, 5, 0)}
    assert {n: facts_of(one)["duplicates"] for n, one in found["raw"].items()} == {0: 1, 1: 2}
    built = {n: (facts_of(one)["rows_read"], facts_of(one)["deduplicated"]) for n, one in found["transformed"].items()}
    assert built == {n: (READ[n], READ[n] - KEPT[n]) for n in (0, 1)}
    assert Counter(int(click.seconds // 3600) for click in set(CLICKS)) == KEPT
    assert {n: facts_of(one)["rows_read"] for n, one in found["aggregated"].items()} == {0: 2, 1: 3}
    assert named(found["transformed"][1], ROWS_ADD_UP).facts["deduplicated"] == 2


def test_lines_that_vanish_while_they_are_landed_fail_the_hour(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    marking: Callable[..., Any] = checks.mark_failures

    def shrink(*given: Any) -> Any:
        (world.folder / "requests.csv").write_text(CLICKS[0].line + "\n")
        return marking(*given)

    monkeypatch.setattr(land, "mark_failures", shrink)
    found = outcomes(world)["raw"]
    assert {n: one.error for n, one in found.items()} == {
        0: f"10 lines counted, but 1 landed: {CHANGED}",
        1: f"5 lines counted, but 0 landed: {CHANGED}",
    }
    assert [named(found[n], ROWS_ADD_UP).passed for n in (0, 1)] == [False, False]
    assert world.lake.built_hours(world.pipeline.raw.table) == set()


@pytest.mark.whole
def test_an_hour_whose_rows_are_lost_on_the_way_to_its_files_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes(world)
    writing = writer.write_by_hour

    def lossy(*given: Any, **named: Any) -> dict[datetime, list[str]]:
        return {at: files for at, files in writing(*given, **named).items() if at != hour(1)}

    monkeypatch.setattr(audit, "write_by_hour", lossy)
    sessions = world.pipeline.derived[0].table
    found = world.run([sessions.path])[sessions.path]
    assert {at: one.error for at, one in found.items()} == {
        hour(0): "",
        hour(1): "3 rows computed, but 0 written and 0 quarantined",
    }
    assert not named(found[hour(1)], ROWS_ADD_UP).passed
    assert world.lake.rows_by_hour(sessions)[hour(1)] == 3


@pytest.mark.whole
def test_rows_without_an_hour_end_the_repair_and_nothing_of_them_is_promoted(world: World) -> None:
    sessions, hourly = world.pipeline.derived
    lost = replace(sessions, build=lambda rows: sessions.build(rows).withColumn("hour", F.lit(None).cast("timestamp")))
    with pytest.raises(CheckFailed, match="5 rows have no hour; nothing was published"):
        outcomes(world, replace(world.pipeline, derived=(lost, hourly)))
    assert world.lake.rows_by_hour(sessions.table) == {}


@pytest.mark.whole
def test_events_that_are_neither_kept_nor_duplicates_fail_their_hours(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Deduplicated.counts

    def lossy(self: Deduplicated, read: Mapping[datetime, int]) -> Counts | None:
        counts = counting(self, read)
        return counts and replace(counts, accounted_for=counts.accounted_for - 1)

    monkeypatch.setattr(Deduplicated, "counts", lossy)
    found = outcomes(world)["transformed"]
    assert {one.error for one in found.values()} == {"8 events counted, but 7 kept or left out as duplicates"}
    assert not named(found[0], ROWS_ADD_UP).passed
    assert world.lake.built_hours(world.pipeline.derived[0].table) == set()
