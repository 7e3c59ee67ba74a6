"""The clickstream pipeline: reading lines, and its reference in plain Python."""

from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.examples import clickstream, clickstream_reference
from backfill_platform_tests.events import T0, hour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def test_unreadable_values_of_a_line_become_null(spark: "SparkSession") -> None:
    frame = spark.createDataFrame([(line,) for line in LINES], "line string").coalesce(1)
    parsed = clickstream.parse(frame).withColumn("s", F.unix_seconds("event_time") - int(T0.timestamp()))
    values = {row["line"]: (row["client_id"], row["s"], row["url"], row["status"], row["bytes"]) for row in parsed.collect()}
    assert values == LINES


def test_the_reference_reads_the_shipped_file_and_counts_its_bad_lines() -> None:
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
    sessions = sorted(clickstream_reference.sessions(requests, hour(24)))
    assert sessions == [
        (T0, 1, T0, T0 + timedelta(minutes=29), 1740, 3, 1, 15, "/a", False),
        (T0, 2, T0 + timedelta(minutes=59), T0 + timedelta(minutes=59), 0, 1, 1, 1, "/d", False),
    ]
    assert list(clickstream_reference.site_hourly(requests, hour(24))) == [(T0, 2, 0, 4, 2, 16, 2, 0.5, 0, 1740, 1740)]
