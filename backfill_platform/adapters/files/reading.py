"""What is read of each file of records, and what makes one unreadable. It also runs in Spark's Python workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class Unreadable(Exception):
    """Why a file cannot be read to its end."""


class MissingColumn(Exception):
    """A column that a file lacks."""


@dataclass(frozen=True)
class Reading:
    """What is read of each file: the format by its name, the columns, and those of them that may be missing."""

    format: str
    columns: tuple[str, ...]
    may_lack: tuple[str, ...] = ()
    delimiter: str = ","
    encoding: str = "utf-8"


def columns_of(reading: Reading, there: Sequence[str]) -> list[str]:
    """The columns to read of a file that has the columns `there`."""
    for name in reading.columns:
        if name not in there and name not in reading.may_lack:
            raise MissingColumn(name)
        if there.count(name) > 1:
            raise Unreadable(f"it has several columns '{name}'")
    return [name for name in reading.columns if name in there]
