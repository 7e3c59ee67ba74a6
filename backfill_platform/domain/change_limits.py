"""What a repair may change. Hours whose difference exceeds the limits are refused, each with what exceeds them.

Without limits a repair may change its planned range: rows of other hours cannot be staged at all.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from backfill_platform.domain.hours import HourRange, format_hour
from backfill_platform.domain.sentences import sentence
from backfill_platform.domain.tables import Table
from backfill_platform.errors import HourError, UsageError


@dataclass(frozen=True)
class HourChange:
    """The difference of one hour of a table: its rows stored before, and the rows that would be changed, added or removed.

    `columns` are those that differ in changed rows. `totals` gives the sums of numeric columns before and after. `foreign`
    counts the rows that would be written for tenants other than those of the limits and names one of these; None where rows
    cannot be told apart by tenant.
    """

    table: str
    hour: datetime
    stored: int
    changed: int = 0
    added: int = 0
    removed: int = 0
    columns: frozenset[str] = frozenset()
    totals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    foreign: tuple[int, str] | None = None


def _hours(given: object) -> HourRange | None:
    if given is None or isinstance(given, HourRange):
        return given
    if not isinstance(given, Mapping) or set(given) != {"from", "to"}:
        raise ValueError("hours are {from: HOUR, to: HOUR}")
    try:
        return HourRange.parse(str(given["from"]), str(given["to"]))
    except HourError as error:
        raise ValueError(str(error)) from error


def _plain_hours(hours: HourRange | None) -> dict[str, str] | None:
    return None if hours is None else {"from": format_hour(hours.start), "to": format_hour(hours.end)}


Hours = Annotated[HourRange | None, BeforeValidator(_hours), PlainSerializer(_plain_hours)]


def _names(given: object) -> object:
    if given is None or (
        isinstance(given, Collection) and not isinstance(given, str) and all(isinstance(x, str) for x in given)
    ):
        return given
    raise ValueError("it is a list of names")


Names = Annotated[
    frozenset[str] | None, BeforeValidator(_names), PlainSerializer(lambda names: None if names is None else sorted(names))
]
RowChanges = Annotated[
    frozenset[Literal["added", "removed"]] | None,
    BeforeValidator(_names),
    PlainSerializer(lambda names: None if names is None else sorted(names)),
]
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


class ChangeLimits(BaseModel):
    """Limits of a repair; None means no limit.

    `rows` says whether rows may be `added` or `removed`; where `columns` are limited and `rows` is None, neither, because such
    rows change every column. `max_changed_share` is the share, 0 to 1, of an hour's stored rows that may be changed or removed.
    `max_metric_change` limits how much the sum of a column over an hour may move, relative to its sum before. Neither of the
    two limits filling an hour without rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    hours: Hours = None
    tables: Names = None
    columns: Names = None
    rows: RowChanges = None
    tenants: Names = None
    max_changed_share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)] | None = None
    max_metric_change: dict[str, Limit] = {}

    @classmethod
    def parse(cls, given: object) -> "ChangeLimits":
        """The limits of YAML or JSON: a mapping with the names of the fields; hours as `{from: HOUR, to: HOUR}`.

        Raises UsageError naming what it cannot use.
        """
        if not isinstance(given, Mapping):
            raise UsageError("change limits are a mapping, such as {tables: [transformed/sessions], max_changed_share: 0.2}")
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise UsageError(f"change limits: {sentence(error)}; they have {', '.join(cls.model_fields)}") from None

    def to_document(self) -> dict[str, Any]:
        """The limits as plain values that `parse` reads; fields without a limit are left out."""
        return self.model_dump(exclude_defaults=True)

    def check_names(self, tables: Collection[Table]) -> None:
        """Raise UsageError when a table or column is named that none of the published `tables` has.

        A limit of something that does not exist would limit nothing. A metric is a numeric column that is no key.
        """
        known = [table for table in tables if self.tables is None or str(table) in self.tables]
        values = {c.name: c for table in known for c in table.columns if c.name not in (table.hour, *table.key)}
        metrics = {name for name, column in values.items() if column.type.is_numeric}
        for what, given, have in (
            ("tables", self.tables, {str(table) for table in tables}),
            ("columns", self.columns, set(values)),
            ("max_metric_change", self.max_metric_change.keys(), metrics),
        ):
            if unknown := sorted(set(given or ()) - have):
                raise UsageError(
                    f"change limits: {what} names {', '.join(unknown)}; there are {', '.join(sorted(have)) or 'none'}"
                )

    def objections(self, change: HourChange) -> tuple[str, ...]:
        """What of the change is not allowed, in words; empty when all of it is."""
        return (*self._of_place(change), *self._of_rows(change), *self._of_metrics(change))

    def _of_place(self, change: HourChange) -> list[str]:
        found = []
        if self.hours is not None and change.hour not in self.hours:
            found.append(f"{format_hour(change.hour)} is not within the hours {self.hours} of the change limits")
        if self.tables is not None and change.table not in self.tables:
            found.append(f"{change.table} is not one of the tables of the change limits: {', '.join(sorted(self.tables))}")
        if self.tenants is not None and change.foreign is None:
            found.append(
                f"rows of {change.table} cannot be told apart by tenant, and the change limits allow some tenants only"
            )
        elif self.tenants is not None and change.foreign is not None and change.foreign[0]:
            count, example = change.foreign
            found.append(f"{count} row{'s' * (count != 1)} of other tenants would be written, such as '{example}'")
        return found

    def _of_rows(self, change: HourChange) -> list[str]:
        found = []
        if self.columns is not None and (others := sorted(change.columns - self.columns)):
            found.append(
                f"{', '.join(others)} would change, the change limits allow {', '.join(sorted(self.columns)) or 'none'}"
            )
        allowed = frozenset[str]() if self.rows is None and self.columns is not None else self.rows
        for word, count in (("added", change.added), ("removed", change.removed)):
            if count and allowed is not None and word not in allowed:
                found.append(f"{count} row{'s' * (count != 1)} would be {word}, the change limits have no `rows: [{word}]`")
        cancelled = change.changed + change.removed
        if self.max_changed_share is not None and cancelled > self.max_changed_share * change.stored:
            found.append(
                f"{cancelled} of {change.stored} stored rows would change or go, "
                f"the change limits allow a share of {self.max_changed_share:g}"
            )
        return found

    def _of_metrics(self, change: HourChange) -> list[str]:
        found = []
        for name, limit in self.max_metric_change.items():
            before, after = change.totals.get(name, (0, 0))
            if not change.stored:
                continue
            # NaN compares as false with everything, and no share of infinity is a limit.
            judged = math.isfinite(before) and math.isfinite(after)
            if not judged or abs(after - before) > limit * abs(before):
                found.append(
                    f"the sum of {name} would go from {before:g} to {after:g}, the change limits allow {limit:g} of it"
                )
            elif name in change.totals and change.removed == change.stored and not change.added and limit < 1:
                found.append(f"all {change.stored} rows would go, the change limits allow {limit:g} of the sum of {name}")
        return found


NO_LIMITS = ChangeLimits()
