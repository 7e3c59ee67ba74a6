"""The clickstream pipeline: reading lines, and every schema on rows that it must refuse."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from backfill_platform.pipelines import clickstream, clickstream_reference
from backfill_platform.spark.checks import FAILED, mark_failures
from backfill_platform.spark.reader import spark_schema
from backfill_platform_tests.events import T0, hour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = clickstream.pipeline
LINES = {
    "1044,30/Apr/1998,22:46:12,/images/11104.gif,200,508": (1044, 2772, "/images/11104.gif", 200, 508),
    '1,30/Apr/1998,22:00:00,/a,b,"c",200,-': (1, 0, '/a,b,"c"', 200, None),
    "1,30/Apr/1998,22:00:00,/x,-,0": (1, 0, "/x", None, 0),
    "1,31/Apr/1998,22:00:00,/x,200,0": (1, None, "/x", 200, 0),
    "1,30/Apr/1998,22:00:00,,200,0": (1, 0, "", 200, 0),
    "x,30/Apr/1998,22:00:00,/x,200,0": (None, None, "", None, -1),
    "1,30/Apr/1998,22:00:00,/x,200,99999999999999999999": (1, 0, "/x", 200, -1),
    "": (None, None, "", None, -1),
}


def test_lines_are_read_as_far_as_they_can_be(spark: "SparkSession") -> None:
    frame = spark.createDataFrame([(line,) for line in LINES], "line string").coalesce(1)
    parsed = clickstream.parse(frame).withColumn("s", F.unix_seconds("event_time") - int(T0.timestamp()))
    found = {row["line"]: (row["client_id"], row["s"], row["url"], row["status"], row["bytes"]) for row in parsed.collect()}
    assert found == LINES


GOOD: dict[str, dict[str, Any]] = {
    "clickstream": {
        "ingestion_hour": T0, "event_time": T0, "client_id": 0, "url": "/", "status": 200, "bytes": None,
    },
    "sessions": {
        "hour": T0, "client_id": 0, "started_at": T0, "ended_at": T0, "duration_seconds": 0, "requests": 1, "errors": 0,
        "bytes": 0, "entry_url": "/", "is_open": False,
    },
    "site_hourly": {
        "hour": T0, "sessions": 1, "open_sessions": 0, "requests": 1, "unique_clients": 1, "bytes": 0, "errors": 0,
        "error_rate": 0.0, "duration_p50_seconds": 0, "duration_p90_seconds": 0, "duration_p99_seconds": 0,
    },
}  # fmt: skip
BAD: dict[str, list[dict[str, Any]]] = {
    "clickstream": [{"client_id": -1}, {"url": ""}, {"status": 99}, {"status": 600}, {"bytes": -1}, {"event_time": None}],
    "sessions": [
        {"ended_at": T0 - timedelta(seconds=1)}, {"requests": 0}, {"errors": 2}, {"bytes": -1}, {"is_open": None},
        {"duration_seconds": -1}, {"client_id": None},
    ],
    "site_hourly": [{"sessions": 0}, {"error_rate": 1.01}, {"unique_clients": 0}, {"duration_p99_seconds": -1}],
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_each_schema_refuses_what_it_must(spark: "SparkSession", name: str) -> None:
    table = PIPELINE.declared(name).table
    rows = [GOOD[name], *({**GOOD[name], **bad} for bad in BAD[name])]
    frame = spark.createDataFrame([tuple(row[c] for c in table.column_names) for row in rows], spark_schema(table))
    marked = mark_failures(frame.coalesce(1), PIPELINE.rules(name)).collect()
    assert [bool(row[FAILED]) for row in marked] == [False, *(True for _ in BAD[name])]


def test_the_reference_reads_the_shipped_file_and_knows_its_dirt() -> None:
    requests, bad = clickstream_reference.read_requests(clickstream.REQUESTS_FILE)
    assert (len(requests), len(bad), len(requests) - len(set(requests))) == (199_997, 3, 93)
    assert all(line.endswith(",-,0") for line in bad)
    assert {request.at.replace(minute=0, second=0) for request in requests} == set(clickstream.HOURS)


def test_the_reference_sums_up_hours_by_hand() -> None:
    requests = [
        clickstream_reference.Request(1, T0, "/b", 200, 10),
        clickstream_reference.Request(1, T0, "/a", 404, None),
        clickstream_reference.Request(1, T0 + timedelta(minutes=29), "/c", 200, 5),
        clickstream_reference.Request(2, T0 + timedelta(minutes=59), "/d", 500, 1),
    ]
    sessions = list(clickstream_reference.sessions(requests, hour(24)))
    assert sessions == [
        (T0, 1, T0, T0 + timedelta(minutes=29), 1740, 3, 1, 15, "/a", False),
        (T0, 2, T0 + timedelta(minutes=59), T0 + timedelta(minutes=59), 0, 1, 1, 1, "/d", False),
    ]
    assert list(clickstream_reference.site_hourly(requests, hour(24))) == [(T0, 2, 0, 4, 2, 16, 2, 0.5, 0, 1740, 1740)]
