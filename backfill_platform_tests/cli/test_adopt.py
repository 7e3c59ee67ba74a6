"""`backfill adopt`, on the tables of ClickHouse's public examples: what it writes runs at once, and what it cannot is said."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.catalog import load_catalog

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.preconditions import check_target
from backfill_platform.adapters.iceberg.source_table import IcebergTable
from backfill_platform.cli.main import main
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform_tests.cli.example_tables import ADOPTED, REFUSED

pytestmark = pytest.mark.whole


@pytest.fixture
def place(warehouse: Warehouse, warehouse_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder, and a database of its own in a server of the settings."""
    monkeypatch.setenv("BACKFILL_CLICKHOUSE_URL", warehouse_url)
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "state"))
    warehouse.command("DROP DATABASE IF EXISTS examples SYNC", doing="preparing")
    warehouse.command("CREATE DATABASE examples", doing="preparing")
    yield tmp_path
    warehouse.command("DROP DATABASE examples SYNC", doing="cleaning up")


def adopt(place: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["adopt", *arguments, "--folder", str(place / "adopted")])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.output.split())


def loaded(place: Path, name: str) -> Pipeline:
    path = place / "adopted" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"adopted_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Pipeline = module.pipeline
    return found


def create(warehouse: Warehouse, name: str, columns: str, clauses: str) -> None:
    warehouse.command(f"CREATE TABLE examples.{name} ({columns}) ENGINE = {clauses}", doing="preparing")


@pytest.mark.parametrize("name", ADOPTED)
def test_a_table_of_the_examples_is_adopted(warehouse: Warehouse, place: Path, name: str) -> None:
    columns, clauses, hour, key = ADOPTED[name]
    create(warehouse, name, columns, clauses)
    code, told = adopt(place, f"examples.{name}")
    assert code == 0, told
    pipeline = loaded(place, name.lower())
    (table,) = pipeline.published
    assert (table.target.hour, table.key, table.stored_in) == (hour, key, ("examples", name))
    assert table.tenant == ("tenant_id" if "tenant_id" in key else "")
    assert check_target(warehouse, table).table is table
    assert [rule.name for rule in pipeline.derived[0].rules] == [f"{pipeline.raw.event_time}: is there"]
    assert "the table is empty, so its first hour is not known" in told


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_adopted_is_refused_with_what_would_help(warehouse: Warehouse, place: Path, name: str) -> None:
    columns, clauses, says = REFUSED[name]
    create(warehouse, name, columns, clauses)
    code, told = adopt(place, f"examples.{name}")
    assert code == 2
    assert re.search(says, told), told
    assert not (place / "adopted").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("trips",), "'trips' names no table; write it like shop.orders"),
        (("default.TRIPS",), "there is no table default.TRIPS in ClickHouse; did you mean examples.trips?"),
        (("examples.trips", "--key", "nobody"), "--key: examples.trips has no column nobody; it has trip_id"),
        (("examples.trips", "--hour", "now()"), "--hour: now() is computed from none of pickup_datetime, dropoff_datetime"),
        (("examples.trips", "--sample", "nowhere.jsonl"), "--sample: nowhere.jsonl cannot be read: [Errno 2] No such file"),
        (("examples.trips", "--sample", "trips.txt"), "--sample: trips.txt should end in .csv, .json, "),
        (("examples.trips", "--from-lake", "web.trips"), "no connection is named lake"),
    ],
)
def test_a_mistake_is_told(warehouse: Warehouse, place: Path, arguments: tuple[str, ...], says: str) -> None:
    create(warehouse, "trips", *ADOPTED["trips"][:2])
    code, told = adopt(place, *arguments)
    assert (code != 0, says in told) == (True, True), told
    assert not (place / "adopted").exists()


def test_nothing_is_written_over(warehouse: Warehouse, place: Path) -> None:
    create(warehouse, "trips", *ADOPTED["trips"][:2])
    assert adopt(place, "examples.trips")[0] == 0
    (place / "adopted" / "trips.py").write_text("mine")
    assert "trips.py is there already" in adopt(place, "examples.trips")[1]
    assert (place / "adopted" / "trips.py").read_text() == "mine"


def test_rows_that_the_key_does_not_tell_apart_are_counted(warehouse: Warehouse, place: Path) -> None:
    create(warehouse, "wikistat", *ADOPTED["wikistat"][:2])
    warehouse.command(
        "INSERT INTO examples.wikistat SELECT toDateTime('2020-05-05 10:30:00'), 'de', toString(number), '/', 1 "
        "FROM numbers(3)",
        doing="preparing",
    )
    code, told = adopt(place, "examples.wikistat")
    assert code == 0
    assert "the key (time, path) does not identify a row: 2 of 3 rows have the key of another one" in told
    pipeline = loaded(place, "wikistat")
    assert (pipeline.start, pipeline.end) == (datetime(2020, 5, 5, 10, tzinfo=UTC), datetime(2020, 5, 5, 11, tzinfo=UTC))
    told = adopt(place / "again", "examples.wikistat", "--key", "project,subproject,path")[1]
    assert "does not identify" not in told


@pytest.mark.parametrize(
    "name", ["hits", *(pytest.param(name, marks=pytest.mark.slow) for name in ("github_events", "Orders", "uk_price_paid"))]
)
def test_the_test_that_is_written_passes(warehouse: Warehouse, place: Path, name: str) -> None:
    create(warehouse, name, *ADOPTED[name][:2])
    assert adopt(place, f"examples.{name}")[0] == 0
    folder = place / "adopted"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"test_{name.lower()}.py"],
        cwd=folder, env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_a_table_of_the_lake_says_which_columns_and_hours_it_has(
    warehouse: Warehouse, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/lake"}
    monkeypatch.setenv("BACKFILL_CONNECTIONS", json.dumps({"lake": connection}))
    catalog = load_catalog("lake", **connection)
    catalog.create_namespace("web")
    times = pa.array([datetime(2020, 1, 1, hour, 30, tzinfo=UTC) for hour in (5, 7)], pa.timestamp("us", "UTC"))
    rides = pa.table({"trip_id": pa.array([1, 2]), "pickup_datetime": times})
    catalog.create_table("web.trips", rides.schema).append(rides)
    create(warehouse, "trips", *ADOPTED["trips"][:2])
    code, told = adopt(place, "examples.trips", "--from-lake", "web.trips")
    assert code == 0, told
    assert "backfill plan trips --from 2020-01-01T05 --to 2020-01-01T06" in told
    pipeline = loaded(place, "trips")
    assert pipeline.source == IcebergTable("lake", "web.trips", time="pickup_datetime")
    assert (pipeline.start.hour, pipeline.end, set(pipeline.raw.taken)) == (
        5,
        datetime(2020, 1, 1, 8, tzinfo=UTC),
        {"trip_id", "pickup_datetime"},
    )
    create(warehouse, "hits", *ADOPTED["hits"][:2])
    code, told = adopt(place, "examples.hits", "--from-lake", "web.trips")
    assert (code, "the source has no column EventTime, which says the hour of a row" in told) == (2, True)


def test_a_table_with_a_sample_is_planned_and_repaired_at_once(warehouse: Warehouse, place: Path) -> None:
    """As a new user does it: adopt, plan, run, and look whether anything is missing."""
    create(warehouse, "trips", *ADOPTED["trips"][:2])
    first = datetime(2015, 7, 1, 10, tzinfo=UTC)
    trips = [
        {"trip_id": n, "pickup_datetime": f"{first + timedelta(minutes=n):%Y-%m-%d %H:%M:%S}", "fare_amount": 7.5,
         "payment_type": "CSH",
         "dropoff_datetime": f"{first + timedelta(minutes=n + 9):%Y-%m-%d %H:%M:%S}", "passenger_count": 300 if n == 7 else 1}
        for n in range(90)
    ]  # fmt: skip
    (place / "trips.jsonl").write_text("\n".join(map(json.dumps, trips)))
    code, told = adopt(place, "examples.trips", "--sample", str(place / "trips.jsonl"))
    assert code == 0, told
    assert "marked TODO in `build`: pickup_longitude, " in told
    hours = ("--from", "2015-07-01T10", "--to", "2015-07-01T12")
    environment = os.environ | {
        "BACKFILL_PIPELINES": '["trips"]',
        "PYTHONPATH": os.pathsep.join([str(place / "adopted"), *sys.path]),
        "BACKFILL_LOADING": "pull",
    }

    def backfill(*arguments: str) -> str:
        command = [sys.executable, "-m", "backfill_platform.cli", *arguments]
        done = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return " ".join(done.stdout.split())

    assert "replace, partition by partition" in backfill("plan", "trips", *hours, "--output", "json")
    backfill("run", "trips", *hours, "--reason", "adopted")
    assert warehouse.rows("SELECT count(), max(passenger_count) FROM examples.trips", doing="looking") == [(89, 1)]
    assert "no gaps in 2 hours" in backfill("gaps", "trips", *hours)
