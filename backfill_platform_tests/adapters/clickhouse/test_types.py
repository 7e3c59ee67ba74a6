"""Values of every type, from Spark through the lake's files into ClickHouse, by pull and by push: as they were, or refused."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.column_types import hashed
from backfill_platform.adapters.clickhouse.lake_files import file_fingerprints
from backfill_platform.adapters.clickhouse.publishing.leftovers import keep_foreign_rows
from backfill_platform.adapters.clickhouse.publishing.patches import load_undone
from backfill_platform.adapters.clickhouse.publishing.prepare import prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.push import arrow_type
from backfill_platform.adapters.clickhouse.publishing.staging import Loading, Staging
from backfill_platform.adapters.clickhouse.schema import create_target, schema_hash
from backfill_platform.adapters.clickhouse.sql import names, target_name
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.spark.checks import FAILED, Rules, mark_failures
from backfill_platform.adapters.spark.column_types import as_written
from backfill_platform.adapters.spark.reader import spark_schema
from backfill_platform.adapters.spark.stored_values import storable
from backfill_platform.adapters.spark.writer import write_by_hour
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.tables import Partitioning, Table
from backfill_platform.domain.uris import local_uri
from backfill_platform.errors import BackfillError
from backfill_platform_tests.adapters.clickhouse.typed import (
    TYPED,
    Row,
    canonical_row,
    misfits,
    plain_row,
    renamed,
    rows,
    stored_rows,
)
from backfill_platform_tests.adapters.clickhouse.visits import SIGN, TEN, VISITS, attempt, visit, write_live

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 60
RECORDED = 2726502039797254512  # by the code before there were more types than seven
QUICK = settings(
    max_examples=5,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
RULES = Rules(tuple(storable(TYPED)), (), (), {})


@pytest.fixture
def table(warehouse: Warehouse) -> Iterator[Table]:
    """An empty target with a column of every type."""
    made = renamed(f"typed_{attempt()}")
    create_target(warehouse, made)
    yield made
    warehouse.command(f"DROP TABLE {target_name(made)} SYNC", doing="cleaning up")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("typed_lake")
    return Lake(f"sqlite:///{folder}/catalog.db", local_uri(folder))


def frame_of(spark: "SparkSession", rows: Sequence[Row]) -> "DataFrame":
    schema = spark_schema(TYPED)
    return spark.createDataFrame([tuple(one[name] for name in schema.names) for one in rows], schema)


def in_lake(lake: Lake, table: Table, rows: "DataFrame") -> list[str]:
    """The rows on `main` of the lake; the URIs of their files."""
    lake.ensure(table)
    branch = attempt()
    files = write_by_hour(as_written(rows, table), lake.data_uri(table, branch), hour="hour", sort_by=("n",))
    lake.stage(table, branch, [TEN], files)
    lake.promote(table, branch, [TEN])
    return [file.uri for file in lake.files(table, [TEN])]


def loaded(warehouse: Warehouse, table: Table, uris: list[str], rows: int, loading: Loading) -> tuple[Any, Fingerprint]:
    """What is staged of the files, and its fingerprint."""
    with Staging(warehouse, table, attempt(), [TEN], exclusive=False) as staging:
        staging.load_files(uris, {TEN: rows}, loading)
        prints = fingerprints.states(warehouse, table, [TEN], source=staging.desired)
        return stored_rows(warehouse, staging.desired), prints[TEN]


@QUICK
@given(drawn=rows(ROWS))
def test_what_fits_arrives_bit_by_bit_and_what_does_not_is_set_aside(
    spark: "SparkSession", warehouse: Warehouse, lake: Lake, table: Table, drawn: list[Row]
) -> None:
    marked = mark_failures(frame_of(spark, drawn), RULES).cache()
    said = {one["n"]: {name.partition(":")[0] for name in one[FAILED]} for one in marked.select("n", FAILED).collect()}
    assert said == {one["n"]: misfits(one) for one in drawn}
    good = [one for one in drawn if not misfits(one)]
    uris = in_lake(lake, table, marked.where(f"size({FAILED}) = 0").drop(FAILED))
    marked.unpersist()
    wanted = Counter(map(canonical_row, good))
    pulled, pulled_print = loaded(warehouse, table, uris, len(good), Loading.PULL)
    assert pulled == wanted
    pushed, pushed_print = loaded(warehouse, table, uris, len(good), Loading.PUSH)
    assert pushed == wanted
    assert pulled_print == pushed_print
    for loading in Loading:
        assert file_fingerprints(warehouse, table, [TEN], uris, loading) == {TEN: pulled_print}


# --- the load itself, of files that nobody has checked ---

DAY = datetime(2024, 2, 29, tzinfo=UTC)
MISFITS: list[tuple[str, Any]] = [
    ("u8", 256), ("u8", -1), ("u16", 65536), ("u32", 2**32), ("u64", -1), ("u64_all", Decimal(2**64)), ("i8", 128),
    ("i16", -32769), ("money_short", Decimal("0.0010")), ("money_short", Decimal("10000000.00")),
    ("money_shifted", Decimal(10**30)), ("share", Decimal("0.00001")), ("share", Decimal("0.12000")), ("id", "no uuid"),
    ("id", "A" * 8 + str(UUID(int=1))[8:]), ("status", "old"), ("code", "ab"), ("code", "abcd"), ("day", date(1899, 12, 31)),
    ("day", date(2300, 1, 1)), ("day_short", date(1969, 12, 31)), ("day_short", date(2149, 6, 7)),
    ("at_second", DAY.replace(microsecond=1)), ("at_second", datetime(1969, 12, 31, tzinfo=UTC)),
    ("at_second", datetime(2106, 2, 8, tzinfo=UTC)), ("at_milli", DAY.replace(microsecond=1001)),
    ("at_nano", datetime(2300, 1, 1, tzinfo=UTC)), ("at_day", DAY.replace(hour=1)), ("sizes", [1, 256]), ("sizes", [1, None]),
    ("ids", [None, "x"]), ("small", {1: 256}), ("small", {-1: 1}), ("small", {1: None}),
    ("thing", {"size": 1, "name": "x", "on": date(1899, 1, 1)}), ("things", [{"size": 70000, "name": "x", "on": DAY.date()}]),
    ("things", [{"size": 1, "name": None, "on": DAY.date()}]), ("things", [{"size": 1, "name": "x", "on": date(1969, 1, 1)}]),
]  # fmt: skip


def unchecked(folder: Path, rows_: Sequence[Row]) -> list[str]:
    """A file of rows that went through no checks."""
    schema = pa.schema([(column.name, arrow_type(column.type)) for column in TYPED.columns])
    pq.write_table(pa.Table.from_pylist(list(rows_), schema), folder / "rows.parquet")
    return [local_uri(folder / "rows.parquet")]


def test_a_value_that_does_not_fit_is_refused_by_the_load(warehouse: Warehouse, table: Table, tmp_path: Path) -> None:
    """As where hours were built before a column was given its stored type."""
    for name, value in MISFITS:
        bad = plain_row(1, **{name: value})
        assert misfits(bad) == {name}
        uris = unchecked(tmp_path, [plain_row(0), bad])
        for loading in Loading:
            with Staging(warehouse, table, attempt(), [TEN], exclusive=False) as staging:
                with pytest.raises(BackfillError) as refusal:
                    staging.load_files(uris, {TEN: 2}, loading)
                if not isinstance(value, dict | list) or None not in _leaves(value):
                    assert f"a value of column {name} cannot be stored as" in str(refusal.value), (name, value, loading)
                assert stored_rows(warehouse, staging.desired) == Counter()


@pytest.mark.parametrize("lacking", ["tags", "counts", "thing", "n"])
def test_a_file_without_a_required_column_is_refused_by_the_load(
    warehouse: Warehouse, table: Table, tmp_path: Path, lacking: str
) -> None:
    """ClickHouse would take an array or a map that is not there for an empty one."""
    (uri,) = unchecked(tmp_path, [plain_row(0)])
    path = uri.removeprefix("file://")
    pq.write_table(pq.read_table(path).drop_columns([lacking]), path)
    for loading in Loading:
        with Staging(warehouse, table, attempt(), [TEN], exclusive=False) as staging:
            with pytest.raises(BackfillError, match=lacking):
                staging.load_files([uri], {TEN: 1}, loading)
            assert stored_rows(warehouse, staging.desired) == Counter()


def _leaves(value: Any) -> list[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if parts is None else [leaf for part in parts for leaf in _leaves(part)]


# --- fingerprints ---

ALIKE: dict[str, list[Any]] = {
    "tags": [[], [None], [""], [None, None], ["", None], [None, ""], ["", ""], ["a", "b"], ["ab"], ["ab", ""], ["", "ab"]],
    "sizes": [[], [0], [0, 0], [1]],
    "grid": [[], [[]], [[], []], [[0.0]], [[-0.0]], [[None]], [[math.nan]], [[0.0], []], [[], [0.0]], [[0.0, 0.0]]],
    "counts": [{}, {"a": None}, {"a": 0}, {"": 0}, {"a": 0, "b": 1}, {"a": 1, "b": 0}, {"ab": 0}],
    "lists": [{}, {"a": []}, {"a": [None]}, {"a": [""]}, {"a": [], "b": [""]}, {"a": [""], "b": []}],
    "thing": [{"size": s, "name": n, "on": None} for s in (None, 0) for n in (None, "", "0")],
    "many": [[], [{}], [{}, {}], [{"a": None}], [{"a": 0}], [{"a": 0}, {}], [{}, {"a": 0}]],
    "double": [None, 0.0, -0.0, math.nan, math.inf],
    "single": [None, 0.0, -0.0, math.nan],
    "text": [None, "", "0"],
    "document": ['{"a":1,"b":2}', '{"b":2,"a":1}', '{"a": 1,"b":2}', ""],
    "money": [None, Decimal("0.0000"), Decimal("0.0001")],
    "id": [None, "00000000-0000-0000-0000-000000000000"],
    "day": [None, date(1970, 1, 1)],
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_rows_that_look_alike_have_different_fingerprints(
    warehouse: Warehouse, table: Table, tmp_path: Path, name: str
) -> None:
    found = {}
    rows_ = [plain_row(number, **{name: value}) for number, value in enumerate(ALIKE[name])]
    with Staging(warehouse, table, attempt(), [TEN], exclusive=False) as staging:
        staging.load_files(unchecked(tmp_path, rows_), {TEN: len(rows_)})
        for column in ("cityHash64", "xxh3"):
            hashes = warehouse.rows(
                f"SELECT {column}(tuple({hashed(table.column(name))})) FROM {staging.desired}", doing="hashing"
            )
            found[column] = len(set(hashes))
    assert found == {"cityHash64": len(rows_), "xxh3": len(rows_)}


def test_entries_of_maps_in_another_order_are_no_difference(warehouse: Warehouse, table: Table, tmp_path: Path) -> None:
    """As a live writer may have written them."""
    row_ = plain_row(0, counts={"a": 1, "b": 2}, lists={"x": ["1"], "y": []}, many=[{"a": 1, "b": None}, {}])
    publish_rows(warehouse, table, [row_], tmp_path)
    warehouse.command(f"TRUNCATE TABLE {target_name(table)}", doing="damaging")
    columns = [name for name in table.column_names if name not in ("counts", "lists", "many")]
    with Staging(warehouse, table, attempt(), [TEN], exclusive=False) as staging:
        staging.load_files(unchecked(tmp_path, [row_]), {TEN: 1})
        warehouse.command(
            f"INSERT INTO {target_name(table)} ({names(columns)}, counts, lists, many, {SIGN}) SELECT {names(columns)}, "
            f"map('b', 2, 'a', 1), map('y', [], 'x', ['1']), [map('b', NULL, 'a', 1), map()], 1 FROM {staging.desired}",
            doing="writing maps in another order",
        )
    assert publish_rows(warehouse, table, [row_], tmp_path)[0] == {"unchanged"}


def test_schema_hashes_and_fingerprints_of_older_tables_are_what_they_were(warehouse: Warehouse, visits: Table) -> None:
    """They are in ledgers and patches: were they others, all hours would be compared anew, or never match."""
    recorded = {Partitioning.DAY: "6873a889cc8823dc", Partitioning.HOUR: "aa2560b26afd84b7"}
    assert {how: schema_hash(replace(VISITS, partitioning=how)) for how in Partitioning if how in recorded} == recorded
    write_live(warehouse, visits, [visit(TEN, "ada"), visit(TEN, "bob", score=None, country=None, revenue=-1)])
    assert fingerprints.net(warehouse, visits, [TEN])[TEN] == Fingerprint(2, RECORDED)


# --- a repair ---


def publish_rows(warehouse: Warehouse, table: Table, rows_: Sequence[Row], folder: Path) -> tuple[set[str], str]:
    """Make the hour hold exactly the rows; what became of it, and the name of the attempt."""
    name = attempt()
    with Staging(warehouse, table, name, [TEN]) as staging:
        staging.load_files(unchecked(folder, rows_), {TEN: len(rows_)})
        prepared = prepare(staging, [TEN])
        return {str(result.status) for result in publish(prepared)}, name


@QUICK
@given(drawn=rows(ROWS))
def test_damage_of_any_type_is_found_repaired_and_undone(
    warehouse: Warehouse, table: Table, tmp_path: Path, drawn: list[Row]
) -> None:
    good = [one for one in drawn if not misfits(one)]
    half = len(good) // 2
    damaged = [{**one, "n": other["n"]} for one, other in zip([*good[half:], *good[:half]], good, strict=True)]
    publish_rows(warehouse, table, good, tmp_path)
    wanted, other = Counter(map(canonical_row, good)), Counter(map(canonical_row, damaged))
    final = f"{target_name(table)} FINAL"
    assert stored_rows(warehouse, final) == wanted
    status, name = publish_rows(warehouse, table, damaged, tmp_path)
    assert status <= {"published", "unchanged"}
    assert stored_rows(warehouse, final) == other
    with Staging(warehouse, table, attempt(), [TEN]) as staging:
        if wanted != other:
            load_undone(staging, name, [TEN])
            publish(prepare(staging, [TEN]))
    assert stored_rows(warehouse, final) == wanted
    assert publish_rows(warehouse, table, good, tmp_path)[0] == {"unchanged"}


def test_a_difference_is_told_for_every_type(warehouse: Warehouse, table: Table, tmp_path: Path) -> None:
    new = {"money": Decimal("1.5000"), "u8": 200, "single": 0.5, "counts": {"a": 1}, "tags": ["x"], "id": str(UUID(int=7))}
    publish_rows(warehouse, table, [plain_row(0)], tmp_path)
    with Staging(warehouse, table, attempt(), [TEN], exclusive=False) as staging:
        staging.load_files(unchecked(tmp_path, [plain_row(0, **new)]), {TEN: 1})
        diff = prepare(staging, [TEN]).diffs[TEN]
    assert {change.column for change in diff.columns} == set(new)
    assert {effect.column: effect.after for effect in diff.effects} == {"money": 1.5, "u8": 200, "single": 0.5}
    (sample,) = diff.samples
    assert sample.old
    assert sample.new
    assert {name: sample.new[name] for name in new if sample.old[name] != sample.new[name]} == {**new, "id": UUID(int=7)}


def test_what_a_live_writer_wrote_meanwhile_is_noted_in_every_type(warehouse: Warehouse, table: Table, tmp_path: Path) -> None:
    ours = [plain_row(0, counts={"a": 1, "b": None}), plain_row(1, tags=["x", None], double=math.nan), plain_row(2)]
    theirs = plain_row(3, counts={"a": 1}, grid=[[-0.0], []], thing={"size": 1, "name": None, "on": None}, id=str(UUID(int=3)))
    publish_rows(warehouse, table, [ours[0], ours[1], theirs], tmp_path)
    with Staging(warehouse, table, attempt(), [TEN]) as staging:
        staging.load_files(unchecked(tmp_path, ours), {TEN: 3})
        foreign = f"backfill_patches.`{staging.patch_name}_foreign`"
        keep_foreign_rows(staging, [TEN], desired=staging.desired, patch_name=staging.patch_name)
        assert stored_rows(warehouse, foreign, f"{SIGN} = 1") == Counter([canonical_row(theirs)])
        assert stored_rows(warehouse, foreign, f"{SIGN} = -1") == Counter([canonical_row(ours[2])])
        warehouse.command(f"DROP TABLE {foreign} SYNC", doing="cleaning up")
