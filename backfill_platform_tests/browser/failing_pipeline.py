"""The clickstream pipeline under names of its own, with a rule that one hour breaks."""

from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import functions as F

from backfill_platform.adapters.spark.checks import HourRule
from backfill_platform.examples import clickstream

BROKEN_HOUR = datetime(1998, 4, 30, 23, tzinfo=UTC)
RULE = HourRule(
    "enough clients",
    lambda: F.unix_seconds(F.max("hour")) != int(BROKEN_HOUR.timestamp()),
    "an hour has about as many clients as its neighbours",
)

_sessions, _site_hourly = clickstream.pipeline.derived

pipeline = replace(
    clickstream.pipeline,
    name="checked",
    raw=replace(clickstream.pipeline.raw, name="checked"),
    derived=(
        replace(_sessions, name="checked_sessions", reads="checked", rules=(*_sessions.rules, RULE)),
        replace(_site_hourly, name="checked_hourly", reads="checked_sessions"),
    ),
)
