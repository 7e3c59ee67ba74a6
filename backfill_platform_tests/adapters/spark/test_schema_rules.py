"""Checks that users write themselves: compiled into the pass where that is possible, else run by pandera, never left out."""

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as T
import pytest
from pandera.api.extensions import register_check_method
from pandera.config import ValidationDepth, config_context
from pandera.pyspark import DataFrameModel, Field, check, dataframe_check
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.checks import FAILED, mark_failures
from backfill_platform.adapters.spark.schema_rules import rules_of
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@register_check_method(statistics=["by"])
def divisible(column: Column, *, by: int) -> Column:
    return column % by == 0


@register_check_method
def at_most_rows(checked: Any, *, rows: int) -> bool:
    """As pandera's guide writes them: a frame and the name of a column in, a verdict out."""
    return bool(checked.dataframe.select(checked.column_name).count() <= rows)


class Own(DataFrameModel):
    """Checks of every kind that become columns."""

    even: T.LongType = Field(nullable=True)
    word: T.StringType = Field(nullable=True)
    at: T.TimestampType = Field(nullable=True)

    @check("even", "at", ignore_na=False)
    def _present(cls, column: Column) -> Column:
        return column.isNotNull()

    @check("even")
    def _even(cls, column: "Column") -> "Column":
        """An even number."""
        return column % 2 == 0

    @check("word", element_wise=True)
    def _palindrome(cls, word: str) -> bool:
        return word == word[::-1]

    @check("at", element_wise=True)
    def _on_the_hour_in_utc(cls, at: datetime) -> bool:
        return at.tzinfo is UTC and at.hour == 22 and at.minute == 0


def marked(spark: "SparkSession", schema: type, rows: list[tuple[Any, ...]], types: str) -> list[list[str]]:
    frame = spark.createDataFrame(rows, types).coalesce(1)
    return [row[FAILED] for row in mark_failures(frame, rules_of(schema)).collect()]


@pytest.mark.whole
def test_custom_checks_that_can_be_columns_cost_no_extra_pass(spark: "SparkSession") -> None:
    rules = rules_of(Own)
    assert rules.by_pandera == ()
    at = datetime(1998, 4, 30, 22, tzinfo=UTC)
    rows = [(2, "abba", at), (3, "ab", at.replace(minute=1)), (None, None, at), (2, "a", None)]
    assert marked(spark, Own, rows, "even long, word string, at timestamp") == [
        [],
        ["even: _even", "word: _palindrome", "at: _on_the_hour_in_utc"],
        ["even: _present"],
        ["at: _present"],
    ]
    assert {rule.name: rule.description for rule in rules.rows}["even: _even"] == "An even number."


def test_registered_checks_are_compiled_when_they_are_about_a_column(spark: "SparkSession") -> None:
    class Registered(DataFrameModel):
        a: T.LongType = Field(divisible=3)

    assert [rule.name for rule in rules_of(Registered).rows] == ["a: missing", "a: divisible(by=3)"]
    assert marked(spark, Registered, [(3,), (4,)], "a long") == [[], ["a: divisible(by=3)"]]


class ByPandera(DataFrameModel):
    """Checks that only pandera can run."""

    a: T.LongType = Field(at_most_rows={"rows": 2}, nullable=True)

    @check("a")
    def _sums_up(cls, frame: DataFrame) -> bool:
        return bool(frame.agg(F.sum("a") == 3).first()[0])  # type: ignore[index]

    @dataframe_check
    def _no_failure_of_its_own(cls, frame: DataFrame) -> bool:  # type: ignore[misc] # pandera makes it a class method
        """No frame is too hard."""
        if frame.where("a = 13").count():
            raise ValueError("too hard")
        return True


NAMES = ["a: at_most_rows", "a: _sums_up", "_no_failure_of_its_own"]


def verdicts(spark: "SparkSession", schema: type, values: list[int | None]) -> list[str]:
    frame = spark.createDataFrame([(value,) for value in values], "a long")
    return [rule.name for rule in rules_of(schema).by_pandera if rule.find_error(frame)]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("values", "failed"),
    [([1, 2], []), ([1, 2, None], [NAMES[0]]), ([1, 1], [NAMES[1]]), ([13, -10], [NAMES[2]]), ([0, 0, 13], NAMES)],
)
def test_checks_that_cannot_be_columns_are_run_by_pandera_with_a_verdict_each(
    spark: "SparkSession", values: list[int | None], failed: list[str]
) -> None:
    rules = rules_of(ByPandera)
    assert [rule.name for rule in rules.by_pandera] == NAMES
    assert rules.rows == ()
    assert verdicts(spark, ByPandera, values) == failed
    assert rules.by_pandera[-1].description == "No frame is too hard (checked by pandera, in an extra pass over the hour)"


def test_pandera_cannot_be_switched_off_from_outside(spark: "SparkSession") -> None:
    switches: list[dict[str, Any]] = [{"validation_enabled": False}, {"validation_depth": ValidationDepth.SCHEMA_ONLY}]
    for switch in switches:
        with config_context(**switch):
            assert verdicts(spark, ByPandera, [2]) == [NAMES[1]]


def test_a_missing_verdict_counts_as_a_failure(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    rule = rules_of(ByPandera).by_pandera[0]
    monkeypatch.setattr(rule.schema, "validate", lambda frame: frame)
    assert rule.find_error(spark.range(1)) == "pandera gave no verdict"


def test_a_column_check_without_its_annotation_is_an_error_and_not_a_pass(spark: "SparkSession") -> None:
    class Unannotated(DataFrameModel):
        a: T.LongType = Field()

        @check("a")
        def _positive(cls, column):  # type: ignore[no-untyped-def]
            return column > 0

    with pytest.raises(SpecError, match="annotate a function of a column with `-> Column`"):
        verdicts(spark, Unannotated, [1])


def test_a_check_that_is_annotated_and_returns_no_column_is_an_error(spark: "SparkSession") -> None:
    class Wrong(DataFrameModel):
        a: T.LongType = Field()

        @check("a")
        def _positive(cls, column: Column) -> Column:
            return True  # type: ignore[return-value]

    with pytest.raises(SpecError, match="returned True"):
        marked(spark, Wrong, [(1,)], "a long")


def test_columns_that_are_unique_together_are_a_rule_of_the_hour(spark: "SparkSession") -> None:
    class UniqueTogether(DataFrameModel):
        a: T.LongType = Field(nullable=True)
        b: T.LongType = Field(nullable=True)

        class Config:
            unique = ["a", "b"]

    (rule,) = rules_of(UniqueTogether).hours
    assert rule.name == "unique a, b"
    for rows, holds in (([(1, 1), (1, 2), (None, 1)], True), ([(1, None), (1, None)], False)):
        frame = spark.createDataFrame(rows, "a long, b long")
        assert frame.agg(rule.holds().alias("holds")).collect()[0]["holds"] is holds


class OnlyAWarning(DataFrameModel):
    """A check that would not enforce anything."""

    a: T.LongType = Field(ge=0, raise_warning=True)


class Grouped(DataFrameModel):
    """A check that pandera's PySpark backend would not group."""

    a: T.LongType = Field()

    @check("a", groupby="a")
    def _any(cls, groups: Any) -> bool:
        return True


class RowsOfAFrame(DataFrameModel):
    """A rule over several columns, which pandera has no verdict on by row."""

    a: T.LongType = Field()

    @dataframe_check
    def _positive(cls, frame: DataFrame) -> Column:  # type: ignore[misc] # pandera makes it a class method
        return frame["a"] > 0


class Flags(DataFrameModel):
    """A pattern whose flags Spark would not see."""

    a: T.StringType = Field(str_matches=re.compile("a", re.IGNORECASE))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "says"),
    [(OnlyAWarning, "enforces nothing"), (Grouped, "HourRule"), (RowsOfAFrame, "RowRule"), (Flags, r"\(\?i\)")],
)
def test_checks_that_neither_spark_nor_pandera_can_enforce_are_refused(schema: type, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        rules_of(schema)


def test_rules_of_one_name_are_refused() -> None:
    class Twice(DataFrameModel):
        a: T.LongType = Field(ge=0)

    clash = rules_of(Twice).rows[1]
    with pytest.raises(SpecError, match="several checks are named a: greater_than_or_equal_to"):
        rules_of(Twice, [clash])
