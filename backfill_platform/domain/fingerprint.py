"""Fingerprints of hours, and the names of repairs and their attempts."""

from dataclasses import dataclass
from datetime import UTC, datetime

_WRAP = 1 << 64


@dataclass(frozen=True)
class Fingerprint:
    """What an hour holds: its net row count, and the sum of its row hashes, each with its sign, modulo 2**64.

    Both are linear: the fingerprint of two sets of rows is the sum of theirs. So `target + delta == desired` proves a delta
    before it is published. Fingerprints from different server versions or table declarations must not be compared.
    """

    rows: int = 0
    hash: int = 0

    def __add__(self, other: "Fingerprint") -> "Fingerprint":
        return Fingerprint(self.rows + other.rows, (self.hash + other.hash) % _WRAP)

    def __sub__(self, other: "Fingerprint") -> "Fingerprint":
        return Fingerprint(self.rows - other.rows, (self.hash - other.hash) % _WRAP)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hash", self.hash % _WRAP)

    def __str__(self) -> str:
        return f"{self.rows}:{self.hash:016x}"


EMPTY = Fingerprint()


def repair_id(now: datetime, entropy: bytes) -> str:
    """A sortable, readable name of a repair: `r19980430t220000_1f2e3d`. Safe in table names and branch names.

    The caller gives the time and the randomness: a repair that another process resumes keeps its name.
    """
    return f"r{now.astimezone(UTC):%Y%m%dt%H%M%S}_{entropy.hex()[:6]}"
