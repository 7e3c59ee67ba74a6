"""From a pandera schema to the rules of a table: compiled into the one pass where that is possible, else run by pandera.

Compiled: every built-in check of values, `nullable`, `unique` of the schema (within the hour), custom column checks that are
annotated `-> Column` (they get the column), and element-wise ones (a Python call for every row, in the same pass). Anything
else is a verdict about all rows, for which pandera makes an extra pass over each hour.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pandera.pyspark as pa
from pandera.api.base.model_components import BaseCheckInfo
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.checks import HourRule, PanderaRule, RowRule, Rules
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import Column

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rules_of(schema: Any, own: Iterable[RowRule | HourRule] = ()) -> Rules:
    """The rules of a pandera `DataFrameModel` and the table's own.

    Raises SpecError for a check that neither a column nor pandera can enforce, and for names used twice.
    """
    container = schema.to_schema()
    rules: list[RowRule | HourRule | PanderaRule] = []
    if container.unique:
        rules.append(_unique([container.unique] if isinstance(container.unique, str) else list(container.unique)))
    for name, column in container.columns.items():
        rules += _column_rules(schema.__name__, name, column)
    rules += [_frame_rule(schema.__name__, check) for check in container.checks]
    rules += own
    names = [rule.name for rule in rules]
    if clash := sorted({name for name in names if names.count(name) > 1}):
        raise SpecError(
            f"{schema.__name__}: several checks are named {', '.join(clash)}; give them an error or name of their own"
        )
    return Rules(
        rows=tuple(rule for rule in rules if isinstance(rule, RowRule)),
        hours=tuple(rule for rule in rules if isinstance(rule, HourRule)),
        by_pandera=tuple(rule for rule in rules if isinstance(rule, PanderaRule)),
        columns={name: column.dtype.type.simpleString() for name, column in container.columns.items()},
    )


def _column_rules(schema_name: str, name: str, column: Any) -> Iterator[RowRule | PanderaRule]:
    if not column.nullable:
        yield RowRule(f"{name}: missing", _is_not_null(name), f"{name} must have a value")
    for check in column.checks:
        rule_name = f"{name}: {_name_of(check)}"
        _refuse_half_checks(check, f"{schema_name}.{rule_name}")
        if (holds := _compile(check, name, column)) is not None:
            yield RowRule(rule_name, holds, check.description or "")
        else:
            # The rule for `nullable`, above, judges missing values.
            alone = pa.DataFrameSchema({name: pa.Column(column.dtype, checks=[check], nullable=True)})
            yield _pandera_rule(rule_name, alone, check)


def _frame_rule(schema_name: str, check: Any) -> PanderaRule:
    _refuse_half_checks(check, f"{schema_name}: {_name_of(check)}")
    if check.element_wise or _returns_column(check):
        raise SpecError(
            f"{schema_name}: the check '{_name_of(check)}' of the whole frame can only return a bool; declare a rule "
            "over several columns as RowRule of the table, and one over an hour as HourRule"
        )
    return _pandera_rule(_name_of(check), pa.DataFrameSchema(checks=[check]), check)


def _name_of(check: Any) -> str:
    return str(check.error or check.name)


def _refuse_half_checks(check: Any, name: str) -> None:
    """Refuse what pandera's PySpark backend accepts silently and does not enforce."""
    pattern = check.statistics.get("pattern")
    if isinstance(pattern, re.Pattern) and pattern.flags & ~re.UNICODE:
        raise SpecError(f"{name}: the flags of a pattern do not reach Spark; write them into it, as in (?i)")
    if check.raise_warning:
        raise SpecError(f"{name}: a check that only warns enforces nothing; drop raise_warning, or drop the check")
    if check.groupby is not None:
        raise SpecError(f"{name}: pandera does not group on PySpark; declare an HourRule of the table")


def _pandera_rule(name: str, alone: Any, check: Any) -> PanderaRule:
    text = (check.description or name).strip().rstrip(".")
    return PanderaRule(name, alone, f"{text} (checked by pandera, in an extra pass over the hour)")


def _compile(check: Any, name: str, column: Any) -> Callable[[], Column] | None:
    """The check as a column of verdicts, or None where only pandera can run it."""
    kind = column.dtype.type.simpleString()
    if check.element_wise:
        verdict = partial(_for_each_value, check, kind)
    elif _returns_column(check):
        verdict = partial(_own_column, check, name)
    elif check.name in _COMPILERS and {key for key, value in check.statistics.items() if value is not None} <= _STATISTICS:
        verdict = partial(_built_in, check, kind)
    else:
        return None

    def holds() -> Column:
        # As in pandera, a check does not judge a missing value; `nullable` does.
        passed = verdict(F.col(name))
        return F.col(name).isNull() | passed if check.ignore_na else passed

    return holds


def _built_in(check: Any, kind: str, column: Column) -> Column:
    verdict: Column = _COMPILERS[check.name](column, check.statistics)
    # Spark sorts NaN above all numbers.
    return verdict & ~F.isnan(column) if kind in ("double", "float") else verdict


def _own_column(check: Any, name: str, column: Column) -> Column:
    verdict = check._check_fn(column, **check._check_kwargs)
    if not isinstance(verdict, type(column)):
        raise SpecError(f"{name}: the check '{_name_of(check)}' is annotated `-> Column` and returned {verdict!r}")
    return verdict


def _for_each_value(check: Any, kind: str, column: Column) -> Column:
    function, arguments, is_time = check._check_fn, check._check_kwargs, kind == "timestamp"
    skips_null = check.ignore_na

    def holds(value: Any) -> bool | None:
        if value is None and skips_null:
            return None  # Spark calls this for every row, whatever else is in the condition
        if is_time and value is not None:
            value = _EPOCH + timedelta(microseconds=value)
        return bool(function(value, **arguments))

    # PySpark hands timestamps to Python in the machine's local time; as numbers they stay instants. Without Arrow, values are
    # plain Python ones.
    return F.udf(holds, "boolean", useArrow=False)(F.unix_micros(column) if is_time else column)


def _returns_column(check: Any) -> bool:
    """Whether the user's function is annotated `-> Column`. Calling it to find out is not possible: there is no Spark yet."""
    function = check._check_fn
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    if inspect.isfunction(function):
        # A method of a DataFrameModel is wrapped in a closure that does not carry its annotations.
        info = inspect.getclosurevars(function).nonlocals.get("self")
        function = info.check_fn if isinstance(info, BaseCheckInfo) else function
    returned = getattr(function, "__annotations__", {}).get("return")
    return str(getattr(returned, "__name__", returned)).rsplit(".", 1)[-1] == "Column"


def _unique(columns: list[str]) -> HourRule:
    listed = ", ".join(columns)
    return HourRule(
        f"unique {listed}",
        lambda: F.count("*") == F.count_distinct(F.struct(*columns)),
        f"no two rows of the hour have the same {listed}",
    )


def _is_not_null(name: str) -> Callable[[], Column]:
    return lambda: F.col(name).isNotNull()


def _in_range(column: Column, s: Mapping[str, Any]) -> Column:
    low: Column = column >= s["min_value"] if s.get("include_min", True) else column > s["min_value"]
    high: Column = column <= s["max_value"] if s.get("include_max", True) else column < s["max_value"]
    return low & high


def _length(column: Column, s: Mapping[str, Any]) -> Column:
    verdict = F.lit(True)
    if s.get("min_value") is not None:
        verdict &= F.length(column) >= s["min_value"]
    if s.get("max_value") is not None:
        verdict &= F.length(column) <= s["max_value"]
    return verdict if s.get("exact_value") is None else verdict & (F.length(column) == s["exact_value"])


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
# What the compiled checks read. A check with any other statistic would be enforced in part only.
_STATISTICS = frozenset(
    {
        "value", "min_value", "max_value", "include_min", "include_max", "exact_value", "allowed_values", "forbidden_values",
        "pattern", "string",
    }
)  # fmt: skip


def _pattern(pattern: Any) -> str:
    return str(getattr(pattern, "pattern", pattern))
