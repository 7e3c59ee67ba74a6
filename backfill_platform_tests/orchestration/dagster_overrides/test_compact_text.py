"""Texts of events come back as they were written, packed or not, in either storage."""

import hashlib
import sqlite3
from importlib.resources import files

import pytest
import sqlalchemy as db
from hypothesis import given
from hypothesis import strategies as st

from backfill_platform.errors import UsageError
from backfill_platform.orchestration import dagster_overrides
from backfill_platform.orchestration.dagster_overrides.compact_text import CompactText, pack, unpack

TABLE = db.Table("texts", db.MetaData(), db.Column("id", db.Integer, primary_key=True), db.Column("text", CompactText()))
EVENT = (
    '{"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": null}, "level": 1}'
)


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert unpack(pack(text)) == text


def test_a_dictionary_never_changes() -> None:
    """Texts that were packed with it could not be read any more: a better one gets a new name and format."""
    found = files(dagster_overrides).joinpath("event_dictionary_1.txt").read_bytes()
    assert hashlib.sha256(found).hexdigest() == "a939e0bc1e182be2722d2175426f8a4331b2c9d62dce1804a201ad04a81ea58c"


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> db.Engine:
    url = "sqlite://" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    engine = db.create_engine(url)
    TABLE.create(engine)
    return engine


def test_texts_of_an_older_version_are_read_beside_packed_ones(engine: db.Engine) -> None:
    texts = [EVENT, "", "short", "zebra", None, "zü:", '{"a": 1}']
    with engine.begin() as connection:
        connection.execute(db.text("INSERT INTO texts (text) VALUES (:text)"), {"text": EVENT})  # as it was before
        connection.execute(TABLE.insert(), [{"text": text} for text in texts])
        found = connection.execute(db.select(TABLE.c.text).order_by(TABLE.c.id)).scalars().all()
        sizes = connection.execute(db.text("SELECT length(text) FROM texts ORDER BY id")).scalars().all()
    engine.dispose()
    assert found == [EVENT, *texts]
    assert sizes[0] == len(EVENT)
    assert sizes[1] < len(EVENT) / 2, "packed"


def test_a_text_of_a_newer_version_is_refused() -> None:
    with pytest.raises(UsageError, match="newer version"):
        unpack(b"z9:abc")


def test_sqlite_itself_takes_bytes_in_a_text_column() -> None:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE t (text TEXT)")
        connection.execute("INSERT INTO t VALUES (?)", (pack(EVENT),))
        assert connection.execute("SELECT typeof(text) FROM t").fetchone() == ("blob",)
