"""The ledger: appended to, never changed, and read once per attempt and hour."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.state.ledger import Ledger, LedgerEntry
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform_tests.adapters.clickhouse.visits import ELEVEN, MIDNIGHT, TEN, TWELVE, attempt

NOON = datetime.fromisoformat("1998-05-01T12:00:00.123457+00:00")


@pytest.fixture
def ledger(warehouse: Warehouse) -> Ledger:
    return Ledger(warehouse)


@pytest.fixture
def entry() -> LedgerEntry:
    """An hour that was published; its pipeline is of this test alone."""
    return LedgerEntry(
        repair_id="r19980501t120000_1f2e3d",
        attempt_id="r19980501t120000_1f2e3d_1",
        pipeline=f"pipeline_{attempt()}_{id(object())}",
        target="transformed/visits",
        hour=TEN,
        mode="publish",
        status="published",
        before=Fingerprint(3, 2**64 - 1),
        desired=Fingerprint(4, 7),
        after=Fingerprint(4, 7),
        cancels=1,
        states=2,
        untouched=2,
        rows_read=900,
        rows_quarantined=0,
        reason="a broker was down; it's \\ 'quoted'",
        requester="ada",
        code_version="1f2e3d",
        server_version="26.9.2.1",
        schema_hash="0123456789abcdef",
        started_at=NOON - timedelta(minutes=1),
        finished_at=NOON,
    )


def test_what_was_appended_is_read(ledger: Ledger, entry: LedgerEntry) -> None:
    refused = replace(
        entry, hour=ELEVEN, status="refused", before=None, desired=None, after=None, rows_read=None, rows_quarantined=None
    )
    ledger.append([entry, refused])
    assert set(ledger.read(pipeline=entry.pipeline)) == {entry, refused}


def test_entries_are_read_newest_first_up_to_the_limit(ledger: Ledger, entry: LedgerEntry) -> None:
    later = [replace(entry, attempt_id=f"a{number}", finished_at=NOON + timedelta(hours=number)) for number in range(5)]
    ledger.append(later[::2])
    ledger.append(later[1::2])
    assert ledger.read(pipeline=entry.pipeline, limit=3) == later[:1:-1]


def test_hours_are_half_open_and_need_not_be_neighbours(ledger: Ledger, entry: LedgerEntry) -> None:
    ledger.append(replace(entry, hour=hour) for hour in (TEN, ELEVEN, TWELVE, MIDNIGHT))
    entries = ledger.read(pipeline=entry.pipeline, hours=[TEN, TWELVE])
    assert {entry_.hour for entry_ in entries} == {TEN, TWELVE}
    assert ledger.read(pipeline=entry.pipeline, hours=[]) == []


def test_an_entry_that_was_appended_twice_is_read_once(warehouse: Warehouse, ledger: Ledger, entry: LedgerEntry) -> None:
    """The newer one counts; both stay visible in the table."""
    again = replace(entry, status="unchanged", finished_at=NOON + timedelta(seconds=1))
    ledger.append([entry, entry])
    ledger.append([again])
    assert ledger.read(pipeline=entry.pipeline) == [again]
    counted = warehouse.rows(
        "SELECT count() FROM backfill.ledger WHERE pipeline = {pipeline:String}",
        parameters={"pipeline": entry.pipeline},
        doing="counting",
    )
    assert counted == [(3,)]


def test_a_dry_run_and_a_publish_of_one_attempt_are_two_entries(ledger: Ledger, entry: LedgerEntry) -> None:
    ledger.append([entry, replace(entry, mode="dry-run", status="proven")])
    assert {each.mode for each in ledger.read(pipeline=entry.pipeline)} == {"publish", "dry-run"}


def test_the_last_publish_is_the_newest_verified_entry_that_can_be_compared(ledger: Ledger, entry: LedgerEntry) -> None:
    first = replace(entry, target=f"transformed/{entry.pipeline}", input_digest="abc")
    newer = replace(first, attempt_id="a2", desired=Fingerprint(5, 8), finished_at=NOON + timedelta(hours=1))
    refused = replace(
        newer, attempt_id="a3", status="refused", desired=Fingerprint(9, 9), after=None, finished_at=NOON + timedelta(hours=2)
    )
    elsewhere = replace(newer, hour=ELEVEN, server_version="1")
    unknown = replace(newer, hour=TWELVE, input_digest="")
    rehearsed = replace(newer, hour=MIDNIGHT, mode="dry-run")
    older = [replace(first, hour=hour) for hour in (TEN, ELEVEN, TWELVE)]
    ledger.append([newer, refused, elsewhere, unknown, rehearsed, *older])
    versions = {"server_version": entry.server_version, "schema_hash": entry.schema_hash}
    assert ledger.published_from(first.target, [TEN, ELEVEN, TWELVE, MIDNIGHT], **versions) == {TEN: ("abc", Fingerprint(5, 8))}
    assert ledger.published_from(first.target, [ELEVEN], **versions | {"server_version": "1"}) == {
        ELEVEN: ("abc", Fingerprint(5, 8))
    }
    assert ledger.published_from(first.target, [], **versions) == {}


def test_appending_no_entries_does_nothing(ledger: Ledger) -> None:
    ledger.append([])
