"""Whether a file can be read to its end, and how many lines it has, found out before Spark reads it.

One file that is cut short, damaged or made to burst the memory would fail all hours that are read with it, or end Spark itself.
The bytes pass through here once, unpacked but not decoded. The rows that Spark makes of a file are held against its lines.
"""

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs

LONGEST_LINE = 16 << 20  # bytes; Spark keeps a line in memory several times
MOST_UNPACKED = 1 << 30  # bytes that any file may unpack to; beyond that, its ratio decides
MOST_RATIO = 250  # unpacked to packed; logs that repeat themselves reach about 100
_CHUNK = 1 << 20
_MARK = b"\xef\xbb\xbf"  # Spark skips a byte order mark of UTF-8 in whatever encoding a file is declared


@dataclass(frozen=True)
class LookedThrough:
    """The lines of a file that are no header, and its first one; `problem` says why it cannot be read as lines."""

    lines: int = 0
    first: bytes = b""
    empty: bool = False
    problem: str = ""


def look_through(filesystem: pyarrow.fs.FileSystem, file: pyarrow.fs.FileInfo, uri: str, header: bytes = b"") -> LookedThrough:
    """Read a file to its end; lines equal to `header` are not counted."""
    try:
        with filesystem.open_input_stream(file.path, compression="detect") as stream:
            return _counted(stream, file.size or 1, uri, header)
    except (OSError, pa.ArrowException) as error:
        return LookedThrough(problem=f"{uri} cannot be read to its end: {str(error).strip().partition(chr(10))[0]}")


def _counted(stream: pa.NativeFile, packed: int, uri: str, header: bytes) -> LookedThrough:
    lines = headers = total = 0
    whole = re.compile(rb"(?<![^\r\n])" + re.escape(header) + rb"(?![^\r\n])") if header else None
    first: bytes | None = None
    rest = b""  # the beginning of a line whose end has not come yet
    while chunk := stream.read(_CHUNK):
        if not total:
            chunk, total = chunk.removeprefix(_MARK), len(chunk)
        else:
            total += len(chunk)
        if total > MOST_UNPACKED and total > MOST_RATIO * packed:
            text = f"{uri} unpacks to more than {MOST_RATIO} times its size and {MOST_UNPACKED >> 30} GiB; no log does"
            return LookedThrough(problem=text)
        # Spark ends lines at \n, \r and \r\n. A \r at the end may be the first half of the last.
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r", 0, len(chunk) - 1)) + 1
        if end:
            block, rest = rest + chunk[:end], chunk[end:]
            lines += _ends(block)
            headers += len(whole.findall(block)) if whole else 0
            first = _first(block) if first is None else first
        else:
            rest += chunk
        if len(rest) > LONGEST_LINE:
            return LookedThrough(problem=f"{uri} has a line of more than {LONGEST_LINE >> 20} MiB; no event is that long")
    if rest:
        lines += _ends(rest) + (not rest.endswith((b"\r", b"\n")))
        headers += len(whole.findall(rest)) if whole else 0
        first = _first(rest) if first is None else first
    return LookedThrough(lines - headers, first or b"", empty=first is None)


def _ends(block: bytes) -> int:
    """How many lines end in the block."""
    returns = block.count(b"\r")
    return block.count(b"\n") + (returns - block.count(b"\r\n") if returns else 0)


def _first(block: bytes) -> bytes:
    return re.split(rb"[\r\n]", block, maxsplit=1)[0]
