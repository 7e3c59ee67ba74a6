"""A damaged or hostile file is found before Spark reads it, and costs its own hour."""

import bz2
import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backfill_platform.adapters.files import integrity
from backfill_platform.adapters.files.hourly import ArchiveFile, HourlyFiles
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.uris import local_uri
from backfill_platform_tests.events import hour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = b"".join(b"line %d of many\n" % number for number in range(20_000))


def damaged_gzip() -> bytes:
    data = bytearray(gzip.compress(LINES))
    data[len(data) // 2] ^= 0xFF
    return bytes(data)


BAD: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "a gzip file that is cut short": ("gz", lambda: gzip.compress(LINES)[:-40], "cannot be read to its end"),
    "a gzip file that lacks its last bytes": ("gz", lambda: gzip.compress(LINES)[:-4], "cannot be read to its end"),
    "a damaged gzip file": ("gz", damaged_gzip, "cannot be read to its end"),
    "text that says it is gzip": ("gz", lambda: LINES, "cannot be read to its end"),
    "a bz2 file that is cut short": ("bz2", lambda: bz2.compress(LINES)[:-20], "cannot be read to its end"),
    "a line of 17 MiB": ("csv", lambda: LINES + b"x" * (17 << 20), "has a line of more than 16 MiB"),
    "a line of 600 MB in 600 kB": ("gz", lambda: gzip.compress(b"x" * 600_000_000, 1), "has a line of more than 16 MiB"),
    "a bomb of short lines": ("gz", lambda: gzip.compress(b"x\n" * 600_000_000, 6), "unpacks to more than 250 times its size"),
}


_PACKED = {"gz": gzip.compress(LINES), "bz2": bz2.compress(LINES), "csv": LINES}
_LARGE = ("a line of 600 MB in 600 kB", "a bomb of short lines")


@pytest.mark.parametrize("what", [pytest.param(name, marks=[pytest.mark.whole] * (name in _LARGE)) for name in BAD])
def test_a_bad_file_costs_its_own_hour_and_one_line(spark: "SparkSession", tmp_path: Path, what: str) -> None:
    ending, data, says = BAD[what]
    for number in (0, 2):
        (tmp_path / f"{hour(number):%H}.{ending}").write_bytes(_PACKED[ending])
    (tmp_path / f"{hour(1):%H}.{ending}").write_bytes(data())
    source = HourlyFiles(f"{local_uri(tmp_path)}/%H.{ending}")
    absent = source.inspect([hour(0), hour(1), hour(2)]).absent
    assert list(absent) == [hour(1)]
    assert says in absent[hour(1)]
    assert "\n" not in absent[hour(1)]
    assert source.lines(spark, [hour(0), hour(2)]).count() == 2 * 20_000


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_of_any_kind_and_long_ones_are_no_problem(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "events.csv"
    path.write_bytes((b"x" * (15 << 20) + end) * 2 + b"short" + end + b"without an end")
    assert ArchiveFile(local_uri(path), HourRange(hour(0), hour(1))).inspect([hour(0)]).absent == {}


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_an_hour_without_events_has_an_empty_file(spark: "SparkSession", tmp_path: Path, ending: str) -> None:
    (tmp_path / f"{hour(0):%H}.{ending}").write_bytes(gzip.compress(b"") if ending.endswith("gz") else b"")
    source = HourlyFiles(f"{local_uri(tmp_path)}/%H.{ending}")
    assert source.inspect([hour(0)]).absent == {}
    assert source.lines(spark, [hour(0)]).count() == 0


def test_logs_that_repeat_themselves_are_no_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "MOST_UNPACKED", 1 << 20)
    path = tmp_path / "events.gz"
    path.write_bytes(gzip.compress(LINES * 40, 1))
    assert ArchiveFile(local_uri(path), HourRange(hour(0), hour(1))).inspect([hour(0)]).absent == {}


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_file_that_we_may_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_bytes(LINES)
    path.chmod(0)
    (why,) = ArchiveFile(local_uri(path), HourRange(hour(0), hour(1))).inspect([hour(0)]).absent.values()
    assert "cannot be read" in why
