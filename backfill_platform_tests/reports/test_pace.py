"""What is said while a long step goes on."""

from datetime import UTC, datetime

from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import LandHours, make_plan
from backfill_platform.examples import clickstream
from backfill_platform.repair.outcomes import HourOutcome, LakeHour, StepFinished, StepStarted
from backfill_platform.reports.pace import Pace

START = datetime(1998, 4, 30, 22, tzinfo=UTC)


def part(step: LandHours, start: int, end: int) -> StepFinished:
    """A part of the step; each hour has landed a thousand rows."""
    hours = HourRange(START + start * HOUR, START + end * HOUR)
    landed = LakeHour(rows=1000, quarantined=0, content=Fingerprint(1000, 1))
    return StepFinished(LandHours(step.node, hours), [HourOutcome(step.asset, hour, lake=landed) for hour in hours])


def test_a_step_that_is_done_in_parts_says_hours_rows_and_the_time_left() -> None:
    pipeline, seconds = clickstream.pipeline, iter([100.0, 130.0, 145.0, 160.0])
    plan = make_plan(pipeline.name, pipeline.nodes, HourRange(START, START + 8 * HOUR), [pipeline.raw.table.path])
    (step,) = plan.steps
    assert isinstance(step, LandHours)
    pace = Pace(lambda: next(seconds))
    assert pace.take(StepStarted(step, 1, 1)) == "step 1 of 1: land raw/clickstream"
    assert pace.take(part(step, 0, 2)) == "step 1 of 1: land raw/clickstream: 2 of 8 hours, 2,000 rows, about 0:01:30 left"
    assert pace.take(part(step, 2, 6)) == "step 1 of 1: land raw/clickstream: 6 of 8 hours, 6,000 rows, about 0:00:15 left"
    assert pace.take(part(step, 6, 8)) == "", "the next step says that this one is over"
