"""The checks of a table, as Spark columns that one pass evaluates.

Each row rule is a boolean column: rows that fail any of them are set aside with the names of these rules, and all counts come
from one aggregation. Hour rules are boolean aggregates. A check that cannot be a column is a `PanderaRule`, which costs an
extra pass over every hour. `schema_rules` makes all three from a pandera schema; no check is left out silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from pandera.config import ValidationDepth, config_context
from pyspark.sql import functions as F

from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FAILED = "_failed"
ROWS_VALID = "rows_valid"
ROWS_ADD_UP = "rows_add_up"
EVENTS_WITHIN_CAP = "events_within_cap"
AUDIT_CHECKS = (ROWS_VALID, ROWS_ADD_UP)  # the checks that every table has
SESSION_CHECKS = (EVENTS_WITHIN_CAP,)  # and those of tables that are read until sessions are closed


@dataclass(frozen=True)
class RowRule:
    """A rule that every row must meet; rows for which it is false or NULL go to quarantine."""

    name: str
    holds: Callable[[], Column]
    description: str = ""


@dataclass(frozen=True)
class HourRule:
    """A rule that an hour as a whole must meet: a boolean aggregate over its good rows. It blocks the hour when it fails."""

    name: str
    holds: Callable[[], Column]
    description: str = ""


@dataclass(frozen=True)
class PanderaRule:
    """A check that only pandera can run: one extra pass over the good rows of every hour. It blocks the hour when it fails."""

    name: str
    schema: Any  # a DataFrameSchema with this check alone, so that its verdict is this check's
    description: str = ""

    def find_error(self, frame: DataFrame) -> str:
        """The errors that pandera reports for the rows, empty for none. An unclear result counts as an error.

        Raises SpecError when pandera cannot run the check.
        """
        # The environment can switch pandera off, or reduce it to column types: here all of it runs.
        depth = ValidationDepth.SCHEMA_AND_DATA
        with config_context(validation_enabled=True, validation_depth=depth, use_narwhals_backend=False):
            try:
                errors = self.schema.validate(frame).pandera.errors
            except TypeError as error:  # pandera does not catch these: the check cannot take its argument
                hint = "annotate a function of a column with `-> Column`"
                raise SpecError(f"pandera cannot run the check '{self.name}': {error}; {hint}") from error
        return "" if errors == {} else str(errors or "pandera gave no verdict")


@dataclass(frozen=True)
class Rules:
    """All checks of a table: those of its schema and its own."""

    rows: tuple[RowRule, ...]
    hours: tuple[HourRule, ...]
    by_pandera: tuple[PanderaRule, ...]
    columns: Mapping[str, str]

    @property
    def blocking(self) -> tuple[HourRule | PanderaRule, ...]:
        """The rules that an hour must meet to be written."""
        return (*self.hours, *self.by_pandera)


def check_name(rule: str) -> str:
    """A rule's name with underscores in place of characters that Dagster does not accept."""
    return "".join(letter if letter.isalnum() else "_" for letter in rule)


def require_columns(frame: DataFrame, rules: Rules, table: str) -> DataFrame:
    """The frame with exactly the declared columns, in declared order.

    Raises SpecError naming every missing, extra or wrongly typed column: a transform that does not return its schema is a
    mistake in the pipeline, not in the data.
    """
    actual = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    problems = [f"'{name}' is missing" for name in rules.columns if name not in actual]
    problems += [f"'{name}' is not declared" for name in actual if name not in rules.columns]
    problems += [
        f"'{name}' is {actual[name]}, declared {declared}"
        for name, declared in rules.columns.items()
        if name in actual and actual[name] != declared
    ]
    if problems:
        raise SpecError(f"{table}: the columns differ from its schema: {'; '.join(problems)}")
    return frame.select(*rules.columns)


def mark_failures(frame: DataFrame, rules: Rules) -> DataFrame:
    """The frame with `_failed`: the names of the row rules that the row does not meet, empty for a good row."""
    empty = F.array().cast("array<string>")
    if not rules.rows:
        return frame.withColumn(FAILED, empty)
    verdicts = [rule.holds() for rule in rules.rows]
    # A NULL verdict falls into `otherwise`, both times: a rule that is not known to hold has failed. The names of failed rules
    # are only put together for rows that failed one, which halves the time.
    marks = [F.when(holds, F.lit(None)).otherwise(F.lit(rule.name)) for rule, holds in zip(rules.rows, verdicts, strict=True)]
    failed = F.when(reduce(and_, verdicts), empty).otherwise(F.array_compact(F.array(*marks)))
    return frame.withColumn(FAILED, failed)


def is_good() -> Column:
    """Whether a row marked by `mark_failures` failed no rule."""
    verdict: Column = F.size(FAILED) == 0
    return verdict
