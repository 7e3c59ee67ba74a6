"""What a repair may change. Hours whose difference exceeds the limits are refused, each with what exceeds them.

Without limits a repair may change its planned range: rows of other hours cannot be staged at all.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from backfill_platform.domain.hours import HourRange, format_hour
from backfill_platform.domain.sentences import sentence
from backfill_platform.errors import HourError, UsageError


@dataclass(frozen=True)
class HourChange:
    """The difference of one hour of a table: rows stored before, stored rows that would go or change, columns, totals.

    `totals` gives the sums of numeric columns before and after. `foreign` counts the rows that would be written for tenants
    other than those of the limits and names one of these; None where rows cannot be told apart by tenant.
    """

    table: str
    hour: datetime
    stored: int
    cancelled: int
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
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


class ChangeLimits(BaseModel):
    """Limits of a repair; None means no limit.

    `max_changed_share` is the share, 0 to 1, of an hour's stored rows that may be changed or removed. `max_metric_change`
    limits how much the sum of a column over an hour may move, relative to its sum before. Neither limits filling an hour
    without rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    hours: Hours = None
    tables: Names = None
    columns: Names = None
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

    def objections(self, change: HourChange) -> tuple[str, ...]:
        """What of the change is not allowed, in words; empty when all of it is."""
        found = []
        if self.hours is not None and change.hour not in self.hours:
            found.append(f"{format_hour(change.hour)} is not within the hours {self.hours} of the change limits")
        if self.tables is not None and change.table not in self.tables:
            found.append(f"{change.table} is not one of the tables of the change limits: {', '.join(sorted(self.tables))}")
        if self.columns is not None and (others := sorted(change.columns - self.columns)):
            found.append(
                f"{', '.join(others)} would change, the change limits allow {', '.join(sorted(self.columns)) or 'none'}"
            )
        if self.tenants is not None and change.foreign is None:
            found.append(
                f"rows of {change.table} cannot be told apart by tenant, and the change limits allow some tenants only"
            )
        elif self.tenants is not None and change.foreign is not None and change.foreign[0]:
            count, example = change.foreign
            found.append(f"{count} rows of other tenants would be written, such as '{example}'")
        if self.max_changed_share is not None and change.cancelled > self.max_changed_share * change.stored:
            found.append(
                f"{change.cancelled} of {change.stored} stored rows would change or go, "
                f"the change limits allow a share of {self.max_changed_share:g}"
            )
        for name, limit in self.max_metric_change.items():
            before, after = change.totals.get(name, (0, 0))
            if change.stored and abs(after - before) > limit * abs(before):
                found.append(
                    f"the sum of {name} would go from {before:g} to {after:g}, the change limits allow {limit:g} of it"
                )
        return tuple(found)


NO_LIMITS = ChangeLimits()
