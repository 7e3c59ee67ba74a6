"""The payments pipeline: the shipped lines, random ones, and rows that its schemas must refuse."""

from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.domain.hours import HOUR, HourRange, hour_of
from backfill_platform.domain.windows import Window
from backfill_platform.examples import payments
from backfill_platform_tests.oracles.payments import Line, payments_hourly, read_lines, velocity
from backfill_platform_tests.oracles.payments import payments as payments_of
from backfill_platform_tests.pipelines.building import PATIENT, WITHOUT_SHRINKING, Row, Stream, counted, differences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = payments.pipeline
VELOCITY, HOURLY = PIPELINE.derived
T0 = datetime.fromisoformat("2017-02-05T20:00:00Z")
REST = "0.43,0.0,0.0,5"
LINES = {
    f"2261,309,31625220889,940996,1.0,3.86,{REST},2017-02-05 20:06:53": (2261, 309, 31625220889, 940996, 1, 386, 413),
    f"1,2,4.0128e+10,3,0.0,4.440892e-16,{REST},2017-02-05 20:00:00": (1, 2, 40128000000, 3, 0, 0, 0),
    f"1,2,3,4,1.0,3.865,{REST},2017-02-05 20:00:00": (1, 2, 3, 4, 1, 387, 0),
    f"1.5,2,3,4,1.0,1.1,{REST},2017-02-30 20:00:00": (None, 2, 3, 4, 1, 110, None),
    f"x,,3,4,NaN,NaN,{REST},yesterday": (None, None, 3, 4, None, None, None),
    f"1,2,3,4,1.0,1.1,{REST}": (None,) * 7,
    f"1,2,3,4,1.0,1.1,{REST},2017-02-05 20:00:00,more": (None,) * 7,
    "": (None,) * 7,
}


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def row_of(line: Line) -> Row:
    """The line as a row of raw/payments."""
    return (hour_of(line.at), line.at, *line[:-1])


def test_unreadable_values_of_a_line_become_null(spark: "SparkSession") -> None:
    frame = spark.createDataFrame([(line,) for line in LINES], "line string").coalesce(1)
    parsed = payments.parse(frame).withColumn("s", F.unix_seconds("event_time") - int(T0.timestamp()))
    names = ("household_id", "store_id", "basket_id", "product_id", "quantity", "sales_cents", "s")
    assert {row["line"]: tuple(row[name] for name in names) for row in parsed.collect()} == LINES


@pytest.mark.whole
def test_the_reference_reads_the_shipped_file_and_counts_its_bad_lines() -> None:
    lines, bad = read_lines(payments.LINES_FILE)
    assert (len(lines), len(set(lines)), bad) == (75_000, 75_000, [])
    assert all(line.at in payments.HOURS for line in lines)
    assert len({(line.basket, line.product) for line in lines}) == len(lines)
    assert len({line.basket for line in lines}) == len({(line.household, line.store, line.basket, line.at) for line in lines})
    rows = payments_of(lines)
    assert len(rows) == 47_243
    assert Counter(payment.payments_trailing for payment in rows) == {1: 46_422, 2: 802, 3: 18, 4: 1}
    assert sum(payment.cents for payment in rows) == sum(line.cents for line in lines)


def test_the_reference_sums_up_hours_by_hand() -> None:
    lines = [
        Line(1, 7, 10, 1, 1, 100, at(0)),
        Line(1, 7, 10, 2, 1, 50, at(0)),
        Line(1, 7, 10, 2, 1, 50, at(0)),  # delivered twice
        Line(1, 8, 11, 1, 1, 5, at(3600)),  # an hour later: the first is out
        Line(1, 8, 12, 1, 1, 7, at(3600)),  # a tie: each sees the other
        Line(2, 8, 13, 1, 1, 1, at(3599.999999)),
        Line(2, 8, 14, 1, 1, 2, at(7199.999998)),  # the last microsecond at which the one before is in
    ]
    assert sorted(velocity(lines)) == [
        (T0, 1, at(0), 7, 10, 2, 150, 1, 150),
        (T0, 2, at(3599.999999), 8, 13, 1, 1, 1, 1),
        (at(3600), 1, at(3600), 8, 11, 1, 5, 2, 12),
        (at(3600), 1, at(3600), 8, 12, 1, 7, 2, 12),
        (at(3600), 2, at(7199.999998), 8, 14, 1, 2, 2, 3),
    ]
    assert list(payments_hourly(lines)) == [(T0, 2, 151, 2, 0, 1, 150), (at(3600), 3, 14, 2, 3, 2, 12)]


@pytest.mark.whole
def test_a_year_of_real_baskets_gives_the_payments_of_the_reference(spark: "SparkSession") -> None:
    lines, _ = read_lines(payments.LINES_FILE)
    assert isinstance(PIPELINE.source, ArchiveFile)
    read = payments.parse(PIPELINE.source.lines(spark, [])).withColumn("ingestion_hour", F.date_trunc("hour", "event_time"))
    landed = read.select(*PIPELINE.raw.table.column_names)
    assert counted(landed, PIPELINE.raw.table) == Counter(row_of(line) for line in lines)
    velocity_rows = payments.build_velocity(landed).persist()
    try:
        assert counted(velocity_rows, VELOCITY.table) == Counter(velocity(lines))
        hourly = payments.build_payments_hourly(velocity_rows)
        assert counted(hourly.select(*HOURLY.table.column_names), HOURLY.table) == Counter(payments_hourly(lines))
    finally:
        velocity_rows.unpersist()


HOURS = HourRange(T0, T0 + 5 * HOUR)
BOUNDARIES = (0, 1, 1800, 3599, 3599.999999, 3600, 3600.000001, 7199, 7200, 10800, 14399.5, 17999.999999)
SECONDS = st.sampled_from(BOUNDARIES) | st.integers(0, 5 * 3600 - 1)
LINE = st.builds(
    lambda household, store, basket, product, cents, seconds: Line(household, store, basket, product, 1, cents, at(seconds)),
    st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.integers(1, 2), st.integers(0, 500), SECONDS,
)  # fmt: skip


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Lines in any order, some delivered again, and where to cut their hours."""
    lines = draw(st.lists(LINE, min_size=1, max_size=12))
    again = draw(st.lists(st.sampled_from(lines), max_size=3))
    return draw(st.permutations(lines + again)), draw(st.lists(st.integers(1, 4), max_size=4))


@settings(max_examples=4, deadline=None, phases=WITHOUT_SHRINKING, suppress_health_check=PATIENT)
@given(st.lists(streams(), min_size=15, max_size=40))
def test_every_chunking_of_random_lines_gives_the_payments_of_the_reference(spark: "SparkSession", drawn: list[Stream]) -> None:
    differing = differences(
        spark, PIPELINE, "velocity", drawn, hours=HOURS, key="household_id", row_of=row_of, reference=velocity
    )
    assert differing == []


def test_a_microsecond_less_of_lookback_loses_a_payment(spark: "SparkSession") -> None:
    lines = [
        Line(1, 1, 1, 1, 1, 5, at(1)),
        Line(1, 1, 2, 1, 1, 7, at(3601 - 1e-6)),
        Line(2, 1, 3, 1, 1, 5, at(1e-6)),
        Line(2, 1, 4, 1, 1, 7, at(3600)),
    ]

    def lost(lookback: timedelta) -> list[int]:
        window = Window(lookback=lookback)
        differing = differences(
            spark,
            PIPELINE,
            "velocity",
            [(lines, [1])],
            hours=HOURS,
            key="household_id",
            row_of=row_of,
            reference=velocity,
            window=window,
        )
        return [row[4] for difference in differing for row in difference.missing]

    assert lost(payments.SPAN - timedelta(microseconds=1)) == []  # the hour is open at its beginning, and ours is closed
    assert lost(payments.SPAN - timedelta(microseconds=2)) == [4]
