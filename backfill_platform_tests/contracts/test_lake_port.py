"""What the runner may rely on of a lake: one body for the real one and the one in memory."""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import Branch
from backfill_platform.domain.tables import Column, Layer, Table
from backfill_platform.repair.iceberg_lake import IcebergLake
from backfill_platform.repair.ports import LakePort
from backfill_platform_tests.events import hour
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.repair.fakes import InMemoryLake

TABLE = Table(Layer.TRANSFORMED, "visits", (Column("hour", ColumnType.TIMESTAMP), Column("visitor", ColumnType.INT64)))
HOURS = [hour(0), hour(1), hour(2)]

Stage = Callable[[Mapping[datetime, int]], None]


def in_memory(folder: Path) -> tuple[LakePort, Stage]:
    lake = InMemoryLake()
    return lake, lambda rows: lake.stage(TABLE, rows)


def iceberg(folder: Path) -> tuple[LakePort, Stage]:
    lake = open_lake(folder)

    def stage(rows: Mapping[datetime, int]) -> None:
        files = {}
        for at, count in rows.items():
            if count:
                path = Path(lake.data_uri(TABLE, "r1").removeprefix("file://")) / f"{at:%H}-{count}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                hours = pa.array([at] * count, pa.timestamp("us", "UTC"))
                pq.write_table(pa.table({"hour": hours, "visitor": range(count)}), path)
                files[at] = [f"file://{path}"]
        lake.stage(TABLE, "r1", list(rows), files)
        lake.stage(quarantine_of(TABLE), "r1", list(rows), {})

    return IcebergLake(lake, "r1"), stage


@pytest.fixture(params=[in_memory, iceberg])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LakePort, Stage]:
    made: tuple[LakePort, Stage] = request.param(tmp_path)
    made[0].prepare([TABLE])
    return made


def test_a_new_table_has_nothing_built(opened: tuple[LakePort, Stage]) -> None:
    lake, _ = opened
    contents = lake.contents(TABLE, HOURS)
    assert (contents.rows, contents.built, contents.unreadable) == ({}, frozenset(), frozenset())
    assert lake.contents(TABLE, []).files == ()


def test_what_is_staged_is_on_the_branch_alone(opened: tuple[LakePort, Stage]) -> None:
    lake, stage = opened
    stage({HOURS[0]: 3, HOURS[1]: 4})
    assert lake.contents(TABLE, HOURS, Branch.REPAIR).rows == {HOURS[0]: 3, HOURS[1]: 4}
    assert lake.contents(TABLE, [HOURS[1]], Branch.REPAIR).rows == {HOURS[1]: 4}
    assert lake.contents(TABLE, HOURS).built == frozenset()


def test_promoting_commits_the_given_hours_and_no_others(opened: tuple[LakePort, Stage]) -> None:
    lake, stage = opened
    stage({HOURS[0]: 3, HOURS[1]: 4, HOURS[2]: 0})
    lake.promote(TABLE, [HOURS[0], HOURS[2]])
    contents = lake.contents(TABLE, [*HOURS, HOURS[2] + HOUR])
    assert contents.rows == {HOURS[0]: 3}
    assert contents.built == {HOURS[0], HOURS[2]}, "an hour without rows is known to be empty"
    assert lake.row_counts(TABLE, HourRange.covering(HOURS)) == {HOURS[0]: 3}
    assert lake.row_counts(TABLE, HourRange.covering(HOURS[1:])) == {}
    assert contents.quarantined == dict.fromkeys([*HOURS, HOURS[2] + HOUR], 0)


def test_promoting_again_replaces_the_hour(opened: tuple[LakePort, Stage]) -> None:
    lake, stage = opened
    for count in (3, 5):
        stage({HOURS[0]: count})
        before = lake.contents(TABLE, HOURS).snapshot_id
        lake.promote(TABLE, [HOURS[0]])
        assert lake.contents(TABLE, HOURS).rows == {HOURS[0]: count}
    assert before is not None


def test_what_is_discarded_never_gets_to_main(opened: tuple[LakePort, Stage]) -> None:
    lake, stage = opened
    stage({HOURS[0]: 3})
    lake.discard(TABLE)
    assert lake.contents(TABLE, HOURS).built == frozenset()
    lake.discard(TABLE)  # a second time is fine


def test_what_was_promoted_before_stays_when_the_rest_is_discarded(opened: tuple[LakePort, Stage]) -> None:
    lake, stage = opened
    stage({HOURS[0]: 3})
    lake.promote(TABLE, [HOURS[0]])
    stage({HOURS[1]: 4})
    lake.discard(TABLE)
    contents = lake.contents(TABLE, HOURS)
    assert (contents.rows, contents.unreadable) == ({HOURS[0]: 3}, frozenset())
