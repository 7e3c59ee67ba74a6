"""The files of an hour by its pattern, as those who write them lay them out."""

from datetime import datetime
from pathlib import Path

import pytest

from backfill_platform.adapters.files.patterns import files_of, fixed_folder, named
from backfill_platform.domain.object_store import ObjectStore
from backfill_platform.domain.uris import local_uri
from backfill_platform_tests.events import hour
from backfill_platform_tests.fixtures_object_store import Bucket

HOURS = [hour(0), hour(1), hour(2)]
# Where T0 is 22:00 on the last day of April, the third hour is on another day.
LAYOUTS = {
    "one file": ("%Y-%m-%d/%H.csv", ["{0:%Y-%m-%d/%H}.csv"]),
    "Kafka Connect": (
        "topics/clicks/year=%Y/month=%m/day=%d/hour=%H/",
        ["topics/clicks/year={0:%Y}/month={0:%m}/day={0:%d}/hour={0:%H}/clicks+{1}+0000.json.gz"],
    ),
    "Firehose": ("%Y/%m/%d/%H/stream-1-%Y-%m-%d-%H-*", ["{0:%Y/%m/%d/%H}/stream-1-{0:%Y-%m-%d-%H}-{1}9-45-af.gz"]),
    "Vector": ("date=%Y-%m-%d/%H/*.log.zst", ["date={0:%Y-%m-%d}/{0:%H}/{1}-uuid.log.zst"]),
    "Fluent Bit": ("fluent-bit-logs/*/%Y/%m/%d/%H/*", ["fluent-bit-logs/tag{1}/{0:%Y/%m/%d/%H}/object.gz"]),
    "folders by client after the hour": (
        "%Y%j/%H/**/*.csv",
        ["{0:%Y%j}/{0:%H}/client-{1}/deep/part.csv", "{0:%Y%j}/{0:%H}/{1}.csv"],
    ),
    "folders by client before the hour": ("client=*/%Y-%m-%d.%H.csv", ["client={1}/{0:%Y-%m-%d}.{0:%H}.csv"]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_hour_has_the_files_of_its_folder_and_no_others(tmp_path: Path, layout: str) -> None:
    pattern, names = LAYOUTS[layout]
    several = layout != "one file"
    expected: dict[datetime, list[str]] = {}
    for at in [hour(-1), *HOURS[:2], hour(24)]:
        paths = {tmp_path / name.format(at, part) for name in names for part in range(1 + 2 * several)}
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("1\n")
            (path.parent / f".{path.name}").write_text("no data")
            (path.parent / "_temporary").mkdir(exist_ok=True)
            (path.parent / "_temporary" / path.name).write_text("no data")
        expected[at] = sorted(map(str, paths))
    found = files_of(f"{local_uri(tmp_path)}/{pattern}", HOURS)
    assert {at: [info.path for info in infos] for at, infos in found.items()} == {
        **{at: expected[at] for at in HOURS[:2]},
        HOURS[2]: [],
    }
    assert all(info.size == 2 for infos in found.values() for info in infos)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bucket_is_laid_out_like_a_folder(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    for name, value in ObjectStore(bucket.endpoint).environment.items():
        monkeypatch.setenv(name, value)
    pattern, names = LAYOUTS[layout]
    for at in (hour(-1), HOURS[0], hour(24)):
        bucket.client().put_object(Bucket=bucket.name, Key=f"a folder/{names[0].format(at, 0)}", Body=b"1\n")
    found = files_of(f"s3://{bucket.name}/a folder/{pattern}", HOURS[:2])
    assert {at: [info.path for info in infos] for at, infos in found.items()} == {
        HOURS[0]: [f"{bucket.name}/a folder/{names[0].format(HOURS[0], 0)}"],
        HOURS[1]: [],
    }


def test_what_is_written_in_a_pattern_means_itself(tmp_path: Path) -> None:
    folder = tmp_path / "100% (a+b) [c].{d}"
    for name in (f"{hour(0):%H}.csv", f"{hour(0):%H}xcsv"):
        folder.mkdir(exist_ok=True)
        (folder / name).touch()
    (found,) = files_of(f"{local_uri(folder)}/%H.c*", [hour(0)])[hour(0)]
    assert found.base_name == f"{hour(0):%H}.csv"


def test_hours_without_a_folder_have_no_files(tmp_path: Path) -> None:
    assert files_of(f"{local_uri(tmp_path)}/%Y/%H/", [hour(0)]) == {hour(0): []}
    assert files_of(f"{local_uri(tmp_path)}/%Y/%H/", []) == {}


def test_the_fixed_folder_ends_before_what_differs() -> None:
    assert fixed_folder("s3://bucket/a/b-%Y/%H/") == "s3://bucket/a"
    assert fixed_folder("file:///a/client=*/%H") == "file:///a"
    assert named("s3://b/50%25/%Y/%H", hour(0)) == f"s3://b/50%25/{hour(0):%Y/%H}"
