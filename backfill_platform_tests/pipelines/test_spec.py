import sys
from dataclasses import replace
from types import ModuleType

import pyspark.sql.types as T
import pytest
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.checks import HourRule
from backfill_platform.domain.tables import ColumnType, Layer
from backfill_platform.domain.windows import UntilClosed, Window
from backfill_platform.errors import SettingsError, SpecError, UsageError
from backfill_platform.examples import clickstream
from backfill_platform.pipelines.registry import find_pipeline, load_pipelines
from backfill_platform.pipelines.spec import DerivedTable

PIPELINE = clickstream.pipeline
SESSIONS, HOURLY = PIPELINE.derived
OF_NOBODY = replace(SESSIONS, window=Window(lookahead=UntilClosed(key="client", gap=clickstream.GAP, cap=clickstream.CAP)))
CLASH = HourRule("rows valid", lambda: F.count("*") > 0)


class Exotic(DataFrameModel):
    """A schema with a type that the engines do not share."""

    hour: T.TimestampType = Field()
    tags: T.ArrayType(T.StringType()) = Field()  # type: ignore[valid-type]


class Started(clickstream.Requests):
    """Events that have what the platform adds."""

    session_started_at: T.TimestampType = Field()


class Checked(DataFrameModel):
    """A schema without the hour column."""

    client_id: T.LongType = Field()


def test_recipients_given_as_a_text_are_refused() -> None:
    with pytest.raises(SpecError, match=r"recipients are a tuple of names, such as \('web-team',\)"):
        replace(clickstream.pipeline, recipients="web-team")  # type: ignore[arg-type]


def test_tables_follow_from_the_schemas() -> None:
    assert [str(table) for table in PIPELINE.tables] == ["raw/clickstream", "transformed/sessions", "aggregated/site_hourly"]
    bytes_sent = PIPELINE.raw.table.column("bytes")
    assert (bytes_sent.type, bytes_sent.nullable) == (ColumnType.INT64, True)
    assert bytes_sent.description.startswith("bytes sent")
    assert PIPELINE.raw.table.hour == "ingestion_hour"
    assert [table.name for table in PIPELINE.published] == ["sessions", "site_hourly"]
    assert [node.reads and node.reads.name for node in PIPELINE.nodes] == [None, "clickstream", "sessions"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda: replace(PIPELINE, derived=(HOURLY, SESSIONS)), "reads 'sessions', which is not declared before it"),
        (lambda: replace(PIPELINE, derived=(SESSIONS, SESSIONS)), "'sessions' is declared twice"),
        (lambda: replace(PIPELINE, derived=(replace(SESSIONS, layer=Layer.RAW),)), "must be transformed or aggregated"),
        (lambda: replace(PIPELINE, raw=replace(PIPELINE.raw, event_time="at")), "'at' is not a column"),
        (lambda: replace(PIPELINE, raw=replace(PIPELINE.raw, event_time="bytes")), "must be a timestamp that is not nullable"),
        (
            lambda: replace(PIPELINE, raw=replace(PIPELINE.raw, same_event=("url", "at"))),
            "same_event names at, which raw/",
        ),
        (
            lambda: replace(PIPELINE, derived=(OF_NOBODY, HOURLY)),
            "session key of sessions names client, which raw/",
        ),
        (
            lambda: replace(PIPELINE, derived=(SESSIONS, replace(HOURLY, window=SESSIONS.window))),
            "site_hourly reads until sessions are closed, so it must read the raw table clickstream, not sessions",
        ),
        (
            lambda: replace(PIPELINE, derived=(replace(HOURLY, reads="clickstream", lineage={}, window=SESSIONS.window),)),
            "its schema needs started_at",
        ),
        (
            lambda: replace(PIPELINE, raw=replace(PIPELINE.raw, schema=Started)),
            "the platform adds session_started_at to the events of sessions; rename the column of clickstream",
        ),
        (lambda: replace(PIPELINE, derived=(replace(SESSIONS, rules=(CLASH,)),)), "several checks named rows_valid"),
        (lambda: replace(PIPELINE, owners=("ada",)), "clickstream: 'ada' is no owner; write an address of mail, or team:NAME"),
        (lambda: replace(PIPELINE, owners="team:web"), r"owners are a tuple of names, such as \('team:web',\)"),  # type: ignore[arg-type]
        (
            lambda: replace(PIPELINE, derived=(replace(SESSIONS, owners=("team:",)),)),
            "sessions: 'team:' is no owner",
        ),
        (lambda: replace(PIPELINE, priority=11), "priority is from -10 to 10, not 11"),
        (lambda: replace(PIPELINE, runs_at_once=0), "runs_at_once is from 1 to 8, not 0"),
        (lambda: replace(SESSIONS, key=("nobody",)).table, "'nobody' is used as a key but is not a column"),
        (lambda: replace(SESSIONS, schema=Exotic, key=()).table, r"'tags' is a array<string>; supported are"),
        (lambda: replace(SESSIONS, schema=Checked, key=()).table, "'hour' is used as a key but is not a column"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_with_the_reason(change: object, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        change()  # type: ignore[operator]


def test_pipelines_are_found_by_module_and_name() -> None:
    pipelines = load_pipelines([clickstream.__name__])
    assert find_pipeline(pipelines, "clickstream") is PIPELINE
    with pytest.raises(UsageError, match="no pipeline 'click'; there are: clickstream"):
        find_pipeline(pipelines, "click")


@pytest.mark.parametrize("modules", [[], ["no.such.module"], ["backfill_platform.errors"], [clickstream.__name__] * 2])
def test_a_wrong_list_of_pipelines_names_the_setting(modules: list[str]) -> None:
    with pytest.raises(SettingsError, match="BACKFILL_PIPELINES"):
        load_pipelines(modules)


def test_a_table_of_two_pipelines_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = ModuleType("twin_pipeline")
    twin.pipeline = replace(PIPELINE, name="twin")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, twin.__name__, twin)
    with pytest.raises(SettingsError, match="raw/clickstream is a table of both clickstream and twin; rename"):
        load_pipelines([clickstream.__name__, twin.__name__])


def test_a_derived_table_reads_exactly_its_hours_by_default() -> None:
    assert isinstance(HOURLY, DerivedTable)
    assert HOURLY.window.read_from(clickstream.HOURS, clickstream.HOURS.start) == clickstream.HOURS.start
