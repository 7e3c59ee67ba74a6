"""What a look at a source finds before it is landed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Inspection:
    """The hours that cannot be landed, with the reason, and the lines or records of the others.

    The lines of an archive are those of all its hours, below its first one. Headers are not counted. `lines` is None where
    they are counted only as they are read.
    """

    absent: Mapping[datetime, str] = field(default_factory=dict)
    lines: Mapping[datetime, int] | None = field(default_factory=dict)
