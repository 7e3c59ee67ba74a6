"""The body of a request, unpacked: a few kilobytes may claim to be gigabytes, so bytes are counted as they come out."""

import zlib
from collections.abc import Iterator

import lz4.frame
import zstandard

from backfill_platform.devstack.embedded_clickhouse.statement import StatementError

MOST_BYTES = 256 << 20  # of a body, packed and unpacked; requests are held in memory as a whole

_STEP = 4 << 20  # what comes out at a time
# zstandard cannot be told where to stop: 1 KiB of it is at most 32 MiB, because each of its blocks is at most 128 KiB.
_ZSTD_STEP = 1 << 10
_ZSTD_WINDOW = 128 << 20
_WINDOW = {"gzip": 31, "deflate": 15}  # as zlib calls the two


def decompressed(body: bytes, encoding: str) -> bytes:
    """Undo the Content-Encoding of a request; clickhouse-connect sends one lz4 or zstd frame per chunk.

    Raises StatementError when the body cannot be unpacked or is too large, packed or not.
    """
    match encoding:
        case "" | "identity":
            return body
        case "lz4":
            parts = _lz4(body)
        case "zstd":
            parts = _zstd(body)
        case "gzip" | "deflate":
            parts = _zlib(body, _WINDOW[encoding])
        case _:
            raise StatementError.own(89, "UNKNOWN_COMPRESSION_METHOD", f"Unknown compression method: {encoding}")
    unpacked = bytearray()
    try:
        for part in parts:
            unpacked += part
            if len(unpacked) > MOST_BYTES:
                raise too_large(MOST_BYTES)
    except (RuntimeError, EOFError, OSError, MemoryError, zlib.error, zstandard.ZstdError) as error:
        raise StatementError.own(271, "CANNOT_DECOMPRESS", f"Cannot decompress the request: {error}") from error
    return bytes(unpacked)


def too_large(most: int) -> StatementError:
    """The error of a body with more bytes than this server takes."""
    return StatementError.own(
        307, "TOO_MANY_BYTES", f"The body of the request is larger than {most >> 20} MiB; send it in parts"
    )


def _lz4(body: bytes) -> Iterator[bytes]:
    while body:  # a decompressor reads one frame
        frame = lz4.frame.LZ4FrameDecompressor()
        part = frame.decompress(body, max_length=_STEP)
        while True:
            yield part
            if frame.eof or (not part and frame.needs_input):
                break
            part = frame.decompress(b"", max_length=_STEP)
        body = _rest(frame.eof, frame.unused_data)


def _zstd(body: bytes) -> Iterator[bytes]:
    while body:  # the readers over all frames take a frame that is cut short for the end
        frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
        at = 0
        while at < len(body) and not frame.eof:
            yield frame.decompress(body[at : at + _ZSTD_STEP])
            at += _ZSTD_STEP
        body = _rest(frame.eof, frame.unused_data + body[at:])


def _zlib(body: bytes, window: int) -> Iterator[bytes]:
    while body:
        frame = zlib.decompressobj(window)
        left = body
        while not frame.eof and left:
            yield frame.decompress(left, _STEP)
            left = frame.unconsumed_tail
        if not frame.eof:
            yield frame.flush(_STEP)
        body = _rest(frame.eof, frame.unused_data)


def _rest(ended: bool, rest: bytes | None) -> bytes:
    if not ended:
        raise EOFError("the last frame is cut short")
    return rest or b""
