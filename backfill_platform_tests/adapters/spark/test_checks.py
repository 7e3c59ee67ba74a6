from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as T
import pytest
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.checks import FAILED, HourRule, RowRule, is_good, mark_failures, require_columns
from backfill_platform.adapters.spark.schema_rules import rules_of
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Everything(DataFrameModel):
    """One column per check that pandera has for PySpark."""

    equal: T.LongType = Field(eq=1)
    unequal: T.LongType = Field(ne=1)
    above: T.LongType = Field(gt=1)
    at_least: T.LongType = Field(ge=1)
    below: T.LongType = Field(lt=1)
    at_most: T.LongType = Field(le=1)
    between: T.LongType = Field(in_range={"min_value": 1, "max_value": 3, "include_max": False})
    one_of: T.StringType = Field(isin=["a", "b"])
    none_of: T.StringType = Field(notin=["a", "b"])
    matches: T.StringType = Field(str_matches=r"a\d")
    contains: T.StringType = Field(str_contains=r"\d")
    starts: T.StringType = Field(str_startswith="a")
    ends: T.StringType = Field(str_endswith="z")
    length: T.StringType = Field(str_length={"min_value": 1, "max_value": 2})
    exactly: T.StringType = Field(str_length={"exact_value": 2})
    optional: T.LongType = Field(nullable=True, ge=1)


GOOD: dict[str, Any] = {
    "equal": 1, "unequal": 2, "above": 2, "at_least": 1, "below": 0, "at_most": 1, "between": 1, "one_of": "b", "none_of": "c",
    "matches": "a1x", "contains": "x1", "starts": "ab", "ends": "yz", "length": "xy", "exactly": "xy", "optional": None,
}  # fmt: skip
BAD: dict[str, Any] = {
    "equal": 2, "unequal": 1, "above": 1, "at_least": 0, "below": 1, "at_most": 2, "between": 3, "one_of": "c", "none_of": "a",
    "matches": "xa1", "contains": "x", "starts": "ba", "ends": "zy", "length": "xyz", "exactly": "x", "optional": 0,
}  # fmt: skip


def failures(spark: "SparkSession", rows: list[dict[str, Any]]) -> list[list[str]]:
    types = ", ".join(f"{name} {'string' if isinstance(BAD[name], str) else 'long'}" for name in GOOD)
    frame = spark.createDataFrame([tuple(row[name] for name in GOOD) for row in rows], types).coalesce(1)
    return [row[FAILED] for row in mark_failures(frame, rules_of(Everything)).collect()]


def test_every_check_of_the_schema_is_enforced(spark: "SparkSession") -> None:
    rows = [GOOD, *({**GOOD, name: bad} for name, bad in BAD.items()), *({**GOOD, name: None} for name in GOOD)]
    good, *rest = failures(spark, rows)
    broken, missing = rest[: len(BAD)], rest[len(BAD) :]
    assert good == []
    for name, failed in zip(BAD, broken, strict=True):
        assert len(failed) == 1, (name, failed)
        assert failed[0].startswith(f"{name}: "), (name, failed)
    assert missing == [[f"{name}: missing"] if name != "optional" else [] for name in GOOD]


def test_a_row_is_judged_by_all_rules_and_a_null_verdict_is_a_failure(spark: "SparkSession") -> None:
    class Two(DataFrameModel):
        a: T.LongType = Field(ge=1)
        b: T.LongType = Field(nullable=True)

    rules = rules_of(Two, [RowRule("a below b", lambda: F.col("a") < F.col("b"))])
    frame = spark.createDataFrame([(1, 2), (0, 0), (1, None)], "a long, b long").coalesce(1)
    marked = mark_failures(frame, rules)
    assert [row[FAILED] for row in marked.collect()] == [
        [],
        ["a: greater_than_or_equal_to(1)", "a below b"],
        ["a below b"],
    ]
    assert marked.where(is_good()).count() == 1


def test_nan_meets_no_bound(spark: "SparkSession") -> None:
    class Share(DataFrameModel):
        a: T.DoubleType = Field(ge=0)

    frame = spark.createDataFrame([(1.0,), (float("nan"),), (float("inf"),)], "a double").coalesce(1)
    assert [bool(row[FAILED]) for row in mark_failures(frame, rules_of(Share)).collect()] == [False, True, False]


def test_a_table_without_any_rule_marks_nothing(spark: "SparkSession") -> None:
    class Free(DataFrameModel):
        a: T.LongType = Field(nullable=True)

    assert [row[FAILED] for row in mark_failures(spark.range(1).select(F.col("id").alias("a")), rules_of(Free)).collect()] == [
        []
    ]


def test_hour_rules_are_kept_apart() -> None:
    rule = HourRule("some rows", lambda: F.count("*") > 0)
    rules = rules_of(Everything, [rule])
    assert rules.hours == (rule,)
    assert all(not isinstance(row_rule, HourRule) for row_rule in rules.rows)


def test_a_transform_must_return_the_declared_columns(spark: "SparkSession") -> None:
    class Declared(DataFrameModel):
        at: T.TimestampType = Field()
        a: T.LongType = Field()

    rules = rules_of(Declared)
    right = spark.createDataFrame([(1, datetime(1998, 4, 30, tzinfo=UTC))], "a long, at timestamp")
    assert require_columns(right, rules, "transformed/t").columns == ["at", "a"]
    wrong = right.select(F.col("a").cast("string"), F.lit(1).alias("more"))
    with pytest.raises(SpecError, match="'at' is missing; 'more' is not declared; 'a' is string, declared bigint"):
        require_columns(wrong, rules, "transformed/t")
