"""What the files of a source hold: lines of text that the pipeline parses, or records whose columns have names.

Each format can be written in a pipeline as a value, such as `HourlyFiles(pattern, format=Parquet())`.
"""

from dataclasses import dataclass

from backfill_platform.errors import SpecError


@dataclass(frozen=True)
class Text:
    """Lines that the raw table's `parse` reads. Files may be compressed with gzip, Zstandard, bzip2 or LZ4."""


@dataclass(frozen=True)
class JsonLines:
    """One JSON object in each line, compressed or not. A name that an object lacks is NULL."""


@dataclass(frozen=True)
class Csv:
    """Records with a header, compressed or not; fields in quotes may hold delimiters, quotes and line ends.

    Columns are found by the header, in any order. Empty fields are NULL, and blank lines are no records. `added_later` names
    columns that older files lack, which are NULL there.
    """

    delimiter: str = ","
    added_later: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n':
            raise SpecError(f"the delimiter of a CSV file is one ASCII character and no quote, not {self.delimiter!r}")


@dataclass(frozen=True)
class Parquet:
    """Parquet; `added_later` names columns that older files lack, which are NULL there."""

    added_later: tuple[str, ...] = ()


@dataclass(frozen=True)
class Orc:
    """ORC; `added_later` names columns that older files lack, which are NULL there."""

    added_later: tuple[str, ...] = ()


@dataclass(frozen=True)
class Avro:
    """Avro object container files; `added_later` names columns that older files lack, which are NULL there."""

    added_later: tuple[str, ...] = ()


Tabular = Csv | Parquet | Orc | Avro  # its files say which columns they have
FileFormat = Text | JsonLines | Tabular
