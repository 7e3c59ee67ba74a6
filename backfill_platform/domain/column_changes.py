"""What becomes of the columns of a stored table when its declaration is changed.

Whoever knows a store says how its columns differ from the declared ones, as `ColumnChange`s; what cannot be done is one of
them, with the reason. A migration does all of them, or none.
"""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from backfill_platform.domain.stored_types import StoredType, width_of
from backfill_platform.domain.tables import Table


class Kind(StrEnum):
    """What is done to a column."""

    ADD = "add"
    WIDEN = "widen"
    RENAME = "rename"
    DROP = "drop"
    REFUSE = "refuse"


@dataclass(frozen=True)
class ColumnChange:
    """A change of one column, or why it is refused.

    `before` is the earlier name of a renamed column, and the earlier type of a widened one; `after` the type that an added or a
    widened one gets, and the reason of a refusal.
    """

    kind: Kind
    column: str
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        match self.kind:
            case Kind.ADD:
                return f"add {self.column} {self.after}"
            case Kind.WIDEN:
                return f"widen {self.column} from {self.before} to {self.after}"
            case Kind.RENAME:
                return f"rename {self.before} to {self.column}"
            case Kind.DROP:
                return f"drop {self.column}"
        return f"{self.column}: {self.after}"


def renamed(table: Table, stored: Collection[str]) -> dict[str, str]:
    """The columns of a table that a store has under an earlier name only, with that name."""
    return {column.name: name for column in table.columns if column.name not in stored for name in column.was if name in stored}


def widens(before: StoredType, after: StoredType) -> bool:
    """Whether a column of ClickHouse can become another type with all of its values as they are."""
    if before.nullable and not after.nullable:
        return False
    old, new = before.name, after.name
    with suppress(KeyError):
        (low, high), (least, most) = width_of(old), width_of(new)
        return least <= low and high <= most
    match old:
        case "Decimal" if new == "Decimal":
            return before.numbers[1] == after.numbers[1] and before.numbers[0] <= after.numbers[0]
        case "Float32":
            return new in ("Float32", "Float64")
        case "Enum8" | "Enum16" if new in ("Enum8", "Enum16"):
            kept = _values(before).items() <= _values(after).items()
            return kept and not (old == "Enum16" and new == "Enum8")
    return (old, before.arguments, before.numbers, before.parts) == (new, after.arguments, after.numbers, after.parts)


def _values(kind: StoredType) -> dict[str, int]:
    return dict(zip(kind.arguments, kind.numbers, strict=True))
