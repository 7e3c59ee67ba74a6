"""Many files in one read: each line once, as it is, in the hour of its file, as many as were counted before."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from backfill_platform.adapters.files import integrity
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.adapters.files.integrity import look_through
from backfill_platform.adapters.files.text import read_lines
from backfill_platform.domain.uris import local_uri
from backfill_platform_tests.events import hour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODECS = {"": None, ".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
MARK = b"\xef\xbb\xbf"
TEXTS = [b"", b"\n", b"a", b"a\nb\n", b"a\r\nb\rc\n\n", MARK + b"h\n" + MARK + b"\nh", b"\r", b"x\r\n\r\n" * 70_000, b"\xe9\n"]
NAMES = [
    "a b",
    "100%",
    "p+q",
    "h#i",
    "q?r",
    "\xfc",
    "\U0001f600",
    "[x]",
    "{a,b}",
    "st*ar",
    "e'f",
    "nb\xa0sp",
    "back\\slash",
    "^`|",
]


def pack(path: Path, data: bytes, codec: str | None) -> None:
    if codec is None:
        path.write_bytes(data)
        return
    with pa.CompressedOutputStream(str(path), codec) as stream:
        stream.write(data)


def lines_of(data: bytes) -> list[bytes]:
    """What a reference makes of the bytes."""
    *whole, last = data.removeprefix(MARK).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return [*whole, last] if last else whole


@pytest.mark.parametrize("ending", CODECS)
def test_every_line_of_every_file_arrives_once_in_its_hour(spark: "SparkSession", tmp_path: Path, ending: str) -> None:
    files, expected = {}, []
    for number, text in enumerate(TEXTS):
        path = tmp_path / f"{number}.log{ending}"
        pack(path, text, CODECS[ending])
        files[local_uri(path)] = hour(number // 2)
        expected += [(int(hour(number // 2).timestamp()), line.decode("latin-1")) for line in lines_of(text)]
        info = pyarrow.fs.LocalFileSystem().get_file_info(str(path))
        counted = look_through(pyarrow.fs.LocalFileSystem(), info, str(path))
        assert (counted.problem, counted.lines) == ("", len(lines_of(text)))
    read = read_lines(spark, files, "ISO-8859-1").select(F.unix_seconds("file_hour").alias("h"), "line")
    assert sorted((row["h"], row["line"]) for row in read.collect()) == sorted(expected)


def test_names_may_have_any_characters_but_colons(spark: "SparkSession", tmp_path: Path) -> None:
    folder = tmp_path / "some [clients]"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        (folder / f"{name}-{hour(number % 3):%H}").write_text(name)
    source = HourlyFiles(local_uri(folder) + "/*-%H")
    hours = [hour(number) for number in range(3)]
    assert source.inspect(hours).absent == {}
    found = {
        (row["line"], row["h"])
        for row in source.lines(spark, hours).select("line", F.unix_seconds("file_hour").alias("h")).collect()
    }
    assert found == {(name, int(hour(number % 3).timestamp())) for number, name in enumerate(NAMES)}
    (folder / f"a:b-{hour(0):%H}").touch()
    assert "has a colon in its name" in source.inspect(hours).absent[hour(0)]


@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"h", b"x", b"hh"])).map(b"".join),
    st.integers(1, 5),
    st.sampled_from([b"", b"h", b"hh"]),
)
def test_lines_are_counted_wherever_pieces_end(data: bytes, size: int, header: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integrity, "_CHUNK", size)
        found = integrity._counted(pa.BufferReader(data), 1000, "a file", header)
    lines = lines_of(data)
    assert found.lines == len([line for line in lines if not header or line != header])
    assert found.first == (lines[0] if lines else b"")
    assert found.empty == (not lines)


def test_an_hour_has_the_lines_of_all_its_files_and_a_bad_one_costs_it_alone(spark: "SparkSession", tmp_path: Path) -> None:
    source = HourlyFiles(local_uri(tmp_path) + "/%H/", header="id")
    for number in range(3):
        (tmp_path / f"{hour(number):%H}").mkdir()
        for part in range(3):
            pack(tmp_path / f"{hour(number):%H}" / f"{part}.gz", b"id\n" + b"1\n" * (part + number), "gzip")
    (tmp_path / f"{hour(1):%H}" / "0.gz").write_bytes(b"no gzip")
    found = source.inspect([hour(0), hour(1), hour(2), hour(3)])
    assert list((found.lines or {}).items()) == [(hour(0), 3), (hour(2), 9)]
    assert "0.gz cannot be read to its end" in found.absent[hour(1)]
    assert "there is no file" in found.absent[hour(3)]
    assert source.lines(spark, [hour(0), hour(2)]).count() == 12
    first = source.versions([hour(0)])[hour(0)]
    assert first.startswith("3 files, ")
    (tmp_path / f"{hour(0):%H}" / "3.gz").write_bytes(b"")
    assert source.versions([hour(0)])[hour(0)] != first


def test_a_place_may_have_empty_parts(spark: "SparkSession", tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{hour(number):%H}.csv").write_text("1\n")
    lines = HourlyFiles(local_uri(tmp_path) + "//./%H.csv").lines(spark, [hour(0), hour(1)])
    assert {row["file_hour"] is not None for row in lines.collect()} == {True}
