"""What a repair may change. A publish whose difference exceeds the change limits is refused, hour by hour, with what broke it.

Without limits a repair may change its planned range: rows of other hours cannot be staged at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime

from backfill_platform.domain.hours import HourRange, format_hour
from backfill_platform.errors import UsageError


@dataclass(frozen=True)
class HourChange:
    """The difference of one hour of a table: rows stored before, stored rows that would go or change, columns, totals.

    `totals` gives the sums of numeric columns before and after. `foreign` counts the rows that would be written for tenants
    other than the limits' and names one of these; None where rows cannot be told apart by tenant.
    """

    table: str
    hour: datetime
    stored: int
    cancelled: int
    columns: frozenset[str] = frozenset()
    totals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    foreign: tuple[int, str] | None = None


@dataclass(frozen=True)
class ChangeLimits:
    """Limits of a repair; None means no limit.

    `max_changed_share` is the share, 0 to 1, of an hour's stored rows that may be changed or removed. `max_metric_change`
    limits how much the sum of a column over an hour may move, relative to its sum before. Neither limits filling an hour
    without rows.
    """

    hours: HourRange | None = None
    tables: frozenset[str] | None = None
    columns: frozenset[str] | None = None
    tenants: frozenset[str] | None = None
    max_changed_share: float | None = None
    max_metric_change: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: object) -> "ChangeLimits":
        """Change limits from YAML or JSON: a mapping with the names of the fields; hours as `{from: HOUR, to: HOUR}`.

        Raises UsageError naming what it cannot use.
        """
        if not isinstance(given, Mapping):
            raise UsageError("change limits is a mapping, such as {tables: [transformed/sessions], max_changed_share: 0.2}")
        known = [one.name for one in fields(cls)]
        if unknown := sorted(set(map(str, given)) - set(known)):
            raise UsageError(f"change limits has no {', '.join(unknown)}; it has {', '.join(known)}")
        share = given.get("max_changed_share")
        if share is not None and not (_is_number(share) and 0 <= share <= 1):
            raise UsageError(f"max_changed_share is a number from 0 to 1, not {share!r}")
        metrics = given.get("max_metric_change", {})
        if not isinstance(metrics, Mapping) or not all(_is_number(limit) and limit >= 0 for limit in metrics.values()):
            raise UsageError(f"max_metric_change maps columns to numbers from 0, such as {{bytes: 0.5}}, not {metrics!r}")
        return cls(
            _hours(given.get("hours")),
            _names("tables", given.get("tables")),
            _names("columns", given.get("columns")),
            _names("tenants", given.get("tenants")),
            None if share is None else float(share),
            {str(name): float(limit) for name, limit in metrics.items()},
        )

    def objections(self, change: HourChange) -> tuple[str, ...]:
        """What of the change is not allowed, in words; empty when all of it is."""
        found = []
        if self.hours is not None and change.hour not in self.hours:
            found.append(f"{format_hour(change.hour)} is not within the change limits's hours {self.hours}")
        if self.tables is not None and change.table not in self.tables:
            found.append(f"{change.table} is not one of the limits' tables {', '.join(sorted(self.tables))}")
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


def _hours(given: object) -> HourRange | None:
    if given is None:
        return None
    if not isinstance(given, Mapping) or set(given) != {"from", "to"}:
        raise UsageError(f"the hours of change limits are {{from: HOUR, to: HOUR}}, not {given!r}")
    return HourRange.parse(str(given["from"]), str(given["to"]))


def _names(what: str, given: object) -> frozenset[str] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise UsageError(f"{what} of change limits is a list of names, not {given!r}")
    return frozenset(given)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
