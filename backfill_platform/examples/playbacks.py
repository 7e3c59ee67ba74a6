"""Impressions and plays of titles -> the plays that each impression led to -> impressions and plays by hour.

A play belongs to the latest impression of the same user and title at or before it, if that is less than four hours ago (last
touch). The events are generated, with known truth and with late, doubled and cut lines; see data/playbacks/.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyspark.sql.types as T
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.adapters.spark.attribution import TOUCH, with_last_touch
from backfill_platform.adapters.spark.checks import HourRule, RowRule
from backfill_platform.adapters.spark.sessions import micros
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.tables import Layer
from backfill_platform.domain.uris import local_uri
from backfill_platform.domain.windows import Window
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable

WITHIN = timedelta(hours=4)
HOURS = HourRange(datetime(2017, 6, 1, 18, tzinfo=UTC), datetime(2017, 6, 2, 6, tzinfo=UTC))
EVENTS_FOLDER = Path(__file__).parent / "data" / "playbacks" / "events"
_WITHIN_MICROS = WITHIN // timedelta(microseconds=1)


class Playbacks(DataFrameModel):
    """A title shown to a user, or played by one."""

    ingestion_hour: T.TimestampType = Field(description="hour in which the event arrived, UTC")
    event_time: T.TimestampType = Field(description="when it happened, UTC, to the millisecond")
    kind: T.StringType = Field(isin=["impression", "play"], description="impression or play")
    event_id: T.StringType = Field(str_length={"min_value": 1}, description="name of the event")
    user_id: T.LongType = Field(ge=1, description="number of the user")
    title_id: T.LongType = Field(ge=1, description="number of the title")


class Attribution(DataFrameModel):
    """An impression and the plays that go back to it."""

    hour: T.TimestampType = Field(description="hour of the impression, UTC")
    user_id: T.LongType = Field(ge=1, description="number of the user")
    title_id: T.LongType = Field(ge=1, description="number of the title")
    shown_at: T.TimestampType = Field(description="time of the impression, UTC")
    impression_id: T.StringType = Field(str_length={"min_value": 1}, description="name of the impression")
    plays: T.LongType = Field(ge=0, description="plays within four hours and before the next impression")
    first_play_id: T.StringType = Field(nullable=True, description="name of the first of them; NULL where there is none")
    first_played_at: T.TimestampType = Field(nullable=True, description="time of the first of them, UTC")


class PlaybacksHourly(DataFrameModel):
    """The impressions of an hour and what they led to, whenever that was."""

    hour: T.TimestampType = Field(description="hour of the impressions, UTC")
    impressions: T.LongType = Field(ge=1, description="number of impressions")
    played: T.LongType = Field(ge=0, description="impressions that led to a play")
    plays: T.LongType = Field(ge=0, description="plays that go back to these impressions")
    play_rate: T.DoubleType = Field(in_range={"min_value": 0, "max_value": 1}, description="played / impressions")


def parse(lines: DataFrame) -> DataFrame:
    """A JSON object per line; one that is cut off has no values."""
    read = F.from_json("line", "at string, kind string, id string, user bigint, title bigint")
    return lines.select(
        "*",
        F.try_to_timestamp(read["at"], F.lit("yyyy-MM-dd'T'HH:mm:ss.SSSXXX")).alias("event_time"),
        read["kind"].alias("kind"),
        read["id"].alias("event_id"),
        read["user"].alias("user_id"),
        read["title"].alias("title_id"),
    )


def build_attribution(events: DataFrame) -> DataFrame:
    """One row per impression."""
    is_play = F.col("kind") == "play"
    touched = with_last_touch(
        events,
        key=("user_id", "title_id"),
        time="event_time",
        name="event_id",
        is_touch=F.col("kind") == "impression",
        within=WITHIN,
    )
    first = F.min(F.when(is_play, F.struct("event_time", "event_id"))).alias("first")
    impressions = touched.where(F.col(TOUCH).isNotNull()).groupBy("user_id", "title_id", TOUCH)
    return impressions.agg(F.count_if(is_play).alias("plays"), first).select(
        F.date_trunc("hour", F.col(TOUCH)["event_time"]).alias("hour"),
        "user_id",
        "title_id",
        F.col(TOUCH)["event_time"].alias("shown_at"),
        F.col(TOUCH)["event_id"].alias("impression_id"),
        "plays",
        F.col("first")["event_id"].alias("first_play_id"),
        F.col("first")["event_time"].alias("first_played_at"),
    )


def build_playbacks_hourly(attribution: DataFrame) -> DataFrame:
    """One row per hour with an impression."""
    return attribution.groupBy("hour").agg(
        F.count("*").alias("impressions"),
        F.count_if(F.col("plays") > 0).alias("played"),
        F.sum("plays").alias("plays"),
        (F.count_if(F.col("plays") > 0) / F.count("*")).alias("play_rate"),
    )


pipeline = Pipeline(
    name="playbacks",
    description="Impressions of titles and the plays they led to, by impression and by hour.",
    start=HOURS.start,
    end=HOURS.end,
    source=HourlyFiles(local_uri(EVENTS_FOLDER) + "/%Y-%m-%dT%H.jsonl.gz"),
    raw=RawTable("playbacks", Playbacks, parse, same_event=("event_time", "kind", "event_id", "user_id", "title_id")),
    derived=(
        DerivedTable(
            Layer.TRANSFORMED,
            "attribution",
            Attribution,
            reads="playbacks",
            build=build_attribution,
            # No lookback: earlier impressions do not change which plays belong to this one.
            window=Window(lookahead=WITHIN),
            key=("user_id", "title_id", "shown_at", "impression_id"),
            rules=(
                RowRule(
                    "a first play where there are plays",
                    lambda: (F.col("plays") > 0) == (F.col("first_play_id").isNotNull() & F.col("first_played_at").isNotNull()),
                    "the first play is named exactly where there is one",
                ),
                RowRule(
                    "played within four hours",
                    lambda: F.coalesce(
                        (micros(F.col("first_played_at")) - micros(F.col("shown_at"))).between(0, _WITHIN_MICROS - 1),
                        F.lit(True),
                    ),
                    "a play comes at or after its impression, and less than four hours after",
                ),
            ),
        ),
        DerivedTable(
            Layer.AGGREGATED,
            "playbacks_hourly",
            PlaybacksHourly,
            reads="attribution",
            build=build_playbacks_hourly,
            rules=(
                HourRule("one row", lambda: F.count("*") == 1, "an hour is summed up in one row"),
                HourRule("played within impressions", lambda: F.max("played") <= F.max("impressions")),
                HourRule("played within plays", lambda: F.max("played") <= F.max("plays")),
            ),
        ),
    ),
)
