"""CSV is read in blocks, by Arrow where it can: what it gives is what Python's reader makes of the whole text."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill_platform.adapters.files import csv_files
from backfill_platform.adapters.files.reading import Reading, Unreadable

PARTS = st.sampled_from([",", '"', "\n", "\r\n", "\r", "a", "bc", "é", " ", '""', ",,", "\ufeff", "\x0b", "\u2028", "1", "\0"])


def by_python(text: str, width: int) -> list[tuple[str, ...] | None] | None:
    """The records, None for one that is broken; None where the text ends within quotes."""
    found: list[tuple[str, ...] | None] = []
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                return None
            found.append(None)
            continue
        if fields is None:
            return found
        if fields:
            found.append(tuple(fields) if len(fields) == width else None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400)
@given(st.lists(PARTS, max_size=40).map("".join), st.integers(1, 12))
def test_blocks_of_any_size_give_the_same_records(tmp_path: Path, text: str, size: int) -> None:
    path = tmp_path / "events.csv"
    path.write_bytes(f"x,y\n{text}".encode())
    expected = by_python(text, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "_BLOCK", size)
        pieces = csv_files.pieces_of(str(path), Reading("csv", ("x", "y")))
        if expected is None:
            with pytest.raises(Unreadable, match="it ends within a field in quotes"):
                list(pieces)
            return
        found: list[Any] = []
        for piece in pieces:
            rows = list(zip(*(column.to_pylist() for column in piece.columns), strict=True))
            assert len(rows) == piece.rows == len(piece.texts or [])
            found += [None if number in piece.broken else row for number, row in enumerate(rows)]
    assert found == expected
