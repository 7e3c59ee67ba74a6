"""The playbacks pipeline: the made-up evening and its truth, random events, and rows that its schemas must refuse."""

import csv
import gzip
import runpy
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.adapters.spark.attribution import TOUCH, with_last_touch
from backfill_platform.adapters.spark.checks import FAILED, mark_failures
from backfill_platform.adapters.spark.reader import spark_schema
from backfill_platform.domain.hours import HOUR, HourRange, hour_of
from backfill_platform.domain.windows import Window
from backfill_platform.examples import playbacks
from backfill_platform_tests.oracles.playbacks import Event, attribution, made_by, playbacks_hourly, read_events
from backfill_platform_tests.pipelines.building import (
    PATIENT,
    WITHOUT_SHRINKING,
    Difference,
    Row,
    Stream,
    built,
    counted,
    differences,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = playbacks.pipeline
ATTRIBUTION, HOURLY = PIPELINE.derived
EXAMPLE = playbacks.EVENTS_FOLDER.parent
T0 = playbacks.HOURS.start
NOTHING = (None,) * 5
LINES = {
    '{"at":"2017-06-01T18:00:01.500Z","kind":"play","id":"p1","user":1,"title":2}': ("play", "p1", 1, 2, 1500),
    '{"title":2,"kind":"play","at":"2017-06-01T20:00:00.000+02:00","id":"","user":1,"more":0}': ("play", "", 1, 2, 0),
    '{"at":"2017-06-01","kind":"pause","id":"p1","user":"one"}': ("pause", "p1", None, None, None),
    '{"at":"2017-06-01T18:00:01.500Z","kind":': NOTHING,
    '[{"at":': NOTHING,
    "null": NOTHING,
    "": NOTHING,
}


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def row_of(event: Event) -> Row:
    """The event as a row of raw/playbacks."""
    return (hour_of(event.at), event.at, event.kind, event.id, event.user, event.title)


def truth() -> dict[str, str]:
    """The impression that made each play, or nothing."""
    with gzip.open(EXAMPLE / "truth.csv.gz", "rt", encoding="utf-8") as file:
        return {row["play_id"]: row["impression_id"] for row in csv.DictReader(file)}


def test_unreadable_values_of_a_line_become_null(spark: "SparkSession") -> None:
    frame = spark.createDataFrame([(line,) for line in LINES], "line string").coalesce(1)
    parsed = playbacks.parse(frame).withColumn("ms", F.unix_millis("event_time") - int(T0.timestamp() * 1000))
    names = ("kind", "event_id", "user_id", "title_id", "ms")
    assert {row["line"]: tuple(row[name] for name in names) for row in parsed.collect()} == LINES


def test_an_impression_without_a_play_is_good(spark: "SparkSession") -> None:
    row = (T0, 1, 1, T0, "i", 0, None, None)
    frame = spark.createDataFrame([row], spark_schema(ATTRIBUTION.table))
    assert [row[FAILED] for row in mark_failures(frame, PIPELINE.rules("attribution")).collect()] == [[]]


def test_the_generator_writes_the_shipped_files(tmp_path: Path) -> None:
    runpy.run_path(str(EXAMPLE / "generate.py"))["write"](tmp_path)
    written, shipped = (
        {path.relative_to(folder): gzip.decompress(path.read_bytes()) for path in folder.rglob("*.gz")}
        for folder in (tmp_path, EXAMPLE)
    )
    assert written == shipped
    assert len(shipped) == len(playbacks.HOURS) + 1


def test_the_reference_finds_the_truth_of_the_shipped_events() -> None:
    events, bad = read_events(playbacks.EVENTS_FOLDER)
    assert (len(bad), all(event.at in playbacks.HOURS for event in events)) == (3, True)
    assert len(events) > len(set(events))
    attributed = {play.id: impression.id if impression else "" for play, impression in made_by(events).items()}
    assert attributed == truth()
    assert 0 < sum(not impression for impression in attributed.values()) < len(attributed)


def test_the_reference_attributes_by_hand() -> None:
    events = [
        Event(at(0), "i1", "impression", 1, 1),
        Event(at(0), "i2", "impression", 1, 1),  # of one instant: the greatest name is the latest
        Event(at(0), "p1", "play", 1, 1),  # at the instant of its impression
        Event(at(0), "p0", "play", 1, 2),  # another title
        Event(at(4 * 3600 - 1), "p2", "play", 1, 1),
        Event(at(4 * 3600), "p3", "play", 1, 1),  # too late
        Event(at(3600), "i3", "impression", 2, 1),
        Event(at(3601), "i4", "impression", 2, 1),  # takes the play away
        Event(at(3602), "p4", "play", 2, 1),
        Event(at(3602), "p4", "play", 2, 1),  # delivered twice
        Event(at(3600), "p5", "play", 3, 1),  # before its impression
        Event(at(3601), "i5", "impression", 3, 1),
    ]
    assert sorted(attribution(events)) == [
        (T0, 1, 1, T0, "i1", 0, None, None),
        (T0, 1, 1, T0, "i2", 2, "p1", T0),
        (at(3600), 2, 1, at(3600), "i3", 0, None, None),
        (at(3600), 2, 1, at(3601), "i4", 1, "p4", at(3602)),
        (at(3600), 3, 1, at(3601), "i5", 0, None, None),
    ]
    assert sorted(playbacks_hourly(events)) == [(T0, 2, 1, 2, 0.5), (at(3600), 3, 1, 1, 1 / 3)]


@pytest.mark.whole
def test_every_play_of_the_shipped_events_finds_the_impression_that_made_it(spark: "SparkSession") -> None:
    assert isinstance(PIPELINE.source, HourlyFiles)
    lines = PIPELINE.source.lines(spark, list(playbacks.HOURS))
    touched = with_last_touch(
        playbacks.parse(lines).dropna(),
        key=("user_id", "title_id"),
        time="event_time",
        name="event_id",
        is_touch=F.col("kind") == "impression",
        within=playbacks.WITHIN,
    )
    plays = touched.where("kind = 'play'").select("event_id", F.coalesce(F.col(TOUCH)["event_id"], F.lit("")).alias("made_by"))
    assert {(row["event_id"], row["made_by"]) for row in plays.collect()} == set(truth().items())


@pytest.mark.whole
def test_the_shipped_events_give_the_tables_of_the_reference(spark: "SparkSession") -> None:
    events, _ = read_events(playbacks.EVENTS_FOLDER)
    attributed = built(spark, PIPELINE, "attribution", [row_of(event) for event in events])
    assert counted(attributed, ATTRIBUTION.table) == Counter(attribution(events))
    hourly = playbacks.build_playbacks_hourly(attributed).select(*HOURLY.table.column_names)
    assert counted(hourly, HOURLY.table) == Counter(playbacks_hourly(events))


HOURS = HourRange(T0, T0 + 10 * HOUR)
BOUNDARIES = (0, 1, 3599.999, 3600, 7200, 4 * 3600 - 0.001, 4 * 3600, 5 * 3600 - 0.001, 5 * 3600, 8 * 3600, 36000 - 0.001)
SECONDS = st.sampled_from(BOUNDARIES) | st.integers(0, 36000 - 1)
EVENT = st.builds(
    lambda number, kind, user, title, seconds: Event(at(seconds), f"{number}", kind, user, title),
    st.integers(1, 4), st.sampled_from(["impression", "play"]), st.integers(1, 2), st.integers(1, 2), SECONDS,
)  # fmt: skip


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Events in any order, some delivered again, and where to cut their hours."""
    events = draw(st.lists(EVENT, min_size=1, max_size=14))
    again = draw(st.lists(st.sampled_from(events), max_size=3))
    return draw(st.permutations(events + again)), draw(st.lists(st.integers(1, 9), max_size=5))


def differing(spark: "SparkSession", drawn: list[Stream], window: Window = ATTRIBUTION.window) -> list[Difference]:
    return differences(
        spark,
        PIPELINE,
        "attribution",
        drawn,
        hours=HOURS,
        key="user_id",
        row_of=row_of,
        reference=attribution,
        window=window,
    )


@settings(max_examples=4, deadline=None, phases=WITHOUT_SHRINKING, suppress_health_check=PATIENT)
@given(st.lists(streams(), min_size=15, max_size=40))
def test_every_chunking_of_random_events_gives_the_attribution_of_the_reference(
    spark: "SparkSession", drawn: list[Stream]
) -> None:
    assert differing(spark, drawn) == []


def test_two_milliseconds_less_of_lookahead_lose_a_play(spark: "SparkSession") -> None:
    last = at(3600) - timedelta(milliseconds=1)
    latest_play = Event(last + playbacks.WITHIN - timedelta(milliseconds=1), "p", "play", 1, 1)
    drawn: list[Stream] = [([Event(last, "i", "impression", 1, 1), latest_play], [1])]
    assert differing(spark, drawn) == []
    lost = differing(spark, drawn, Window(lookahead=playbacks.WITHIN - timedelta(milliseconds=2)))
    assert [row[6] for difference in lost for row in difference.missing] == ["p"]
