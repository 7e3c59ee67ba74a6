import gzip
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from backfill_platform.adapters.files.hourly import ArchiveFile, HourlyFiles
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.uris import local_uri
from backfill_platform.errors import SpecError
from backfill_platform_tests.events import hour, write_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = HourRange(hour(0), hour(24))


def test_every_line_of_an_archive_arrives_as_it_is(spark: "SparkSession", tmp_path: Path) -> None:
    lines = ["plain", "", "  spaces  ", 'quotes " and , commas', "Latin-1: \xe9\xff"]
    source = ArchiveFile(write_lines(tmp_path / "events.csv", lines), DAY, encoding="ISO-8859-1")
    rows = source.lines(spark, [hour(3)]).select("line", F.unix_seconds("file_hour").alias("h")).collect()
    assert [row["line"] for row in rows] == lines
    assert {row["h"] for row in rows} == {int(hour(0).timestamp())}


def test_an_archive_places_events_by_their_time_and_only_within_its_hours(spark: "SparkSession", tmp_path: Path) -> None:
    source = ArchiveFile("file:///none", HourRange(hour(1), hour(3)))
    frame = spark.sql(f"SELECT timestamp_seconds({int(hour(0).timestamp())} + 3600 * id + 1799) AS at FROM range(4)")
    placed = frame.select(F.unix_seconds(source.ingestion_hour(F.col("at"))).alias("h")).collect()
    assert [row["h"] for row in placed] == [None, int(hour(1).timestamp()), int(hour(2).timestamp()), None]


def test_hours_without_a_file_are_named(tmp_path: Path) -> None:
    archive = ArchiveFile(write_lines(tmp_path / "events.csv", []), DAY)
    assert list(archive.inspect([hour(3), hour(24)]).absent) == [hour(24)]
    gone = ArchiveFile(local_uri(tmp_path / "gone.csv"), DAY).inspect([hour(3)]).absent
    assert "there is no file" in gone[hour(3)]
    write_lines(tmp_path / "100% landed" / f"{hour(1):%H}.csv", [])
    hourly = HourlyFiles(local_uri(tmp_path) + "/100% landed/%H.csv")
    assert list(hourly.inspect([hour(0), hour(1), hour(2)]).absent) == [hour(0), hour(2)]


def test_bytes_that_are_no_utf_8_are_marked_and_kept(spark: "SparkSession", tmp_path: Path) -> None:
    source = ArchiveFile(write_lines(tmp_path / "events.csv", ["fine", "broken \xe9"]), DAY)
    lines = [(row["line"], row["undecodable"]) for row in source.lines(spark, [hour(0)]).collect()]
    assert lines == [("fine", False), ("broken \xe9", True)]


def test_an_encoding_that_cannot_be_read_line_by_line_is_refused() -> None:
    with pytest.raises(SpecError, match="UTF-16 is not supported"):
        ArchiveFile("file:///none", DAY, encoding="UTF-16")


def test_hourly_files_keep_late_events_in_the_hour_in_which_they_arrived(spark: "SparkSession", tmp_path: Path) -> None:
    pattern = local_uri(tmp_path) + "/%Y-%m-%d/%H.csv"
    for number in (0, 2):
        write_lines(tmp_path / f"{hour(number):%Y-%m-%d/%H}.csv", [f"line of {number}"])
    source = HourlyFiles(pattern)
    lines = [
        (row["line"], row["h"])
        for number in (0, 2)
        for row in source.lines(spark, [hour(number)])
        .select("line", F.unix_seconds(source.ingestion_hour(F.lit(None))).alias("h"))
        .collect()
    ]
    assert lines == [(f"line of {number}", int(hour(number).timestamp())) for number in (0, 2)]


def test_a_pattern_without_an_hour_is_refused() -> None:
    with pytest.raises(SpecError, match="names no hour"):
        HourlyFiles("events/%Y-%m-%d.csv")


HEADER = "id,name_\xe9"


@pytest.mark.parametrize(
    ("encoding", "name", "mark"),
    [
        ("UTF-8", "events.csv", ""),
        ("UTF-8", "events.csv.gz", ""),
        ("UTF-8", "with a byte order mark.csv", "\ufeff"),
        ("ISO-8859-1", "events.csv", ""),
    ],
)
def test_a_header_line_is_never_an_event(spark: "SparkSession", tmp_path: Path, encoding: str, name: str, mark: str) -> None:
    text = f"{mark}{HEADER}\r\n1,a\r\n{HEADER}\r\n{HEADER} \r\n\r\n".encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    source = ArchiveFile(local_uri(tmp_path / name), DAY, encoding=encoding, header=HEADER)
    assert source.inspect([hour(0)]).absent == {}
    assert [row["line"] for row in source.lines(spark, [hour(0)]).collect()] == ["1,a", f"{HEADER} ", ""]


def test_a_file_with_other_columns_is_not_landed(tmp_path: Path) -> None:
    pattern = local_uri(tmp_path) + "/%H.csv"
    for number, lines in enumerate((["id,name", "1,a"], [], ["1,a"], ["id,name,more"], ["id"])):
        write_lines(tmp_path / f"{hour(number):%H}.csv", lines)
    hours = [hour(number) for number in range(6)]
    absent = HourlyFiles(pattern, header="id,name").inspect(hours).absent
    assert list(absent) == hours[2:]
    assert "begins with '1,a' instead of the header 'id,name'" in absent[hour(2)]
    assert "there is no file" in absent[hour(5)]
    assert list(HourlyFiles(pattern).inspect(hours).absent) == hours[5:]
    archive = ArchiveFile(local_uri(tmp_path / f"{hour(3):%H}.csv"), DAY, header="id,name")
    assert "begins with 'id,name,m" in archive.inspect([hour(0)]).absent[hour(0)]


@pytest.mark.parametrize(
    "place",
    ["file:///data/../etc/%Y/%H.csv", "events/%Y-%m-%d/../%H.csv", "file:///data/%Y/%H/..", "../%H", "s3://bucket/a/../%H"],
)
def test_a_place_that_leads_out_of_its_folder_is_refused(place: str) -> None:
    with pytest.raises(SpecError, match=r"leads out of its folder by '\.\.'"):
        HourlyFiles(place)
    with pytest.raises(SpecError, match="leads out"):
        ArchiveFile(place, DAY)
    HourlyFiles(place.replace("..", "a..b"))


def test_links_that_lead_out_of_the_folder_of_hourly_files_are_not_followed(tmp_path: Path) -> None:
    """Whoever may put files there could otherwise land any file of the machine, and read it in the quarantine."""
    folder, elsewhere = tmp_path / "mounted" / "events", tmp_path / "elsewhere"
    write_lines(elsewhere / "secret", ["a password"])
    write_lines(folder / "day" / "real", ["1,a"])
    (tmp_path / "events").symlink_to(folder)  # the folder of the declaration may itself be a link, as mounts are
    targets = [elsewhere / "secret", folder / "day" / "real", Path("../elsewhere/secret"), Path("day/real")]
    for number, target in enumerate(targets):
        (folder / f"{hour(number):%H}.csv").symlink_to(target)
    (folder / f"{hour(4):%H}.csv").symlink_to(folder / f"{hour(0):%H}.csv")
    (folder / "linked").symlink_to(elsewhere)
    absent = HourlyFiles(local_uri(tmp_path) + "/events/%H.csv").inspect([hour(number) for number in range(5)]).absent
    assert list(absent) == [hour(0), hour(2), hour(4)]
    assert "is a link that leads out of" in absent[hour(0)]
    assert "secret" not in absent[hour(0)]
    (elsewhere / f"{hour(5):%H}.csv").write_text("")
    assert list(HourlyFiles(local_uri(tmp_path) + "/events/%Y/%H.csv").inspect([hour(5)]).absent) == [hour(5)]
    (folder / f"{hour(5):%Y}").symlink_to(elsewhere)
    assert "leads out" in HourlyFiles(local_uri(tmp_path) + "/events/%Y/%H.csv").inspect([hour(5)]).absent[hour(5)]
    archive = ArchiveFile(local_uri(folder / f"{hour(0):%H}.csv"), DAY)
    assert archive.inspect([hour(0)]).absent == {}, "the declaration names this file itself"


def test_the_version_of_an_hour_changes_with_the_size_and_the_time_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / f"{hour(0):%H}.csv"
    write_lines(path, ["one"])
    source = HourlyFiles(local_uri(tmp_path) + "/%H.csv")
    first = source.versions([hour(0), hour(1)])
    assert first[hour(0)].startswith(f"{path.stat().st_size} bytes of ")
    assert first[hour(1)] == ""
    assert source.versions([hour(0)])[hour(0)] == first[hour(0)]
    write_lines(path, ["another"])
    shrunken = source.versions([hour(0)])[hour(0)]
    os.utime(path, (1, 1))
    assert len({first[hour(0)], shrunken, source.versions([hour(0)])[hour(0)]}) == 3
