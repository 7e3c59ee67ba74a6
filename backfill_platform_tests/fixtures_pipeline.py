"""The clickstream pipeline over a file that a test writes, and a fresh lake."""

import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.uris import local_uri
from backfill_platform.examples import clickstream
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform_tests.events import hour, write_lines


def open_lake(folder: Path) -> Lake:
    """The lake in a folder, made where it is missing."""
    (folder / "lake").mkdir(exist_ok=True)
    return Lake(f"sqlite:///{folder}/lake/catalog.db", local_uri(folder / "lake"))


def clickstream_over(folder: Path, lines: Iterable[str], hours: int) -> Pipeline:
    """The clickstream pipeline over the given lines, for so many hours from T0, with table names of its own.

    The names keep tests apart in a warehouse that they share, and away from tables that somebody else has there.
    """
    span = HourRange(hour(0), hour(hours))
    uri = write_lines(folder / "requests.csv", lines)
    suffix = uuid.uuid4().hex[:8]
    sessions, hourly = clickstream.pipeline.derived
    return replace(
        clickstream.pipeline,
        start=span.start,
        end=span.end,
        source=ArchiveFile(uri, span, encoding="ISO-8859-1"),
        derived=(
            replace(sessions, name=f"sessions_{suffix}"),
            replace(hourly, name=f"site_hourly_{suffix}", reads=f"sessions_{suffix}"),
        ),
    )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake on local files."""
    return open_lake(tmp_path)
