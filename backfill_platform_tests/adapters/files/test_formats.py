"""Files of records: what is damaged or another file costs its own hour and a sentence; what is odd is read as it is."""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest
from pyspark.sql import functions as F

from backfill_platform.adapters.files import avro_container, csv_files
from backfill_platform.adapters.files.formats import Avro, Csv, FileFormat, JsonLines, Orc, Parquet
from backfill_platform.adapters.files.hourly import ArchiveFile, HourlyFiles
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.uris import local_uri
from backfill_platform.errors import SpecError
from backfill_platform_tests.events import hour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USERS = [f"user {number}" for number in range(5000)]
TAKEN = {"user": "string"}


def parquet(**columns: Any) -> bytes:
    data = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(columns or {"user": USERS}), data, row_group_size=1000)
    return data.getvalue()


def orc(**columns: Any) -> bytes:
    data = io.BytesIO()
    pyarrow.orc.write_table(pa.table(columns or {"user": USERS}), data, compression="zlib")
    return data.getvalue()


def avro(codec: str = "deflate", **columns: Any) -> bytes:
    columns = columns or {"user": USERS}
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": "string"} for name in columns]}
    data = io.BytesIO()
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    fastavro.writer(data, fastavro.parse_schema(schema), rows, codec=codec, sync_interval=2000)
    return data.getvalue()


def csv(*lines: str) -> bytes:
    return "".join(line + "\n" for line in (lines or ("user", *USERS))).encode()


def flipped(data: bytes, at: int) -> bytes:
    damaged = bytearray(data)
    damaged[at] ^= 0xFF
    return bytes(damaged)


GOOD: dict[str, tuple[FileFormat, Callable[[], bytes]]] = {
    "parquet": (Parquet(), parquet),
    "orc": (Orc(), orc),
    "avro": (Avro(), avro),
    "csv": (Csv(), csv),
    "csv.gz": (Csv(), lambda: gzip.compress(csv())),
    "jsonl.gz": (JsonLines(), lambda: gzip.compress(b"".join(json.dumps({"user": u}).encode() + b"\n" for u in USERS))),
}
BAD: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "Parquet that is cut short": ("parquet", lambda: parquet()[:-100], "cannot be read to its end as Parquet"),
    "Parquet that is cut in front": ("parquet", lambda: parquet()[2000:], "cannot be read to its end as Parquet"),
    "damaged Parquet": ("parquet", lambda: flipped(parquet(), 700), "cannot be read to its end as Parquet"),
    "an empty file of Parquet": ("parquet", lambda: b"", "cannot be read to its end as Parquet"),
    "JSON that says it is Parquet": ("parquet", lambda: b'{"user": "a"}\n', "cannot be read to its end as Parquet"),
    "Parquet of other columns": ("parquet", lambda: parquet(User=["a"]), "has no column 'user'"),
    "ORC that is cut short": ("orc", lambda: orc()[:-30], "cannot be read to its end as Orc"),
    "damaged ORC": ("orc", lambda: flipped(orc(), 300), "cannot be read to its end as Orc"),
    "Parquet that says it is ORC": ("orc", parquet, "cannot be read to its end as Orc"),
    "Avro that is cut short": ("avro", lambda: avro()[:-40], "it ends within a block"),
    "Avro that is cut within its header": ("avro", lambda: avro()[:30], "cannot be read to its end as Avro"),
    "damaged Avro": ("avro", lambda: flipped(avro(), 400), "cannot be read to its end as Avro"),
    "damaged Avro that is not compressed": ("avro", lambda: flipped(avro("null"), -5), "does not end with the mark"),
    "Avro of other columns": ("avro", lambda: avro(User=["a"]), "has no column 'user'"),
    "text that says it is Avro": ("avro", csv, "cannot be read to its end as Avro"),
    "CSV that is cut within a field": ("csv", lambda: csv("user", "a", '"b'), "it ends within a field in quotes"),
    "CSV of other columns": ("csv", lambda: csv("User,id", "a,1"), "has no column 'user'"),
    "CSV without a header": ("csv", lambda: csv(*USERS), "has no column 'user'"),
    "CSV with a column twice": ("csv", lambda: csv("user,user", "a,1"), "has several columns 'user'"),
    "Parquet that says it is CSV": ("csv", parquet, "cannot be read to its end as Csv"),
    "packed CSV that is cut short": ("csv.gz", lambda: gzip.compress(csv())[:-30], "cannot be read to its end as Csv"),
    "packed JSON that is cut short": (
        "jsonl.gz",
        lambda: gzip.compress(b'{"user": "a"}\n' * 900)[:-9],
        "cannot be read to its end",
    ),
    "CSV with a record without an end": ("csv", lambda: csv("user", '"' + "x\n" * (9 << 20)), "more than 16 MiB"),
}


@pytest.mark.whole
@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_costs_its_own_hour_and_one_sentence(spark: "SparkSession", tmp_path: Path, what: str) -> None:
    ending, data, says = BAD[what]
    format_, good = GOOD[ending]
    for number, content in enumerate((good(), data(), good())):
        (tmp_path / f"{hour(number):%H}.{ending}").write_bytes(content)
    source = HourlyFiles(f"{local_uri(tmp_path)}/%H.{ending}", format=format_)
    found = source.inspect([hour(0), hour(1), hour(2)], TAKEN)
    assert list(found.absent) == [hour(1)]
    assert says in found.absent[hour(1)]
    assert f"{hour(1):%H}.{ending}" in found.absent[hour(1)]
    assert "\n" not in found.absent[hour(1)]
    assert found.lines == {hour(0): 5000, hour(2): 5000}
    assert source.lines(spark, [hour(0), hour(2)], TAKEN).count() == 10_000


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "jsonl.gz"])
def test_an_hour_without_events_has_an_empty_file(spark: "SparkSession", tmp_path: Path, ending: str) -> None:
    for number, content in enumerate((b"", b"user\n" if "csv" in ending else b"")):
        packed = gzip.compress(content) if ending.endswith("gz") else content
        (tmp_path / f"{hour(number):%H}.{ending}").write_bytes(packed)
    source = HourlyFiles(f"{local_uri(tmp_path)}/%H.{ending}", format=GOOD[ending][0])
    assert source.inspect([hour(0), hour(1)], TAKEN).lines == {hour(0): 0, hour(1): 0}
    assert source.lines(spark, [hour(0), hour(1)], TAKEN).count() == 0


def values(spark: "SparkSession", path: Path, format_: FileFormat, taken: dict[str, str], **more: Any) -> list[Any]:
    """The rows of a file: each column, whether it does not fit, and the text."""
    source = ArchiveFile(local_uri(path), HourRange(hour(0), hour(1)), format=format_, **more)
    found = source.inspect([hour(0)], taken)
    assert found.absent == {}
    assert found.lines is not None
    rows = source.lines(spark, [hour(0)], taken)
    times = {name: F.unix_micros(name).alias(name) for name, kind in taken.items() if kind == "timestamp"}
    got = rows.select(*(times.get(name, F.col(f"`{name}`")) for name in taken), "_unfit", "undecodable", "line").collect()
    assert len(got) == found.lines[hour(0)]
    return [tuple(row) for row in got]


def test_a_file_from_before_a_column_has_null_there_where_that_is_declared(spark: "SparkSession", tmp_path: Path) -> None:
    later = {**TAKEN, "country": "string"}
    for ending, old, new in (
        ("parquet", parquet(user=["a"]), parquet(country=["de"], user=["b"])),
        ("orc", orc(user=["a"]), orc(country=["de"], user=["b"])),
        ("avro", avro(user=["a"]), avro(country=["de"], user=["b"])),
        ("csv", csv("user", "a"), csv("country,user", "de,b")),
    ):
        folder = tmp_path / ending / f"{hour(0):%H}"
        folder.mkdir(parents=True)
        (folder / "old").write_bytes(old)
        (folder / "new").write_bytes(new)
        plain: Any = type(GOOD[ending][0])
        strict = HourlyFiles(f"{local_uri(tmp_path)}/{ending}/%H/*", format=plain())
        assert "old has no column 'country'; if it came later" in strict.inspect([hour(0)], later).absent[hour(0)]
        source = HourlyFiles(f"{local_uri(tmp_path)}/{ending}/%H/*", format=plain(added_later=("country",)))
        assert source.inspect([hour(0)], later).lines == {hour(0): 2}
        rows = source.lines(spark, [hour(0)], later).select("user", "country").collect()
        assert sorted(map(tuple, rows)) == [("a", None), ("b", "de")], ending


def test_csv_of_other_systems(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_bytes(
        b'\xef\xbb\xbfid;user\r\n1;"a;b"\r\n\r\n2;"two\r\nlines"\r\n3\r\n4;x;y\r\n'
        b'5;"say ""hi"""\r\n6;"bad" quote\r\n7;caf\xe9\r\n8;'
    )
    assert values(spark, path, Csv(";"), {"user": "string", "id": "int"}) == [
        ("a;b", 1, None, False, '1;"a;b"'),
        ("two\r\nlines", 2, None, False, '2;"two\r\nlines"'),
        (None, None, [""], False, "3"),
        (None, None, [""], False, "4;x;y"),
        ('say "hi"', 5, None, False, '5;"say ""hi"""'),
        (None, None, [""], False, '6;"bad" quote'),
        (None, None, None, True, "7;caf\xe9"),
        (None, 8, None, False, "8;"),
    ]
    path.write_bytes("id,stra\xdfe\n1,caf\xe9\n".encode("latin-1"))
    assert values(spark, path, Csv(), {"stra\xdfe": "string"}, encoding="ISO-8859-1") == [("caf\xe9", None, False, "1,caf\xe9")]


def test_parquet_of_other_systems(spark: "SparkSession", tmp_path: Path) -> None:
    moment, old = datetime(2026, 1, 1, 0, 30, 0, 123456, UTC), datetime(1500, 1, 1, tzinfo=UTC)
    table = pa.table(
        {
            "nanos": pa.array([1767227400123456789, -1], pa.timestamp("ns", "Europe/Berlin")),
            "old": pa.array([old, moment], pa.timestamp("us")),
            "day": pa.array([0, 20000], pa.date32()),
            "large": pa.array([2**63, 7], pa.uint64()),
            "price": pa.array([Decimal("12.50"), Decimal("3.00")], pa.decimal128(38, 2)),
            "user": pa.array(["a", "b"]).dictionary_encode(),
            "tags": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "a`b": [1, 2],
        }
    )
    taken = {
        "nanos": "timestamp", "old": "timestamp", "day": "timestamp", "large": "bigint", "price": "string", "user": "string",
        "tags": "string", "a`b": "int",
    }  # fmt: skip
    path = tmp_path / "events.parquet"
    pyarrow.parquet.write_table(table, path, version="2.6")
    first, second = values(spark, path, Parquet(), {name: kind for name, kind in taken.items() if name != "a`b"})
    since = int((old - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 10**6
    assert first[:8] == (1767227400123456, since, 0, None, "12.50", "a", '[["k",1]]', ["large"])
    assert json.loads(first[-1])["large"] == 2**63
    assert second == (-1, 1767227400123456, 20000 * 86_400_000_000, 7, "3.00", "b", "[]", None, False, None)
    pyarrow.parquet.write_table(table.select(["old"]), path, use_deprecated_int96_timestamps=True)
    assert [row[0] for row in values(spark, path, Parquet(), {"old": "timestamp"})] == [since, 1767227400123456]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "zstandard"])
def test_avro_of_any_codec(spark: "SparkSession", tmp_path: Path, codec: str) -> None:
    path = tmp_path / "events.avro"
    path.write_bytes(avro(codec))
    assert [row[0] for row in values(spark, path, Avro(), TAKEN)] == USERS


def container(schema: Any, codec: str, blocks: Iterable[tuple[int, bytes]]) -> bytes:
    """An Avro container by hand, of blocks that are packed already."""
    header = {
        "type": "record",
        "name": "Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
        ],
    }
    out, sync = io.BytesIO(), b"0123456789abcdef"
    meta = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
    fastavro.schemaless_writer(out, header, {"magic": b"Obj\x01", "meta": meta, "sync": sync})
    for count, data in blocks:
        fastavro.schemaless_writer(out, "long", count)
        fastavro.schemaless_writer(out, "bytes", data)
        out.write(sync)
    return out.getvalue()


def encoded(schema: Any, rows: Iterable[Any]) -> bytes:
    out = io.BytesIO()
    for row in rows:
        fastavro.schemaless_writer(out, schema, row)
    return out.getvalue()


def snappy(users: Sequence[str]) -> bytes:
    schema = {"type": "record", "name": "R", "fields": [{"name": "user", "type": "string"}]}
    blocks = []
    for start in range(0, len(users), 1000):
        rows = [{"user": user} for user in users[start : start + 1000]]
        data = encoded(schema, rows)
        blocks.append((len(rows), bytes(pa.Codec("snappy").compress(data)) + zlib.crc32(data).to_bytes(4, "big")))
    return container(schema, "snappy", blocks)


def test_avro_packed_by_snappy(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "events.avro"
    path.write_bytes(snappy(USERS))
    assert [row[0] for row in values(spark, path, Avro(), TAKEN)] == USERS
    path.write_bytes(flipped(path.read_bytes(), 500))
    (why,) = ArchiveFile(local_uri(path), HourRange(hour(0), hour(1)), format=Avro()).inspect([hour(0)], TAKEN).absent.values()
    assert "cannot be read to its end as Avro" in why


def test_times_of_avro_may_be_beyond_the_years_of_python(spark: "SparkSession", tmp_path: Path) -> None:
    units = {
        "timestamp-millis": 10**15,
        "timestamp-micros": 10**18,
        "timestamp-nanos": 2**62,
        "local-timestamp-micros": -(2**62),
    }
    names = {unit.replace("-", "_"): value for unit, value in units.items()}
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}

    def schema(**logical: str) -> Any:
        fields: list[Any] = [
            {"name": name, "type": ["null", {"type": "long", **({"logicalType": unit} if logical else {})}]}
            for name, unit in zip(names, units, strict=True)
        ]
        fields += [{"name": "day", "type": {"type": "int", **logical}}, {"name": "price", "type": price}]
        return {"type": "record", "name": "R", "fields": fields}

    # Encoded as plain numbers: the writer, too, knows no more years than Python.
    rows = [
        {**names, "day": 2**31 - 1, "price": Decimal("1.50")},
        {**dict.fromkeys(names, 10**6), "day": 1, "price": Decimal(2)},
    ]
    path = tmp_path / "events.avro"
    path.write_bytes(container(schema(logicalType="date"), "null", [(2, encoded(schema(), rows))]))
    first, second = values(spark, path, Avro(), {**dict.fromkeys([*names, "day"], "timestamp"), "price": "string"})
    assert first[:6] == (None, None, 2**62 // 1000, None, None, "1.50")
    assert set(first[-3]) == {"timestamp_millis", "timestamp_micros", "local_timestamp_micros", "day"}
    assert second[:7] == (10**9, 10**6, 1000, 10**6, 86_400 * 10**6, "2.00", None)


def test_bombs_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((avro_container, "MOST_UNPACKED"), (csv_files, "MOST_UNPACKED")):
        monkeypatch.setattr(module, name, 1 << 20)
    monkeypatch.setattr("backfill_platform.adapters.files.contents.MOST_UNPACKED", 1 << 20)
    same = ["x" * 1000] * 20_000
    for name, data, format_ in (
        ("deflate", avro("deflate", user=["x" * (2 << 20)]), Avro()),
        ("xz", avro("xz", user=["x" * (2 << 20)]), Avro()),
        ("bzip2", avro("bzip2", user=["x" * (2 << 20)]), Avro()),
        ("zstandard", avro("zstandard", user=["x" * (2 << 20)]), Avro()),
        ("snappy", snappy(["x" * (1 << 20)]), Avro()),
        ("csv.gz", gzip.compress(csv("user", *same)), Csv()),
        ("parquet", _plain_parquet(same), Parquet()),
    ):
        path = tmp_path / f"bomb.{name}"
        path.write_bytes(data)
        source = ArchiveFile(local_uri(path), HourRange(hour(0), hour(1)), format=format_)
        (why,) = source.inspect([hour(0)], TAKEN).absent.values()
        assert "unpack" in why or "MiB" in why, name


def _plain_parquet(values: list[str]) -> bytes:
    data = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"user": values}), data, compression="zstd", use_dictionary=False)
    return data.getvalue()


def test_a_parser_gets_the_own_columns_of_the_records(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / f"{hour(0):%H}").mkdir()
    (tmp_path / f"{hour(0):%H}" / "1").write_bytes(parquet(userId=["a"], n=[1], at=pa.array([0], pa.timestamp("ms"))))
    (tmp_path / f"{hour(0):%H}" / "2").write_bytes(parquet(n=["x"], more=[0.5]))
    source = HourlyFiles(local_uri(tmp_path) + "/%H/", format=Parquet())
    assert source.inspect([hour(0)]).lines == {hour(0): 2}
    rows = source.lines(spark, [hour(0)])
    kinds = {name: kind for name, kind in rows.dtypes if name not in ("line", "undecodable", "file_hour", "_unfit")}
    assert kinds == {"userId": "string", "n": "string", "at": "timestamp", "more": "double"}
    assert sorted(map(tuple, rows.select("n", "userId", "more").collect())) == [("1", "a", None), ("x", None, 0.5)]
    (tmp_path / f"{hour(0):%H}" / "3").write_bytes(parquet(line=["x"]))
    with pytest.raises(SpecError, match="the records have a column named line"):
        source.lines(spark, [hour(0)])
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"a": 1}\n')
    archive = ArchiveFile(local_uri(lines), HourRange(hour(0), hour(1)), format=JsonLines())
    assert [row["line"] for row in archive.lines(spark, []).collect()] == ['{"a": 1}']


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(SpecError, match="the format Csv needs none"):
        HourlyFiles("%H", format=Csv(), header="a,b")
    with pytest.raises(SpecError, match="the format Parquet has an encoding of its own"):
        HourlyFiles("%H", format=Parquet(), encoding="ISO-8859-1")
    with pytest.raises(SpecError, match="the delimiter"):
        Csv("||")


def test_deeply_nested_json_is_a_record_or_none_whatever_stands_beside_it(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    deep, flat = '{"user": "a", "x": ' + "[" * 100_000 + "]" * 100_000 + "}", '{"user": "b"}'
    for lines in ([deep], [deep, flat], [flat, deep, "{}"]):
        path.write_text("".join(line + "\n" for line in lines))
        got = {row[-1]: row[:2] for row in values(spark, path, JsonLines(), TAKEN)}
        assert got[deep] == (None, [""])
        assert got.get(flat, ("b", None)) == ("b", None)


def test_numbers_that_json_does_not_have_make_no_record(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for number in ("NaN", "Infinity", "-Inf", "01", "+1", ".5", "1e"):
        path.write_text('{"user": "a", "x": ' + number + "}\n")
        assert [row[:2] for row in values(spark, path, JsonLines(), TAKEN)] == [(None, [""])], number


def test_a_line_with_two_objects_is_no_record(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"user": "a"}{"user": "b"}\n\n{"user": "c"}\n')
    assert [row[:2] for row in values(spark, path, JsonLines(), TAKEN)] == [(None, [""]), (None, [""]), ("c", None)]
    path.write_text('{"user": "a"}{"user": "b"}\n{"user": "c"}\n')
    assert [row[:2] for row in values(spark, path, JsonLines(), TAKEN)] == [(None, [""]), ("c", None)]
