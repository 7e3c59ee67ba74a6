"""Fixtures of the tests of repairs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.patches import drop_patches
from backfill_platform.adapters.clickhouse.publishing.staging import fence
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.repair.migrations import Declared, Stage


@pytest.fixture
def make(warehouse: Warehouse, tmp_path: Path) -> Iterator[Callable[[], Stage]]:
    made: list[Stage] = []

    def new() -> Stage:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Stage(open_lake(folder), warehouse, folder, columns={"pages": Declared("number", 1)}))
        made[-1].create()
        return made[-1]

    yield new
    for stage in made:
        fence(warehouse, stage.table)
        drop_patches(warehouse, stage.table, older_than_days=0)
        warehouse.drop(target_name(stage.table), doing="cleaning up")
