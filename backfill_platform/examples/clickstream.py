"""Web requests of the France 98 site -> sessions by client -> hourly site metrics.

The requests are a sample of one day of the WorldCup98 trace of the Internet Traffic Archive; see data/worldcup98/.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyspark.sql.types as T
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as SqlWindow
from pyspark.sql import functions as F

from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.adapters.spark.checks import HourRule, RowRule
from backfill_platform.adapters.spark.sessions import SESSION_START, micros
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.tables import Layer
from backfill_platform.domain.uris import local_uri
from backfill_platform.domain.windows import UntilClosed, Window
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable

GAP = timedelta(minutes=30)
CAP = timedelta(days=1)
HOURS = HourRange(datetime(1998, 4, 30, 22, tzinfo=UTC), datetime(1998, 5, 1, 22, tzinfo=UTC))
REQUESTS_FILE = Path(__file__).parent / "data" / "worldcup98" / "requests.csv.gz"


class Requests(DataFrameModel):
    """One request to the site, as its log has it."""

    ingestion_hour: T.TimestampType = Field(description="hour in which the request arrived, UTC")
    event_time: T.TimestampType = Field(description="when the request was made, UTC, to the second")
    client_id: T.LongType = Field(ge=0, description="number of the client; the log hides its address")
    url: T.StringType = Field(str_length={"min_value": 1}, description="path requested, decoded as Latin-1")
    status: T.IntegerType = Field(in_range={"min_value": 100, "max_value": 599}, description="HTTP status")
    bytes: T.LongType = Field(nullable=True, ge=0, description="bytes sent; NULL where the log has none")


class Sessions(DataFrameModel):
    """A client's requests with less than 30 minutes between neighbours, owned by the hour of the first."""

    hour: T.TimestampType = Field(description="hour in which the session starts, UTC")
    client_id: T.LongType = Field(ge=0, description="number of the client")
    started_at: T.TimestampType = Field(description="time of the first request, UTC")
    ended_at: T.TimestampType = Field(description="time of the last request, UTC")
    duration_seconds: T.LongType = Field(ge=0, description="from the first to the last request")
    requests: T.LongType = Field(ge=1, description="number of requests")
    errors: T.LongType = Field(ge=0, description="requests answered with status 400 or above")
    bytes: T.LongType = Field(ge=0, description="bytes sent")
    entry_url: T.StringType = Field(description="path of the first request; the smallest of several in one second")
    is_open: T.BooleanType = Field(description="may go on beyond what has landed or beyond the cap")


class SiteHourly(DataFrameModel):
    """The sessions that start in an hour, summed up."""

    hour: T.TimestampType = Field(description="hour in which the sessions start, UTC")
    sessions: T.LongType = Field(ge=1, description="number of sessions")
    open_sessions: T.LongType = Field(ge=0, description="of these, the ones that may go on")
    requests: T.LongType = Field(ge=1, description="requests of these sessions")
    unique_clients: T.LongType = Field(ge=1, description="distinct clients")
    bytes: T.LongType = Field(ge=0, description="bytes sent")
    errors: T.LongType = Field(ge=0, description="requests answered with status 400 or above")
    error_rate: T.DoubleType = Field(in_range={"min_value": 0, "max_value": 1}, description="errors / requests")
    duration_p50_seconds: T.LongType = Field(ge=0, description="median duration, an actual one (nearest rank)")
    duration_p90_seconds: T.LongType = Field(ge=0, description="90th percentile of the duration (nearest rank)")
    duration_p99_seconds: T.LongType = Field(ge=0, description="99th percentile of the duration (nearest rank)")


def parse(lines: DataFrame) -> DataFrame:
    """`client id, day, time, url, status, bytes`; the url may hold commas, the others cannot."""
    pattern = r"^(\d+),(\d\d/\w{3}/\d{4}),(\d\d:\d\d:\d\d),(.*),([^,]*),([^,]*)$"

    def part(number: int) -> Column:
        return F.regexp_extract("line", pattern, number)

    # The log writes `-` for no bytes. What is neither that nor a number becomes -1, which the schema refuses.
    size = F.when(part(6) != "-", F.coalesce(part(6).cast("bigint"), F.lit(-1)))
    moment = F.concat_ws(" ", part(2), part(3))
    return lines.select(
        "*",
        F.try_to_timestamp(moment, F.lit("dd/MMM/yyyy HH:mm:ss")).alias("event_time"),
        part(1).cast("bigint").alias("client_id"),
        part(4).alias("url"),
        part(5).cast("int").alias("status"),
        size.alias("bytes"),
    )


def build_sessions(requests: DataFrame) -> DataFrame:
    """One row per session of a client."""
    # Two steps: a text among the sums makes Spark sort whatever it sums up. The first step leaves a few rows of a session.
    entry = F.when(F.col("event_time") == F.col(SESSION_START), F.col("url"))
    parts = requests.groupBy("client_id", F.col(SESSION_START).alias("started_at"), entry.alias("entry_url")).agg(
        F.max("event_time").alias("ended_at"),
        F.count("*").alias("requests"),
        F.count_if(F.col("status") >= 400).alias("errors"),
        F.sum("bytes").alias("bytes"),
    )
    sessions = parts.groupBy("client_id", "started_at").agg(
        F.max("ended_at").alias("ended_at"),
        F.sum("requests").alias("requests"),
        F.sum("errors").alias("errors"),
        F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
        F.min("entry_url").alias("entry_url"),
    )
    return sessions.select(
        F.date_trunc("hour", "started_at").alias("hour"),
        "client_id",
        "started_at",
        "ended_at",
        F.expr("(unix_micros(ended_at) - unix_micros(started_at)) div 1000000").alias("duration_seconds"),
        "requests",
        "errors",
        "bytes",
        "entry_url",
    )


def build_site_hourly(sessions: DataFrame) -> DataFrame:
    """One row per hour in which a session starts."""

    def duration(share: float) -> Column:
        return F.expr(f"percentile_disc({share}) within group (order by duration_seconds)").cast("bigint")

    # Beside a count of distinct clients, Spark would keep the durations of every client apart: four times slower.
    of_client = SqlWindow.partitionBy("hour", "client_id").orderBy("started_at")
    marked = sessions.withColumn("number", F.row_number().over(of_client))
    return marked.groupBy("hour").agg(
        F.count("*").alias("sessions"),
        F.count_if("is_open").alias("open_sessions"),
        F.sum("requests").alias("requests"),
        F.count_if(F.col("number") == 1).alias("unique_clients"),
        F.sum("bytes").alias("bytes"),
        F.sum("errors").alias("errors"),
        (F.sum("errors") / F.sum("requests")).alias("error_rate"),
        duration(0.5).alias("duration_p50_seconds"),
        duration(0.9).alias("duration_p90_seconds"),
        duration(0.99).alias("duration_p99_seconds"),
    )


pipeline = Pipeline(
    name="clickstream",
    description="Requests to the France 98 web site, by client and by hour.",
    start=HOURS.start,
    end=HOURS.end,
    source=ArchiveFile(local_uri(REQUESTS_FILE), HOURS, encoding="ISO-8859-1"),
    raw=RawTable("clickstream", Requests, parse, same_event=("client_id", "event_time", "url", "status", "bytes")),
    derived=(
        DerivedTable(
            Layer.TRANSFORMED,
            "sessions",
            Sessions,
            reads="clickstream",
            build=build_sessions,
            window=Window(lookback=GAP, lookahead=UntilClosed(key="client_id", gap=GAP, cap=CAP)),
            key=("client_id", "started_at"),
            tenant="client_id",
            lineage={
                **dict.fromkeys(("hour", "started_at", "ended_at", "duration_seconds", "is_open"), ("event_time",)),
                "errors": ("status",),
                "entry_url": ("url", "event_time"),
            },
            rules=(
                RowRule(
                    "starts before it ends",
                    lambda: micros(F.col("started_at")) <= micros(F.col("ended_at")),
                    "a session cannot end before it starts",
                ),
                RowRule("errors within requests", lambda: F.col("errors") <= F.col("requests")),
            ),
        ),
        DerivedTable(
            Layer.AGGREGATED,
            "site_hourly",
            SiteHourly,
            reads="sessions",
            build=build_site_hourly,
            lineage={
                "sessions": ("started_at",),
                "open_sessions": ("is_open",),
                "unique_clients": ("client_id",),
                "error_rate": ("errors", "requests"),
                **dict.fromkeys((f"duration_p{n}_seconds" for n in (50, 90, 99)), ("duration_seconds",)),
            },
            rules=(
                HourRule("one row", lambda: F.count("*") == 1, "an hour is summed up in one row"),
                HourRule("clients within sessions", lambda: F.max("unique_clients") <= F.max("sessions")),
            ),
        ),
    ),
)
