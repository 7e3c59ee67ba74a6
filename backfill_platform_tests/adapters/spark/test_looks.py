"""Looking at sessions: both engines find what the session rule in plain Python finds."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_platform.adapters.spark import looks
from backfill_platform.adapters.spark.arrow_looks import ArrowLooks, arrow_key_type
from backfill_platform.adapters.spark.hours import between
from backfill_platform.adapters.spark.looks import LAST, STARTED, Across, Looks, SizedLooks, Wanted
from backfill_platform.adapters.spark.spark_looks import SparkLooks
from backfill_platform.domain.column_types import ColumnType, DecimalType
from backfill_platform.domain.uris import local_uri
from backfill_platform.domain.windows import UntilClosed
from backfill_platform.examples.session_rule import sessionize
from backfill_platform_tests.events import T0, hour

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GAP = timedelta(minutes=30)
AHEAD = UntilClosed(key="client", gap=GAP)
SCHEMA = pa.schema({"client": pa.string(), "at": pa.timestamp("us", "UTC")})


@dataclass(frozen=True)
class Event:
    client: str | None
    minute: int

    @property
    def at(self) -> datetime:
        return T0 + timedelta(minutes=self.minute)


class Folder:
    """Files of an hour each, whose rows come in whatever order."""

    def __init__(self, folder: Path, events: Sequence[Event]) -> None:
        folder.mkdir()
        self.files: dict[int, str] = {}
        for number in sorted({event.minute // 60 for event in events}):
            mine = [event for event in events if event.minute // 60 == number]
            path = folder / f"{number}.parquet"
            rows = {"client": [event.client for event in mine], "at": [event.at for event in mine]}
            pq.write_table(pa.table(rows, schema=SCHEMA), path)
            self.files[number] = local_uri(path)

    def plan(self, begin: datetime, end: datetime) -> list[str]:
        return [path for number, path in self.files.items() if hour(number) < end and begin < hour(number + 1)]

    def by(self, engine: str, spark: "SparkSession | None" = None) -> Looks:
        if engine == "arrow":
            return ArrowLooks(self.plan, AHEAD, "at", pa.string())
        assert spark is not None

        def read(begin: datetime, end: datetime) -> "DataFrame":
            paths = self.plan(begin, end)
            empty = spark.createDataFrame([], "client string, at timestamp")
            return (spark.read.parquet(*paths) if paths else empty).where(between("at", begin, end))

        return SparkLooks(spark, read, AHEAD, "at")


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=T0.tzinfo)) // timedelta(microseconds=1)


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row[name] for name in sorted(row)) for row in table.to_pylist())


def sessions_of(events: Sequence[Event], begin: datetime, end: datetime) -> list[tuple[str, datetime, datetime]]:
    inside = [event for event in events if event.client is not None and begin <= event.at < end]
    found = sessionize(
        inside, key=lambda e: str(e.client), time=lambda e: e.at, gap=GAP, cap=timedelta(days=9), available_until=end
    )
    return [(str(session.key), session.started_at, session.ended_at) for session in found]


def expected_sessions(
    events: Sequence[Event], keys: Across | Sequence[str], begin: datetime, end: datetime, wanted: Wanted
) -> list[tuple[object, ...]]:
    if isinstance(keys, Across):
        near = [event for event in events if keys.begin <= event.at < keys.end]
        before = {event.client for event in near if event.at < keys.before}
        keys = [str(one) for one in before & {event.client for event in near if event.at >= keys.since} if one is not None]
    return sorted(
        (micros(ended), micros(started), key)
        for key, started, ended in sessions_of(events, begin, end)
        if key in keys and wanted.started_from <= started < wanted.started_before and ended >= wanted.last_from
    )


def expected_to_go_on(
    events: Sequence[Event], open_sessions: dict[str, datetime], begin: datetime, end: datetime
) -> list[tuple[object, ...]]:
    found = []
    for key, last in open_sessions.items():
        for at in sorted(event.at for event in events if event.client == key and begin <= event.at < end):
            if at - last >= GAP:
                break
            last = at
        found.append((micros(last), key))
    return sorted(found)


ACROSS = Across(hour(2) - GAP, hour(2) + GAP, before=hour(2), since=hour(2))
WANTED = Wanted(hour(0), hour(2), last_from=hour(2))


def check(looks: Looks, events: Sequence[Event]) -> None:
    for keys in (ACROSS, ["a", "c", "nobody"]):
        asked = keys if isinstance(keys, Across) else pa.table({"client": keys})
        found = looks.sessions(asked, hour(0), hour(4), WANTED)
        assert rows(found) == expected_sessions(events, keys, hour(0), hour(4), WANTED)
        assert set(found.column_names) == {"client", STARTED, LAST}
    ends = {"a": hour(3) - GAP / 2, "b": hour(3) - timedelta(minutes=1)}
    open_sessions = pa.table({"client": list(ends), LAST: [micros(end) for end in ends.values()]})
    assert rows(looks.go_on(open_sessions, hour(3), hour(5))) == expected_to_go_on(events, ends, hour(3), hour(5))


KEYS = st.sampled_from(["a", "b", "c", None])
EVENTS = st.lists(st.builds(Event, KEYS, st.integers(0, 6 * 60 - 1)), max_size=60)


@settings(deadline=None, max_examples=150)
@given(events=EVENTS)
def test_arrow_finds_the_sessions_of_the_reference(tmp_path_factory: pytest.TempPathFactory, events: list[Event]) -> None:
    check(Folder(tmp_path_factory.mktemp("looks") / "events", events).by("arrow"), events)


CLICKS = [
    *(Event("a", minute) for minute in range(20, 330, 25)),  # never idles
    *(Event("b", minute) for minute in (70, 100, 129, 150, 185, 200)),  # idles for a gap to the minute
    *(Event("c", minute) for minute in (10, 119, 119, 120, 121)),
    *(Event(None, minute) for minute in range(0, 300, 10)),
]


def test_spark_finds_the_sessions_of_the_reference(spark: "SparkSession", tmp_path: Path) -> None:
    check(Folder(tmp_path / "events", CLICKS).by("spark", spark), CLICKS)
    check(Folder(tmp_path / "a folder with spaces and %20", CLICKS).by("arrow"), CLICKS)


class Fails:
    def sessions(self, keys: Across | pa.Table, begin: datetime, end: datetime, wanted: Wanted) -> pa.Table:
        raise AssertionError("the other engine was to look")

    def go_on(self, open_sessions: pa.Table, begin: datetime, end: datetime) -> pa.Table:
        raise AssertionError("the other engine was to look")


def test_how_many_events_there_are_decides_who_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path / "events", CLICKS)
    arrow = ArrowLooks(folder.plan, AHEAD, "at", pa.string())
    assert arrow.rows(hour(0), hour(9)) == len(CLICKS)
    assert arrow.rows(hour(0), hour(1)) == sum(event.minute < 60 for event in CLICKS)
    monkeypatch.setattr(looks, "MOST_EVENTS", len(CLICKS))
    check(SizedLooks(arrow, Fails(), arrow.rows), CLICKS)
    monkeypatch.setattr(looks, "MOST_EVENTS", 0)
    check(SizedLooks(Fails(), arrow, arrow.rows), CLICKS)


def test_a_file_without_the_key_is_left_to_spark(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "events", CLICKS)
    for path in (folder.files[1], folder.files[3]):
        pq.write_table(pa.table({"at": [hour(1)]}), path.removeprefix("file://"))
    arrow = ArrowLooks(folder.plan, AHEAD, "at", pa.string())
    assert arrow.rows(hour(0), hour(9)) is None
    check(SizedLooks(Fails(), Folder(tmp_path / "same", CLICKS).by("arrow"), arrow.rows), CLICKS)


def test_keys_whose_equality_engines_may_disagree_on_are_left_to_spark() -> None:
    assert arrow_key_type(ColumnType.FLOAT64) is None
    assert arrow_key_type(DecimalType(9, 2)) is None
    assert arrow_key_type(ColumnType.STRING) == pa.string()
