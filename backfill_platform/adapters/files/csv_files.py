"""Records of a CSV file, in pieces. It runs in Spark's Python workers, without this package, and to look through files.

Python's `csv` says what a record is. Blocks of text without a quote, where every line is a record, are left to Arrow, which is
ten times as fast; where it finds anything but the columns of the header, they are read by `csv`, too.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv

from backfill_platform.adapters.files.integrity import MOST_RATIO, MOST_UNPACKED
from backfill_platform.adapters.files.reading import Reading, Unreadable, columns_of
from backfill_platform.adapters.files.unpacking import place_of
from backfill_platform.adapters.records.taking import Piece

LONGEST_RECORD = 16 << 20  # characters
_BLOCK = 1 << 20  # characters


def pieces_of(uri: str, reading: Reading) -> Iterator[Piece]:
    """The records of a file. Raises MissingColumn, Unreadable, and what the bytes make the libraries raise."""
    filesystem, path = place_of(uri)
    most = max(MOST_UNPACKED, MOST_RATIO * (filesystem.get_file_info(path).size or 1))
    with filesystem.open_input_stream(path, compression="detect") as source:
        records = CsvRecords(source, reading, most)
        names = records.header()
        if not names:
            return
        columns_of(reading, names)
        places = [names.index(name) if name in names else None for name in reading.columns]
        while text := records.block():
            piece = _quickly(text, places, len(names), reading.delimiter)
            if piece is None:
                records.put_back(text)
                piece = _one_by_one(records, places, len(names), reading.encoding)
            yield piece


class CsvRecords:
    """The fields of each record, None where they cannot be told apart, with its text. Blank lines are no records."""

    def __init__(self, source: Any, reading: Reading, most: int = MOST_UNPACKED) -> None:
        """Of `source`, not more than `most` characters are read."""
        csv.field_size_limit(LONGEST_RECORD)
        self._most, self._encoding = most, reading.encoding
        self._taken: list[str] = []
        self._back, self._left = io.StringIO(), 0
        # Bytes that are not in the encoding come through as lone surrogates, and are found when the text is encoded.
        self._text = io.TextIOWrapper(io.BufferedReader(source, _BLOCK), reading.encoding, "surrogateescape", newline="")
        self._reader = csv.reader(self._lines(), delimiter=reading.delimiter, strict=True)

    def header(self) -> list[str]:
        """The names of the columns, which come first; none of an empty file. Raises Unreadable."""
        for fields, text in self:
            if fields is None or "\0" in text:
                raise Unreadable("it does not begin with the names of its columns")
            # A byte order mark of UTF-8 may be there in whatever encoding a file is declared.
            mark = "\ufeff" if self._encoding == "utf-8" else "\xef\xbb\xbf"
            return [fields[0].removeprefix(mark), *fields[1:]]
        return []

    def block(self) -> str:
        """The next whole lines; a record with line ends may go on behind them. Empty at the end. Raises Unreadable."""
        text = self._counted(self._text.read(_BLOCK))
        return text + self._read_line() if text else ""

    def put_back(self, text: str) -> None:
        """Let the records of a block come one by one, before those behind it."""
        self._back, self._left = io.StringIO(text, newline=""), len(text)

    @property
    def is_at_end_of_block(self) -> bool:
        """Whether the lines that were put back have come."""
        return not self._left

    def _counted(self, text: str) -> str:
        self._most -= len(text)
        if self._most < 0:
            raise Unreadable(f"it unpacks to more than {MOST_RATIO} times its size and {MOST_UNPACKED >> 30} GiB; no data does")
        return text

    def _read_line(self) -> str:
        return self._counted(self._text.readline(LONGEST_RECORD + 1))

    def _lines(self) -> Iterator[str]:
        size = 0
        while line := self._back.readline() or self._read_line():
            self._left = max(0, self._left - len(line))
            size = len(line) + (size if self._taken else 0)
            if size > LONGEST_RECORD:
                raise Unreadable(f"it has a record of more than {LONGEST_RECORD >> 20} MiB; no event is that long")
            self._taken.append(line)
            yield line

    def __iter__(self) -> CsvRecords:
        return self

    def __next__(self) -> tuple[list[str] | None, str]:
        while True:
            self._taken.clear()
            try:
                fields = next(self._reader)
            except csv.Error as error:
                if "unexpected end of data" in str(error):
                    raise Unreadable("it ends within a field in quotes") from error
                fields = None
            if fields != []:
                return fields, "".join(self._taken)


def _quickly(text: str, places: Sequence[int | None], width: int, delimiter: str) -> Piece | None:
    """The records of a block by Arrow, where each line is one; else None."""
    if '"' in text or text.startswith("\ufeff"):
        return None
    lines = [line for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n") if line]
    if max(map(len, lines), default=0) > LONGEST_RECORD:
        raise Unreadable(f"it has a record of more than {LONGEST_RECORD >> 20} MiB; no event is that long")
    names = list(map(str, range(width)))
    try:
        data = text.encode()
        table = pyarrow.csv.read_csv(
            pa.BufferReader(data),
            pyarrow.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
            pyarrow.csv.ParseOptions(delimiter=delimiter, quote_char=False),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        ).combine_chunks()
    except (pa.ArrowInvalid, UnicodeEncodeError):  # a line has other fields, or a byte is not in the encoding
        return None
    if len(table) != len(lines):
        return None
    empty = pa.nulls(len(lines), pa.string())
    return Piece([empty if place is None else table.column(place).combine_chunks() for place in places], len(lines), lines)


def _one_by_one(records: CsvRecords, places: Sequence[int | None], width: int, encoding: str) -> Piece:
    rows: list[Sequence[str]] = []
    texts: list[str] = []
    broken: list[int] = []
    blank = [""] * width
    while not records.is_at_end_of_block and (record := next(records, None)):
        fields, text = record
        if fields is None or len(fields) != width:
            broken.append(len(rows))
            fields = blank
        rows.append(fields)
        texts.append(text.rstrip("\r\n"))
    undecodable = []
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        for row, text in enumerate(texts):
            raw = text.encode(encoding, "surrogateescape")
            if text != raw.decode(encoding, "replace"):
                undecodable.append(row)
                rows[row], texts[row] = blank, raw.decode("latin-1")
    columns = list(zip(*rows, strict=True)) or [()] * width
    empty = pa.nulls(len(rows), pa.string())
    arrays = [empty if place is None else pa.array(columns[place], pa.string()) for place in places]
    return Piece(arrays, len(rows), texts, broken, undecodable)
