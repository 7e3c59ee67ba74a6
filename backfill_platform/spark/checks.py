"""The checks of a pandera schema, compiled into Spark columns and counted in one pass.

pandera's own PySpark backend starts one Spark action per check, does not raise and keeps no failing row. Here each check of the
schema becomes one boolean column: rows that fail any are set aside with the names of what failed, and all counts come from one
aggregation. A check that cannot be compiled is refused when the pipeline is declared: nothing is silently unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FAILED = "_failed"
ROWS_VALID = "rows_valid"
ROWS_ADD_UP = "rows_add_up"
AUDIT_CHECKS = (ROWS_VALID, ROWS_ADD_UP)  # the checks that every table has


@dataclass(frozen=True)
class RowRule:
    """A rule that every row must meet; rows that do not (or for which it is NULL) go to quarantine."""

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
class Rules:
    """All checks of a table; row rules include those compiled from its schema."""

    rows: tuple[RowRule, ...]
    hours: tuple[HourRule, ...]
    columns: Mapping[str, str]


def rules_of(schema: Any, own: Iterable[RowRule | HourRule] = ()) -> Rules:
    """The rules of a pandera `DataFrameModel` and the table's own. Raises SpecError for a check that cannot be compiled."""
    container = schema.to_schema()
    if container.checks or container.unique:
        raise SpecError(f"{schema.__name__}: declare rules over several columns as RowRule or HourRule of the table")
    row_rules: list[RowRule] = []
    for name, column in container.columns.items():
        if not column.nullable:
            row_rules.append(RowRule(f"{name}: missing", _is_not_null(name), f"{name} must have a value"))
        for check in column.checks:
            compiled = _COMPILERS.get(check.name)
            unknown = {key for key, value in check.statistics.items() if value is not None} - _STATISTICS
            if compiled is None or unknown or check.raise_warning or not check.ignore_na:
                raise SpecError(
                    f"{schema.__name__}.{name}: the check '{check.error or check.name}' cannot be run on Spark in one pass; "
                    f"use one of "
                    f"{', '.join(sorted(_COMPILERS))}, or a RowRule of the table"
                )
            is_float = column.dtype.type.simpleString() in ("double", "float")
            holds = _allowing_null(name, compiled, dict(check.statistics), is_float)
            row_rules.append(RowRule(f"{name}: {check.error or check.name}", holds, check.description or ""))
    own = tuple(own)
    row_rules += [rule for rule in own if isinstance(rule, RowRule)]
    hour_rules = tuple(rule for rule in own if isinstance(rule, HourRule))
    types = {name: column.dtype.type.simpleString() for name, column in container.columns.items()}
    return Rules(tuple(row_rules), hour_rules, types)


def check_name(rule: str) -> str:
    """A rule's name as Dagster takes it."""
    return "".join(letter if letter.isalnum() else "_" for letter in rule)


def require_columns(frame: DataFrame, rules: Rules, table: str) -> DataFrame:
    """The frame with exactly the declared columns, in declared order.

    Raises SpecError naming every missing, extra or wrongly typed column: a transform that returns something else than its
    schema says is a mistake in the pipeline, not in the data.
    """
    found = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    problems = [f"'{name}' is missing" for name in rules.columns if name not in found]
    problems += [f"'{name}' is not declared" for name in found if name not in rules.columns]
    problems += [
        f"'{name}' is {found[name]}, declared {declared}"
        for name, declared in rules.columns.items()
        if name in found and found[name] != declared
    ]
    if problems:
        raise SpecError(f"{table}: the columns differ from its schema: {'; '.join(problems)}")
    return frame.select(*rules.columns)


def mark_failures(frame: DataFrame, rules: Rules) -> DataFrame:
    """The frame with `_failed`: the names of the row rules that the row does not meet, empty for a good row."""
    marks = [F.when(~F.coalesce(rule.holds(), F.lit(False)), F.lit(rule.name)) for rule in rules.rows]
    failed = F.array_compact(F.array(*marks)) if marks else F.array().cast("array<string>")
    return frame.withColumn(FAILED, failed)


def is_good() -> Column:
    """Whether a marked row failed nothing."""
    verdict: Column = F.size(FAILED) == 0
    return verdict


def _is_not_null(name: str) -> Callable[[], Column]:
    return lambda: F.col(name).isNotNull()


def _allowing_null(
    name: str, compiled: Callable[[Column, Mapping[str, Any]], Column], statistics: Mapping[str, Any], is_float: bool
) -> Callable[[], Column]:
    # As in pandera, a check says nothing about a missing value; `nullable` does. NaN is no number: Spark finds it above all.
    def holds() -> Column:
        verdict: Column = compiled(F.col(name), statistics)
        return F.col(name).isNull() | (verdict & ~F.isnan(name) if is_float else verdict)

    return holds


def _in_range(column: Column, s: Mapping[str, Any]) -> Column:
    low: Column = column >= s["min_value"] if s.get("include_min", True) else column > s["min_value"]
    high: Column = column <= s["max_value"] if s.get("include_max", True) else column < s["max_value"]
    return low & high


def _length(column: Column, s: Mapping[str, Any]) -> Column:
    low = F.lit(True) if s.get("min_value") is None else F.length(column) >= s["min_value"]
    return low if s.get("max_value") is None else low & (F.length(column) <= s["max_value"])


_COMPILERS: Mapping[str, Callable[[Column, Mapping[str, Any]], Column]] = {
    "equal_to": lambda c, s: c == s["value"],
    "not_equal_to": lambda c, s: c != s["value"],
    "greater_than": lambda c, s: c > s["min_value"],
    "greater_than_or_equal_to": lambda c, s: c >= s["min_value"],
    "less_than": lambda c, s: c < s["max_value"],
    "less_than_or_equal_to": lambda c, s: c <= s["max_value"],
    "in_range": _in_range,
    "isin": lambda c, s: c.isin(*s["allowed_values"]),
    "notin": lambda c, s: ~c.isin(*s["forbidden_values"]),
    "str_matches": lambda c, s: c.rlike(f"^(?:{_pattern(s['pattern'])})"),
    "str_contains": lambda c, s: c.rlike(_pattern(s["pattern"])),
    "str_startswith": lambda c, s: c.startswith(s["string"]),
    "str_endswith": lambda c, s: c.endswith(s["string"]),
    "str_length": _length,
}


# What the compiled checks read. A check that is told anything else would be checked in part.
_STATISTICS = frozenset(
    {"value", "min_value", "max_value", "include_min", "include_max", "allowed_values", "forbidden_values", "pattern", "string"}
)


def _pattern(pattern: Any) -> str:
    return str(getattr(pattern, "pattern", pattern))
