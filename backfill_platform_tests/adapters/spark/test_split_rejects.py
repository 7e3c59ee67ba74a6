"""Rows split by their marks: what one action observes of them, and what is computed again."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from backfill_platform.adapters.spark import split_rejects
from backfill_platform.adapters.spark.checks import FAILED
from backfill_platform.adapters.spark.split_rejects import EPOCH, PAYLOAD, RejectSplit
from backfill_platform_tests.events import hour

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, Observation, SparkSession

Row = tuple["datetime | None", int, list[str]]
GOOD: list[Row] = [(hour(0), 1, []), (hour(0), 2, []), (hour(2), 3, [])]
BAD: list[Row] = [(hour(0), 4, ["odd"]), (hour(2), 5, ["odd", "late"]), (hour(2), 5, ["odd", "late"])]


def frame(spark: "SparkSession", rows: list[Row]) -> "DataFrame":
    return spark.createDataFrame(rows, f"hour timestamp, n long, {FAILED} array<string>").repartition(3)


def split(spark: "SparkSession", rows: list[Row], **limits: int) -> RejectSplit:
    return RejectSplit(frame(spark, rows), "hour", F.repeat(F.lit('é,"'), F.col("n").cast("int")), **limits)


def rejected(parts: RejectSplit) -> Counter[tuple[int, tuple[str, ...], str]]:
    rejects = parts.rejects()
    rows = [] if rejects is None else rejects.collect()
    return Counter((row[EPOCH], tuple(row[FAILED]), row[PAYLOAD]) for row in rows)


def expected(rows: list[Row]) -> Counter[tuple[int, tuple[str, ...], str]]:
    return Counter((int(at.timestamp()), tuple(failed), 'é,"' * n) for at, n, failed in rows if at is not None)


# Three rejects of twelve, fifteen and fifteen letters: returned by the action, too many of them, some or all too large.
@pytest.mark.parametrize(("most", "letters", "computed_again"), [(3, 15, False), (2, 15, True), (3, 14, True), (3, 1, True)])
def test_one_action_counts_all_rows_and_returns_a_few_rejects(
    spark: "SparkSession", most: int, letters: int, computed_again: bool
) -> None:
    with split(spark, GOOD + BAD, most=most, letters=letters) as parts:
        assert sorted(row["n"] for row in parts.good.collect()) == [1, 2, 3]
        assert parts.good.columns == ["hour", "n", FAILED]
        assert parts.rows == 6
        assert rejected(parts) == expected(BAD)
        rejects = parts.rejects()
        assert rejects is not None
        assert rejects.is_cached == computed_again
    assert not rejects.is_cached


def test_rows_observed_twice_are_counted_and_computed_again(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(observation: "Observation") -> dict[str, Any]:
        seen = observation.get
        return {name: metric * 2 for name, metric in seen.items()}

    monkeypatch.setattr(split_rejects, "observed", twice)
    with split(spark, GOOD + BAD) as parts:
        assert parts.good.count() == 3
        assert (parts.rows, rejected(parts)) == (12, expected(BAD * 2))
        assert parts.count_anew() == ({hour(0): 3, hour(2): 3}, 0)
        assert rejected(parts) == expected(BAD)


def test_rows_without_an_hour_are_counted_and_are_not_good(spark: "SparkSession") -> None:
    with split(spark, [*GOOD, (None, 6, [])]) as parts:
        assert sorted(row["n"] for row in parts.good.collect()) == [1, 2, 3]
        assert parts.rows == 4
        assert parts.rejects() is None
        assert parts.count_anew() == ({hour(0): 2, hour(2): 1}, 1)


def test_rows_that_spark_did_not_need_to_read_are_counted_again(spark: "SparkSession") -> None:
    with split(spark, GOOD + BAD) as parts:
        nobody = spark.createDataFrame([], "n long")
        joined = parts.good.join(nobody, "n").persist()
        assert joined.agg(F.count("*")).collect()[0][0] == 0
        joined.unpersist()
        assert parts.rows is None
        assert rejected(parts) == expected(BAD)
        assert parts.count_anew() == ({hour(0): 3, hour(2): 3}, 0)


def test_an_empty_frame_has_no_hours_and_no_rejects(spark: "SparkSession") -> None:
    with split(spark, []) as parts:
        assert parts.good.collect() == []
        assert not parts.rows
        assert parts.count_anew() == ({}, 0)
        assert rejected(parts) == Counter()
