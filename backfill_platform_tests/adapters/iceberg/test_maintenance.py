"""Maintenance of a lake table: what goes, what stays, and what a reader, a repair and a crash see of it."""

import os
import random
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill_platform.adapters.iceberg.changes import MAIN
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.iceberg.maintenance import Needed, find_unneeded, remove_unneeded
from backfill_platform.domain.tables import Table
from backfill_platform.domain.uris import local_path, local_uri
from backfill_platform_tests.adapters.iceberg.test_lake import TABLE, Writer
from backfill_platform_tests.events import hour

LATER = timedelta(days=1)  # nothing is younger than this from now


def needed(*at_work: str, until: datetime | None = None) -> Needed:
    return Needed(until or datetime.now(UTC) + LATER, at_work=lambda: at_work)


@pytest.fixture
def table(lake: Lake) -> Table:
    lake.ensure(TABLE)
    return TABLE


class AttemptWriter(Writer):
    """Writes files as a repair does: below the folder of its name."""

    def __init__(self, lake: Lake, attempt: str) -> None:
        folder = Path(local_path(lake.data_uri(TABLE, attempt)) or "")
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder)
        self.count = len(list(folder.iterdir()))


def stored(lake: Lake) -> set[Path]:
    root = Path(local_path(lake.root_uri) or "")
    return {path for path in root.rglob("*") if path.is_file()}


def snapshots(lake: Lake) -> int:
    loaded = lake.load(TABLE)
    assert loaded is not None
    return len(loaded.metadata.snapshots)


def rows(lake: Lake) -> Counter[tuple[datetime, int]]:
    found = lake.read(TABLE, ("ingestion_hour", "n"), "n >= 0")
    return Counter((row["ingestion_hour"], row["n"]) for row in found.to_pylist())


def repair(lake: Lake, name: str, hours: dict[int, int], *, promote: bool = True) -> None:
    """Replace hours by so many rows."""
    write = AttemptWriter(lake, name)
    files = {hour(n): write(hour(n), count) for n, count in hours.items()}
    lake.stage(TABLE, name, list(files), files)
    if promote:
        lake.promote(TABLE, name, list(files))


def test_what_was_replaced_goes_and_the_rows_stay(lake: Lake, table: Table) -> None:
    for number in range(5):
        repair(lake, f"r{number}", {0: 10 + number, 1: 20 + number})
    before, files = rows(lake), stored(lake)
    found = find_unneeded(lake, table, needed())
    assert stored(lake) == files, "finding changes nothing"
    done = remove_unneeded(lake, table, needed())
    assert (done.snapshots, done.bytes, done.branches) == (found.snapshots, found.bytes, frozenset())
    assert sum(path.suffix == ".parquet" for path in stored(lake)) == 2, "of ten files that were written"
    assert snapshots(lake) == 1
    assert rows(lake) == before
    assert not (Path(local_path(lake.root_uri) or "") / "data/raw/events/r0").exists(), "empty folders go, too"
    assert remove_unneeded(lake, table, needed()).snapshots == ()


def test_what_is_young_stays(lake: Lake, table: Table) -> None:
    repair(lake, "r1", {0: 10})
    now = datetime.now(UTC)
    repair(lake, "r2", {0: 11})
    done = remove_unneeded(lake, table, needed(until=now))
    assert len(done.snapshots) == 1, "the first, empty one"
    assert sum(path.suffix == ".parquet" for path in stored(lake)) == 2, "who began before the second may read the first"


def test_a_reader_of_an_older_snapshot_that_is_needed_still_reads_it(lake: Lake, table: Table) -> None:
    repair(lake, "r1", {0: 10})
    old = lake.snapshot(table)
    assert old is not None
    repair(lake, "r2", {0: 11})
    remove_unneeded(lake, table, Needed(datetime.now(UTC) + LATER, {old}))
    loaded = lake.load(table)
    assert loaded is not None
    assert loaded.scan(snapshot_id=old).to_arrow().num_rows == 10


def test_a_repair_at_work_keeps_its_branch_and_its_files(lake: Lake, table: Table) -> None:
    repair(lake, "r1", {0: 10})
    repair(lake, "dead", {0: 12}, promote=False)
    repair(lake, "alive", {0: 11}, promote=False)
    writing = AttemptWriter(lake, "alive")(hour(1), 3)  # of which no branch knows yet
    done = remove_unneeded(lake, table, needed("alive"))
    assert done.branches == {"dead"}
    assert Path(local_path(writing[0]) or "").exists()
    lake.promote(table, "alive", [hour(0)])
    assert lake.rows_by_hour(table) == {hour(0): 11}


def test_files_that_a_killed_process_left_are_found_by_their_age(lake: Lake, table: Table) -> None:
    repair(lake, "r1", {0: 10})
    (uri,) = AttemptWriter(lake, "killed")(hour(1), 3)
    orphan = Path(local_path(uri) or "")
    now = datetime.now(UTC)
    assert remove_unneeded(lake, table, needed(until=now - LATER)).files == ()
    old = (now - 2 * LATER).timestamp()
    os.utime(orphan, (old, old))
    done = remove_unneeded(lake, table, needed(until=now - LATER))
    assert [file.path for file in done.files] == [str(orphan)]
    assert not orphan.exists()


def test_files_of_others_stay(lake: Lake, table: Table) -> None:
    repair(lake, "r1", {0: 10})
    readme = Path(local_path(lake.data_uri(table, "r1")) or "") / "README"
    readme.write_text("mine")
    remove_unneeded(lake, table, needed())
    assert readme.exists()


def test_a_death_before_the_files_go_is_made_good_the_next_time(
    lake: Lake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backfill_platform.adapters.iceberg import maintenance

    for number in range(3):
        repair(lake, f"r{number}", {0: 10 + number})
    with monkeypatch.context() as patched:
        patched.setattr(maintenance, "_delete", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            remove_unneeded(lake, table, needed())
    assert snapshots(lake) == 1
    assert lake.rows_by_hour(table) == {hour(0): 12}
    remove_unneeded(lake, table, needed())
    assert sum(path.suffix == ".parquet" for path in stored(lake)) == 1


def test_a_branch_that_comes_to_life_again_is_not_dropped(lake: Lake, table: Table) -> None:
    repair(lake, "r1", {0: 10}, promote=False)
    answers = iter([()])
    done = remove_unneeded(lake, table, Needed(datetime.now(UTC) + LATER, at_work=lambda: next(answers, ("r1",))))
    assert done.branches == frozenset()
    lake.promote(table, "r1", [hour(0)])
    assert sum(rows(lake).values()) == 10


def test_commits_of_others_meanwhile_are_kept(lake: Lake, table: Table) -> None:
    """A repair commits between the look and the removal."""
    repair(lake, "r1", {0: 10})
    repair(lake, "r2", {0: 11})
    asked = 0

    def at_work() -> tuple[str, ...]:
        nonlocal asked
        asked += 1
        if asked == 1:
            repair(lake, "r3", {0: 12, 1: 5})
        return ()

    remove_unneeded(lake, table, Needed(datetime.now(UTC) + LATER, at_work=at_work))
    assert lake.rows_by_hour(table) == {hour(0): 12, hour(1): 5}
    assert sum(rows(lake).values()) == 17


def test_a_branch_takes_its_metadata_along(lake: Lake, table: Table) -> None:
    repair(lake, "r1", {0: 10})
    before = {path for path in stored(lake) if path.suffix == ".avro"}
    repair(lake, "dead", {0: 11, 1: 3}, promote=False)
    lake.drop_branch(table, "dead")
    assert {path for path in stored(lake) if path.suffix == ".avro"} == before
    assert lake.rows_by_hour(table) == {hour(0): 10}
    assert sum(rows(lake).values()) == 10


def test_a_look_while_a_branch_goes_looks_again(lake: Lake, table: Table) -> None:
    """Its metadata is read after the branch was listed, and is gone by then."""
    repair(lake, "r1", {0: 10})
    repair(lake, "r2", {0: 11}, promote=False)
    loaded, load = [0], lake.load

    def load_and_drop(of: Table) -> Any:
        found = load(of)
        loaded[0] += 1
        if loaded[0] == 2:
            lake.drop_branch(table, "r2")
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lake, "load", load_and_drop)
        assert find_unneeded(lake, table, needed("r2")).branches == frozenset()
    assert loaded[0] > 2, "it has looked again"


def test_metadata_is_bounded_however_many_commits_there_were(lake: Lake, table: Table) -> None:
    for number in range(30):
        repair(lake, f"r{number}", {number % 3: 10 + number})
    remove_unneeded(lake, table, needed())
    metadata = [path for path in stored(lake) if path.name.endswith((".avro", ".metadata.json"))]
    assert len([path for path in metadata if path.name.endswith(".metadata.json")]) <= 6
    assert len(metadata) <= 12


def test_a_table_that_does_not_exist_needs_nothing(lake: Lake) -> None:
    assert remove_unneeded(lake, TABLE, needed()).bytes == 0


_MOVES = st.lists(
    st.tuples(st.sampled_from(["repair", "stage", "discard", "lose", "maintain"]), st.integers(0, 3), st.integers(1, 9)),
    max_size=14,
)


@pytest.mark.whole
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=_MOVES, seed=st.integers(0, 1000))
def test_no_history_of_repairs_and_maintenance_loses_a_row(
    tmp_path: Path, moves: list[tuple[str, int, int]], seed: int
) -> None:
    """The oracle is a dictionary of hours; branches are alive with a chance of a half."""
    chance = random.Random(seed)
    shutil.rmtree(tmp_path / "lake", ignore_errors=True)
    (tmp_path / "lake").mkdir()
    lake = Lake(f"sqlite:///{tmp_path}/lake/catalog.db", local_uri(tmp_path / "lake"))
    lake.ensure(TABLE)
    oracle: dict[datetime, int] = {}
    open_: dict[str, tuple[int, int]] = {}
    for number, (move, at, count) in enumerate(moves):
        name = f"r{number}"
        if move == "repair":
            repair(lake, name, {at: count})
            oracle[hour(at)] = count
        elif move == "stage":
            repair(lake, name, {at: count}, promote=False)
            open_[name] = at, count
        elif move == "discard" and open_:
            gone = chance.choice(sorted(open_))
            lake.discard(TABLE, gone, gone)
            del open_[gone]
        elif move == "lose":
            lake.remove_hours(TABLE, [hour(at)])
            oracle.pop(hour(at), None)
        elif move == "maintain":
            alive = {one for one in open_ if chance.random() < 0.5}
            remove_unneeded(lake, TABLE, needed(*alive))
            open_ = {one: open_[one] for one in alive}
        assert lake.rows_by_hour(TABLE) == oracle
    for name, (at, count) in open_.items():
        lake.promote(TABLE, name, [hour(at)])
        oracle[hour(at)] = count
    assert lake.rows_by_hour(TABLE) == oracle
    assert Counter(when for when, _ in rows(lake).elements()) == oracle, "every file can be read"
    assert lake.snapshot(TABLE, branch=MAIN) is not None


def test_only_times_and_flags_have_bounds_also_in_tables_that_were_made_before(lake: Lake, table: Table) -> None:
    """Files hold all rows of an hour, so bounds of other columns tell nothing; they are a fifth of the metadata."""

    def bounded() -> list[set[str]]:
        loaded = lake.load(table)
        assert loaded is not None
        names = {field.field_id: field.name for field in loaded.schema().fields}
        return [{names[one] for one in task.file.lower_bounds} for task in loaded.scan().plan_files()]

    repair(lake, "r1", {0: 10})
    assert bounded() == [{"ingestion_hour", "event_time"}]
    loaded = lake.load(table)
    assert loaded is not None
    with loaded.transaction() as transaction:
        transaction.remove_properties(*(name for name in loaded.properties if name.startswith("write.metadata.metrics")))
    repair(lake, "r2", {0: 11})
    assert bounded() == [{"ingestion_hour", "event_time", "n"}], "as a table of an earlier version"
    remove_unneeded(lake, table, needed())
    repair(lake, "r3", {0: 12})
    assert bounded() == [{"ingestion_hour", "event_time"}]
