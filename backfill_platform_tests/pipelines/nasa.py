"""Requests to NASA's web server -> visits of a host -> numbers by hour: a pipeline written from the documentation.

The lines are the first 1,000 of the NASA-HTTP trace of the Internet Traffic Archive (Jim Dumoulin, Kennedy Space Center), which
may be freely redistributed: 18 minutes of 1 July 1995, in the server's own time, four hours behind UTC.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyspark.sql.types as T
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.adapters.spark.checks import HourRule, RowRule
from backfill_platform.adapters.spark.sessions import SESSION_START
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.tables import Layer
from backfill_platform.domain.uris import local_uri
from backfill_platform.domain.windows import UntilClosed, Window
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable

GAP = timedelta(minutes=5)
CAP = timedelta(hours=1)
HOURS = HourRange(datetime(1995, 7, 1, 4, tzinfo=UTC), datetime(1995, 7, 1, 6, tzinfo=UTC))  # the second one has no line
LOG_FILE = Path(__file__).with_name("nasa_http_jul95_sample.log.gz")


class Requests(DataFrameModel):
    """One request, as the server logged it."""

    ingestion_hour: T.TimestampType = Field(description="hour in which the request arrived, UTC")
    event_time: T.TimestampType = Field(description="when it was answered, UTC, to the second")
    host: T.StringType = Field(str_matches="^[A-Za-z0-9.-]+$", description="name or address of who asked")
    method: T.StringType = Field(isin=["GET", "HEAD", "POST"], description="HTTP method")
    path: T.StringType = Field(str_startswith="/", description="what was asked for, with its query")
    status: T.IntegerType = Field(in_range={"min_value": 100, "max_value": 599}, description="HTTP status")
    bytes: T.LongType = Field(nullable=True, ge=0, description="bytes sent; NULL where the log has none")


class Visits(DataFrameModel):
    """A host's requests with less than five minutes between neighbours, owned by the hour of the first."""

    hour: T.TimestampType = Field(description="hour in which the visit starts, UTC")
    host: T.StringType = Field(description="name or address of the visitor")
    started_at: T.TimestampType = Field(description="time of the first request, UTC")
    ended_at: T.TimestampType = Field(description="time of the last request, UTC")
    requests: T.LongType = Field(ge=1, description="number of requests")
    errors: T.LongType = Field(ge=0, description="requests answered with status 400 or above")
    bytes: T.LongType = Field(ge=0, description="bytes sent")
    is_open: T.BooleanType = Field(description="may go on beyond what has landed or beyond the cap")


class VisitsHourly(DataFrameModel):
    """The visits that start in an hour, summed up."""

    hour: T.TimestampType = Field(description="hour in which the visits start, UTC")
    requests: T.LongType = Field(ge=1, description="requests of these visits")
    visits: T.LongType = Field(ge=1, description="number of visits")
    hosts: T.LongType = Field(ge=1, description="distinct hosts")
    errors: T.LongType = Field(ge=0, description="requests answered with status 400 or above")
    bytes: T.LongType = Field(ge=0, description="bytes sent")


def parse(lines: DataFrame) -> DataFrame:
    """Common Log Format: `host - - [01/Jul/1995:00:00:01 -0400] "GET /path HTTP/1.0" 200 6245`."""
    pattern = r'^(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S+)(?: \S+)?" (\d{3}) (\d{1,18}|-)$'

    def part(number: int) -> Column:
        return F.nullif(F.regexp_extract("line", pattern, number), F.lit(""))

    return lines.select(
        "*",
        F.try_to_timestamp(part(2), F.lit("dd/MMM/yyyy:HH:mm:ss Z")).alias("event_time"),
        part(1).alias("host"),
        part(3).alias("method"),
        part(4).alias("path"),
        part(5).cast("int").alias("status"),
        F.nullif(part(6), F.lit("-")).cast("bigint").alias("bytes"),
    )


def build_visits(requests: DataFrame) -> DataFrame:
    """One row per visit of a host."""
    visits = requests.groupBy("host", F.col(SESSION_START).alias("started_at")).agg(
        F.max("event_time").alias("ended_at"),
        F.count("*").alias("requests"),
        F.count_if(F.col("status") >= 400).alias("errors"),
        F.coalesce(F.sum("bytes"), F.lit(0)).cast("bigint").alias("bytes"),
    )
    return visits.withColumn("hour", F.date_trunc("hour", "started_at"))


def build_hourly(visits: DataFrame) -> DataFrame:
    """One row per hour in which a visit starts."""
    return visits.groupBy("hour").agg(
        F.sum("requests").alias("requests"),
        F.count("*").alias("visits"),
        F.count_distinct("host").alias("hosts"),
        F.sum("errors").alias("errors"),
        F.sum("bytes").alias("bytes"),
    )


pipeline = Pipeline(
    name="nasa",
    description="Requests to NASA's web server, by visit and by hour.",
    start=HOURS.start,
    end=HOURS.end,
    source=ArchiveFile(local_uri(LOG_FILE), HOURS, encoding="ISO-8859-1"),
    raw=RawTable(
        "requests",
        Requests,
        parse,
        same_event=("host", "event_time", "method", "path", "status", "bytes"),
        rules=(
            RowRule(
                "pages have a body",
                lambda: (F.col("status") != 200) | (F.col("bytes") > 0),
                "status 200 without a byte was never seen by the visitor",
            ),
        ),
    ),
    derived=(
        DerivedTable(
            Layer.TRANSFORMED,
            "visits",
            Visits,
            reads="requests",
            build=build_visits,
            window=Window(lookback=GAP, lookahead=UntilClosed(key="host", gap=GAP, cap=CAP)),
            key=("host", "started_at"),
            tenant="host",
            rules=(
                RowRule("errors within requests", lambda: F.col("errors") <= F.col("requests")),
                HourRule(
                    "mostly answered",
                    lambda: 2 * F.sum("errors") <= F.sum("requests"),
                    "an hour with more errors than answers was an outage",
                ),
            ),
        ),
        DerivedTable(
            Layer.AGGREGATED,
            "visits_hourly",
            VisitsHourly,
            reads="visits",
            build=build_hourly,
            rules=(HourRule("hosts within visits", lambda: F.max("hosts") <= F.max("visits")),),
        ),
    ),
)
