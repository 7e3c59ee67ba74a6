"""The first three hours of the clickstream pipeline under names of its own, which are repaired as soon as they have gaps."""

from dataclasses import replace
from datetime import timedelta

from backfill_platform.domain.gap_policy import GapPolicy, OnGap
from backfill_platform.domain.hours import HOUR
from backfill_platform.examples import clickstream

HOURS = 3
EVERY = timedelta(seconds=5)

_sessions, _ = clickstream.pipeline.derived

pipeline = replace(
    clickstream.pipeline,
    name="watched",
    end=clickstream.pipeline.start + HOURS * HOUR,
    raw=replace(clickstream.pipeline.raw, name="watched"),
    derived=(replace(_sessions, name="watched_sessions", reads="watched"),),
    on_gaps=GapPolicy(OnGap.PUBLISH, every=EVERY),
)
