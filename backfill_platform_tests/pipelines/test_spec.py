import sys
from dataclasses import replace
from datetime import timedelta
from types import ModuleType

import pyspark.sql.types as T
import pytest
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import functions as F

from backfill_platform.adapters.files.formats import Parquet
from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.adapters.spark.checks import HourRule
from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.tables import Layer, TargetTable
from backfill_platform.domain.windows import UntilClosed, Window
from backfill_platform.errors import SettingsError, SpecError, UsageError
from backfill_platform.examples import clickstream, playbacks
from backfill_platform.pipelines.registry import find_pipeline, load_pipelines
from backfill_platform.pipelines.spec import DerivedTable, Pipeline

PIPELINE = clickstream.pipeline
SESSIONS, HOURLY = PIPELINE.derived
OF_NOBODY = replace(SESSIONS, window=Window(lookahead=UntilClosed(key="client", gap=clickstream.GAP, cap=clickstream.CAP)))
CLASH = HourRule("rows valid", lambda: F.count("*") > 0)


class Exotic(DataFrameModel):
    """A schema with a type that the engines do not share."""

    hour: T.TimestampType = Field()
    tags: T.ArrayType(T.TimestampNTZType()) = Field()  # type: ignore[valid-type]


class Started(clickstream.Requests):
    """Events that have what the platform adds."""

    session_started_at: T.TimestampType = Field()


class Checked(DataFrameModel):
    """A schema without the hour column."""

    client_id: T.LongType = Field()


def reading(other: str, upstream: tuple[Pipeline, ...] = (), **changes: object) -> Pipeline:
    """The clickstream pipeline whose hourly table reads one more table."""
    both = replace(HOURLY, reads=("sessions", other), **{"lineage": {}, **changes})  # type: ignore[arg-type]
    return replace(PIPELINE, derived=(SESSIONS, both), upstream=upstream)


def test_a_table_reads_several_tables_each_with_its_window() -> None:
    margin = Window(lookback=timedelta(hours=2))
    pipeline = reading("attribution", upstream=(playbacks.pipeline,), windows={"attribution": margin})
    first, second = pipeline.nodes[-1].inputs
    assert (first.table.name, first.window, first.elsewhere) == ("sessions", Window(), "")
    assert (second.table.name, second.window, second.elsewhere) == ("attribution", margin, "playbacks")
    assert second.bounds(PIPELINE.start, PIPELINE.end) == (playbacks.HOURS.start, playbacks.HOURS.end)
    assert first.bounds(PIPELINE.start, PIPELINE.end) == (PIPELINE.start, PIPELINE.end)


def test_a_further_input_is_another_version_of_the_code_and_one_alone_is_none() -> None:
    alone = replace(PIPELINE, derived=(SESSIONS, replace(HOURLY, reads=("sessions",))))
    assert alone.code_version("site_hourly") == PIPELINE.code_version("site_hourly")
    assert reading("clickstream").code_version("site_hourly") != PIPELINE.code_version("site_hourly")


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
            "site_hourly reads until sessions are closed, so it must read the raw table clickstream first, not sessions",
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
        (lambda: replace(SESSIONS, schema=Exotic, key=()).table, r"'tags': it is a timestamp_ntz; supported are"),
        (lambda: replace(SESSIONS, schema=Checked, key=()).table, "'hour' is used as a key but is not a column"),
        (lambda: reading("clicks"), "reads 'clicks', which is not declared before it; there are clickstream, sessions"),
        (lambda: reading("sessions"), "reads a table twice: sessions, sessions"),
        (lambda: reading("attribution"), "reads 'attribution', which is not declared before it"),
        (lambda: reading("playbacks", upstream=(playbacks.pipeline,)), "reads 'playbacks', the raw table of another pipeline"),
        (
            lambda: reading("sessions", upstream=(replace(PIPELINE, name="other"),)),
            "reads 'sessions', which has more than one meaning",
        ),
        (
            lambda: reading("clickstream", windows={"sessions": Window()}),
            "has a window for sessions; `windows` are for its inputs",
        ),
        (
            lambda: reading("clickstream", windows={"clickstream": SESSIONS.window}),
            "can read only its first input until sessions are closed, not clickstream",
        ),
        (
            lambda: reading("clickstream", lineage={"error_rate": ("weather",)}),
            "names weather, which transformed/sessions and raw/clickstream does not have",
        ),
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


def test_two_pipelines_do_not_publish_to_one_clickhouse_table(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = ModuleType("twin_pipeline")
    theirs = replace(SESSIONS, name="visits", reads="hits", target=TargetTable(name="sessions"))
    twin.pipeline = replace(PIPELINE, name="twin", raw=replace(PIPELINE.raw, name="hits"), derived=(theirs,))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, twin.__name__, twin)
    with pytest.raises(SettingsError, match=r"clickstream and twin both publish to the ClickHouse table transformed\.sessions"):
        load_pipelines([clickstream.__name__, twin.__name__])


def test_a_derived_table_reads_exactly_its_hours_by_default() -> None:
    assert isinstance(HOURLY, DerivedTable)
    assert HOURLY.window.read_from(clickstream.HOURS, clickstream.HOURS.start) == clickstream.HOURS.start


def test_a_stored_type_gives_the_table_a_rule_and_another_code_version_and_others_neither() -> None:
    stored = replace(SESSIONS, stored_as={"requests": "UInt8", "client_id": "Int64"})
    pipeline = replace(PIPELINE, derived=(stored, HOURLY))
    rules = {rule.name for rule in pipeline.rules("sessions").rows}
    assert rules - {rule.name for rule in PIPELINE.rules("sessions").rows} == {"requests: fits UInt8"}
    assert pipeline.code_version("sessions") != PIPELINE.code_version("sessions")
    assert pipeline.code_version("site_hourly") == PIPELINE.code_version("site_hourly")
    assert str(stored.table.column("requests").stored) == "UInt8"


@pytest.mark.parametrize(
    ("stored_as", "says"),
    [
        ({"nobody": "UInt8"}, "stored_as names nobody, which is no column of it"),
        ({"requests": "String"}, "column 'requests': a int64 cannot be stored as String"),
        ({"requests": "Numeric"}, "column 'requests': 'Numeric' cannot be read as a ClickHouse type"),
    ],
)
def test_a_stored_type_that_cannot_be_is_refused(stored_as: dict[str, str], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        replace(PIPELINE, derived=(replace(SESSIONS, stored_as=stored_as), HOURLY))


def test_two_tables_cannot_be_published_to_one() -> None:
    """Each would take the rows of the other for rows that should not be there."""
    other = replace(HOURLY, target=TargetTable("transformed", "sessions"))
    with pytest.raises(SpecError, match=r"sessions and site_hourly are both published to transformed\.sessions"):
        replace(PIPELINE, derived=(SESSIONS, other))
    replace(PIPELINE, derived=(SESSIONS, replace(other, publish=False)))


def test_columns_that_records_are_not_taken_into_are_refused() -> None:
    class Days(DataFrameModel):
        ingestion_hour: T.TimestampType = Field()
        event_time: T.TimestampType = Field()
        day: T.DateType = Field()

    raw = replace(PIPELINE.raw, schema=Days, parse=None, same_event=())
    source = ArchiveFile("file:///nowhere.parquet", HourRange(PIPELINE.start, PIPELINE.start + HOUR), format=Parquet())
    with pytest.raises(SpecError, match=r"records are taken into boolean, .* not into day \(date\)"):
        replace(PIPELINE, source=source, raw=raw, derived=())
