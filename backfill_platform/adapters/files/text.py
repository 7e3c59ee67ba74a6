"""Lines of many files in one read, each with the hour of its file."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from pyspark import cloudpickle
from pyspark.sql import functions as F

from backfill_platform.adapters.files import unpacking
from backfill_platform.domain.uris import local_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_URI, _EPOCH, _VALUE = "_uri", "_epoch", "value"
_UNQUOTED = "/_-!.~'()*,;:$&+=@"  # what java.net.URI leaves alone in a path


def read_lines(spark: SparkSession, files: Mapping[str, datetime], encoding: str, header: str = "") -> DataFrame:
    """Columns `line`, `undecodable` and `file_hour`, for all files with their hours; lines equal to the header are left out.

    Each line arrives as it is: Spark keeps the bytes of a text line, so that decoding here loses nothing, blank lines included.
    """
    by_python = {uri: hour for uri, hour in files.items() if uri.endswith(".lz4")}
    by_spark = {uri: hour for uri, hour in files.items() if uri not in by_python}
    parts = [read(spark, some) for read, some in ((_by_spark, by_spark), (_by_python, by_python)) if some]
    lines = parts[0] if parts else spark.createDataFrame([], f"{_VALUE} string, file_hour timestamp")
    for part in parts[1:]:
        lines = lines.unionByName(part)
    line, undecodable = _decoded(encoding)
    lines = lines.select(line.alias("line"), undecodable.alias("undecodable"), "file_hour")
    # By content, not by position: Spark splits large files, and concatenated files repeat the header.
    return lines.where(F.col("line") != header) if header else lines


def _decoded(encoding: str) -> tuple[Column, Column]:
    if encoding != "UTF-8":
        return F.decode(F.col(_VALUE).cast("binary"), encoding), F.lit(False)
    undecodable = ~F.is_valid_utf8(_VALUE)
    line = F.when(undecodable, F.decode(F.col(_VALUE).cast("binary"), "ISO-8859-1")).otherwise(F.col(_VALUE))
    return line, undecodable


def _by_spark(spark: SparkSession, files: Mapping[str, datetime]) -> DataFrame:
    lines = spark.read.text([_no_glob(uri) for uri in files])
    hours = set(files.values())
    if len(hours) == 1:
        return lines.select(_VALUE, F.lit(hours.pop()).alias("file_hour"))
    rows = [(_as_spark_names(uri), int(hour.timestamp())) for uri, hour in files.items()]
    by_name = spark.createDataFrame(rows, f"{_URI} string, {_EPOCH} bigint")
    # A name that Spark writes in another way gets no hour, and the audit refuses lines without one.
    joined = lines.join(F.broadcast(by_name), F.col("_metadata.file_path") == F.col(_URI), "left")
    return joined.select(_VALUE, F.timestamp_seconds(_EPOCH).alias("file_hour"))


def _by_python(spark: SparkSession, files: Mapping[str, datetime]) -> DataFrame:
    """Lines of files that Spark cannot unpack: of LZ4 it knows Hadoop's framing only, and takes others for empty."""
    rows = [(uri, int(hour.timestamp())) for uri, hour in files.items()]
    given = spark.createDataFrame(rows, f"{_URI} string, {_EPOCH} bigint").repartition(min(len(rows), 64), _URI)
    # Python workers elsewhere may not have this package.
    cloudpickle.register_pickle_by_value(unpacking)  # type: ignore[no-untyped-call]
    lines = given.mapInArrow(unpacking.unpacked_lines, f"{_VALUE} binary, {_EPOCH} bigint")
    return lines.select(F.col(_VALUE).cast("string").alias(_VALUE), F.timestamp_seconds(_EPOCH).alias("file_hour"))


def _no_glob(uri: str) -> str:
    """The URI of one file for Spark, which takes brackets and the like for a pattern."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", uri)


def _as_spark_names(uri: str) -> str:
    """The URI as it is in Spark's `_metadata.file_path`: encoded by java.net.URI, and with one slash for local files."""
    local = local_path(uri)
    scheme, path = ("file:", os.path.abspath(local)) if local else ("", uri)
    return scheme + "".join(map(_encoded, path))


def _encoded(character: str) -> str:
    if character.isascii():
        return quote(character, safe=_UNQUOTED)
    return quote(character) if unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc") else character
