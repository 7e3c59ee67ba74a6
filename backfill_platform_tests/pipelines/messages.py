"""A pipeline over a topic for tests: visits of users, as JSON, with sessions by user and hourly numbers."""

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyspark.sql.types as T
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_platform.adapters.kafka.payload import Payload, Text
from backfill_platform.adapters.kafka.topic import KafkaTopic
from backfill_platform.adapters.spark.sessions import SESSION_START
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.tables import Layer
from backfill_platform.domain.windows import UntilClosed, Window
from backfill_platform.pipelines.kafka import KafkaMessage
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable

T0 = datetime(2026, 3, 1, 10, tzinfo=UTC)
GAP = timedelta(minutes=30)


class Visits(KafkaMessage):
    """Visits as they were sent."""

    ingestion_hour: T.TimestampType = Field(description="hour of the message's offset, UTC")
    event_time: T.TimestampType = Field(description="when it happened, UTC")
    user: T.StringType = Field(description="who")
    number: T.LongType = Field(ge=0, description="counts the visits of a test, so that each is known")


class Sessions(DataFrameModel):
    """Visits of a user without half an hour of silence."""

    hour: T.TimestampType = Field(description="hour in which it starts, UTC")
    user: T.StringType = Field(description="who")
    started_at: T.TimestampType = Field(description="first visit, UTC")
    ended_at: T.TimestampType = Field(description="last visit, UTC")
    visits: T.LongType = Field(ge=1, description="number of visits")
    numbers: T.LongType = Field(ge=0, description="sum of their numbers")
    is_open: T.BooleanType = Field(description="may go on")


def parse(lines: DataFrame) -> DataFrame:
    """JSON with `at` (ISO 8601), `user` and `number`."""
    fields = F.from_json("line", "at string, user string, number bigint")
    return lines.select(
        "*",
        F.try_to_timestamp(fields["at"]).alias("event_time"),
        fields["user"].alias("user"),
        fields["number"].alias("number"),
    )


def build_sessions(visits: DataFrame) -> DataFrame:
    """One row per session of a user."""
    return (
        visits.groupBy("user", F.col(SESSION_START).alias("started_at"))
        .agg(
            F.max("event_time").alias("ended_at"),
            F.count("*").alias("visits"),
            F.sum("number").alias("numbers"),
        )
        .withColumn("hour", F.date_trunc("hour", "started_at"))
    )


def pipeline_over(topic: str, hours: int, *, value: Payload | None = None, start: datetime = T0, suffix: str = "") -> Pipeline:
    """The pipeline over a topic, for so many hours, with table names of its own."""
    suffix = suffix or uuid.uuid4().hex[:8]
    span = HourRange(start, start + timedelta(hours=hours))
    return Pipeline(
        name=f"visits_{suffix}",
        description="Visits of users, from a topic.",
        start=span.start,
        end=span.end,
        source=KafkaTopic(topic, value or Text()),
        raw=RawTable(f"visits_{suffix}", Visits, parse, same_event=("user", "event_time", "number")),
        derived=(
            DerivedTable(
                Layer.TRANSFORMED,
                f"visit_sessions_{suffix}",
                Sessions,
                reads=f"visits_{suffix}",
                build=build_sessions,
                window=Window(lookback=GAP, lookahead=UntilClosed(key="user", gap=GAP, cap=timedelta(hours=6))),
                key=("user", "started_at"),
                tenant="user",
            ),
        ),
    )


@dataclass(frozen=True)
class Visit:
    """A visit at so many seconds after T0; its message has the timestamp `sent`, that of the visit if not given."""

    user: str
    seconds: int
    number: int
    sent: int | None = None

    @property
    def at(self) -> datetime:
        return T0 + timedelta(seconds=self.seconds)

    @property
    def payload(self) -> bytes:
        return json.dumps({"at": self.at.isoformat(), "user": self.user, "number": self.number}).encode()

    @property
    def stamp(self) -> int:
        return int((T0 + timedelta(seconds=self.seconds if self.sent is None else self.sent)).timestamp() * 1000)


def send(producer: Any, topic: str, visits: Iterable[Visit]) -> None:
    """Send the visits, keyed by user, and wait until the broker has all of them."""
    problems = []

    def on_delivery_report(error: Any, message: Any) -> None:
        if error is not None:
            problems.append(error)

    for visit in visits:
        producer.produce(
            topic,
            visit.payload,
            visit.user,
            timestamp=visit.stamp,
            headers=[("from", b"test"), ("none", None)],
            on_delivery=on_delivery_report,
        )
    assert producer.flush(60) == 0
    assert not problems, problems


Key = tuple[str, datetime]
Session = tuple[datetime, int, int]


def sessions_of(visits: Iterable[Visit]) -> dict[Key, Session]:
    """What plain Python makes of visits, each once: (user, start) -> (end, visits, sum of numbers)."""
    sessions: dict[Key, Session] = {}
    add_visits(sessions, {}, sorted({replace(visit, sent=None) for visit in visits}, key=lambda visit: visit.seconds))
    return sessions


def add_visits(sessions: dict[Key, Session], latest: dict[str, Key], visits: Iterable[Visit]) -> None:
    """Continue the latest session of each user by visits in order, or begin a new one after the gap."""
    for visit in visits:
        key = latest.get(visit.user)
        if key is None or visit.at - sessions[key][0] >= GAP:
            key = latest[visit.user] = (visit.user, visit.at)
            sessions[key] = (visit.at, 0, 0)
        _, count, total = sessions[key]
        sessions[key] = (visit.at, count + 1, total + visit.number)
