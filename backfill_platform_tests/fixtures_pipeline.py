"""The clickstream pipeline over a file that a test writes, and a fresh lake."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from backfill_platform.core.hours import HourRange
from backfill_platform.lake.tables import Lake
from backfill_platform.pipelines import clickstream
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.streams.files import ArchiveFile
from backfill_platform_tests.events import hour, write_lines

PipelineOver = Callable[[Iterable[str], int], Pipeline]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake on local files."""
    (tmp_path / "lake").mkdir()
    return Lake(f"sqlite:///{tmp_path}/lake/catalog.db", (tmp_path / "lake").as_uri())


@pytest.fixture
def pipeline_over(tmp_path: Path) -> PipelineOver:
    """Makes the clickstream pipeline read the given lines, for so many hours from T0."""

    def make(lines: Iterable[str], hours: int) -> Pipeline:
        span = HourRange(hour(0), hour(hours))
        uri = write_lines(tmp_path / "requests.csv", lines)
        source = ArchiveFile(uri, span, encoding="ISO-8859-1")
        return replace(clickstream.pipeline, start=span.start, end=span.end, source=source)

    return make
