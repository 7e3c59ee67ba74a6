"""A table that reads several tables: of its own pipeline, raw events among them, and of another pipeline with a margin."""

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark.sql.types as T
import pytest
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.detection.survey import survey
from backfill_platform.domain.gaps import Gap, GapKind
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.impact import Damage
from backfill_platform.domain.plan import AssetPath, Landing, make_plan
from backfill_platform.domain.tables import Layer
from backfill_platform.domain.uris import local_uri
from backfill_platform.domain.windows import Window
from backfill_platform.examples import playbacks
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable
from backfill_platform.planning.downstream import follow_all, planned_hours, readers_of, rewritten_hours
from backfill_platform.planning.explain import explain
from backfill_platform.planning.impact import find_impact
from backfill_platform.repair.outcomes import HourOutcome, StepFinished
from backfill_platform_tests.events import write_lines
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T0 = datetime.fromisoformat("2026-01-01T00:00:00Z")
HOURS = HourRange(T0, T0 + 3 * HOUR)
# user, minutes since T0, cents; an impression has none
IMPRESSIONS = [(1, 5, 0), (1, 50, 0), (2, 59, 0), (1, 61, 0), (3, 100, 0), (2, 130, 0)]
PAYMENTS = [(1, 30, 250), (1, 65, 100), (2, 70, 900), (3, 125, 40), (3, 126, 5), (4, 10, 1), (1, 179, 77)]
Event = tuple[int, int, int]


class Events(DataFrameModel):
    """Something that a user did."""

    ingestion_hour: T.TimestampType = Field(description="hour in which it arrived, UTC")
    event_time: T.TimestampType = Field(description="when it happened, UTC")
    user_id: T.LongType = Field(ge=1, description="number of the user")
    cents: T.LongType = Field(ge=0, description="what was paid")


class ByUser(DataFrameModel):
    """Events of a user in an hour."""

    hour: T.TimestampType = Field(description="hour of the events, UTC")
    user_id: T.LongType = Field(ge=1, description="number of the user")
    events: T.LongType = Field(ge=1, description="number of events")
    cents: T.LongType = Field(ge=0, description="what was paid")


class Revenue(DataFrameModel):
    """What a user paid in an hour, beside what was shown to them in it and in the hour before."""

    hour: T.TimestampType = Field(description="hour of the payments, UTC")
    user_id: T.LongType = Field(ge=1, description="number of the user")
    cents: T.LongType = Field(ge=0, description="what was paid")
    shown: T.LongType = Field(ge=0, description="impressions in this hour and the one before")
    largest: T.LongType = Field(ge=0, description="the largest payment of the hour, from the raw events")


def parse(lines: "DataFrame") -> "DataFrame":
    part = F.split("line", ",")
    return lines.select(
        "*",
        F.timestamp_seconds(part[1].cast("bigint")).alias("event_time"),
        part[0].cast("bigint").alias("user_id"),
        part[2].cast("bigint").alias("cents"),
    )


def by_user(events: "DataFrame") -> "DataFrame":
    return events.groupBy(F.date_trunc("hour", "event_time").alias("hour"), "user_id").agg(
        F.count("*").alias("events"), F.sum("cents").alias("cents")
    )


def revenue(paid: "DataFrame", raw: "DataFrame", shown: "DataFrame") -> "DataFrame":
    largest = raw.groupBy(F.date_trunc("hour", "event_time").alias("hour"), "user_id").agg(F.max("cents").alias("largest"))
    later = shown.withColumn("hour", F.expr("hour + interval 1 hour"))
    both = shown.unionByName(later).groupBy("hour", "user_id").agg(F.sum("events").alias("shown"))
    joined = paid.join(both, ["hour", "user_id"], "left").join(largest, ["hour", "user_id"])
    return joined.select("hour", "user_id", "cents", F.coalesce("shown", F.lit(0)).alias("shown"), "largest")


def reference(payments: list[Event], impressions: list[Event]) -> list[tuple[object, ...]]:
    def hours(events: list[Event]) -> Counter[tuple[int, int]]:
        return Counter((minute // 60, user) for user, minute, _ in events)

    shown = hours(impressions)
    rows: list[tuple[object, ...]] = []
    for hour, user in hours(payments):
        cents = [one[2] for one in payments if (one[1] // 60, one[0]) == (hour, user)]
        seen = shown[hour, user] + shown[hour - 1, user]
        rows.append((T0 + hour * HOUR, user, sum(cents), seen, max(cents)))
    return rows


@dataclass
class Shop:
    """Two pipelines in one lake: impressions, and payments that are told beside them."""

    ads: World
    shop: World

    def __post_init__(self) -> None:
        self.impressions, self.payments = list(IMPRESSIONS), list(PAYMENTS)
        self.write()

    def write(self) -> None:
        for name, events in (("ads", self.impressions), ("shop", self.payments)):
            for number in range(3):
                lines = [
                    f"{user},{int(T0.timestamp()) + minute * 60},{cents}"
                    for user, minute, cents in events
                    if minute // 60 == number
                ]
                write_lines(self.ads.folder / name / f"{number:02}.csv", lines)

    @property
    def table(self) -> str:
        return self.shop.pipeline.derived[-1].name

    def is_right(self) -> bool:
        paid = Counter[tuple[int, int]]()
        for user, minute, cents in self.payments:
            paid[minute // 60, user] += cents
        events = Counter((minute // 60, user) for user, minute, _ in self.payments)
        by_user_rows = [(T0 + hour * HOUR, user, events[hour, user], paid[hour, user]) for hour, user in paid]
        wanted = self.shop.prints(by_user_rows, reference(self.payments, self.impressions))
        return self.shop.net()[self.table] == wanted[self.table]


def pipeline_of(name: str, folder: Path, *derived: DerivedTable, upstream: tuple[Pipeline, ...] = ()) -> Pipeline:
    (folder / name).mkdir()
    return Pipeline(
        name=name,
        description=f"Events of {name}.",
        start=HOURS.start,
        end=HOURS.end,
        source=HourlyFiles(local_uri(folder / name) + "/%H.csv"),
        raw=RawTable(f"{name}_events", Events, parse, same_event=("event_time", "user_id", "cents")),
        derived=derived,
        upstream=upstream,
    )


@pytest.fixture
def shop(tmp_path: Path, spark: "SparkSession", warehouse_url: str) -> Iterator[Shop]:
    suffix = uuid.uuid4().hex[:8]
    shown, paid = f"shown_{suffix}", f"paid_{suffix}"
    ads = pipeline_of(
        "ads",
        tmp_path,
        DerivedTable(Layer.TRANSFORMED, shown, ByUser, reads="ads_events", build=by_user, key=("user_id",), publish=False),
    )
    told = pipeline_of(
        "shop",
        tmp_path,
        DerivedTable(Layer.TRANSFORMED, paid, ByUser, reads="shop_events", build=by_user, key=("user_id",)),
        DerivedTable(
            Layer.AGGREGATED,
            f"revenue_{suffix}",
            Revenue,
            reads=(paid, "shop_events", shown),
            build=revenue,
            key=("user_id",),
            windows={shown: Window(lookback=HOUR)},
            lineage={"shown": ("events",), "largest": ("cents",)},
        ),
        upstream=(ads,),
    )
    lake = open_lake(tmp_path)
    with closing(Warehouse(warehouse_url)) as warehouse:
        worlds = [World(tmp_path, spark, warehouse, pipeline, lake) for pipeline in (ads, told)]
        # Repairs of both have names in one lake.
        worlds[1].repairs = 100
        found = Shop(*worlds)
        yield found
        found.shop.drop()


def errors(found: dict[AssetPath, dict[datetime, HourOutcome]], asset: AssetPath) -> dict[datetime, str]:
    return {hour: one.error for hour, one in found[asset].items() if one.error}


@pytest.mark.whole
def test_an_hour_is_built_when_all_inputs_have_it_and_again_when_one_has_changed(shop: Shop) -> None:
    warehouse_asset = ("warehouse", shop.table)
    shop.ads.run(shop.ads.everything, HourRange(T0, T0 + 2 * HOUR))
    first = shop.shop.run(shop.shop.everything)
    waiting = errors(first, ("aggregated", shop.table))
    assert list(waiting) == [T0 + 2 * HOUR]
    assert "of ads of 2026-01-01T02" in waiting[T0 + 2 * HOUR]
    assert not shop.is_right()

    shop.ads.run(shop.ads.everything, HourRange(T0 + 2 * HOUR, HOURS.end))
    whole = shop.shop.run(shop.shop.everything)
    assert not errors(whole, warehouse_asset)
    assert shop.is_right()

    # An impression of hour 1 is lost at its source: hours 1 and 2 of the revenue have been told wrong numbers.
    shop.impressions.remove((1, 61, 0))
    shop.write()
    assert not gaps(shop)
    shop.ads.run(shop.ads.everything, HourRange(T0 + HOUR, T0 + 2 * HOUR), landing=Landing.REPLACE)
    found = gaps(shop)
    assert [gap.hour for gap in found] == [T0 + HOUR, T0 + 2 * HOUR]
    assert {gap.kind for gap in found} == {GapKind.STALE}
    assert all("of ads of 2026-01-01T01 has other rows by now" in gap.evidence for gap in found)

    rehearsed = shop.shop.run([("dry_run", shop.table)])
    changed = [hour for hour, one in rehearsed["dry_run", shop.table].items() if one.differs]
    assert changed == [T0 + HOUR, T0 + 2 * HOUR]
    assert not shop.is_right()
    shop.shop.run(shop.shop.derived)
    assert shop.is_right()
    assert not gaps(shop)


@pytest.mark.whole
def test_a_plan_names_every_input_and_damage_goes_through_all_of_them(shop: Shop) -> None:
    shop.ads.run(shop.ads.everything)
    shop.shop.run(shop.shop.everything)
    pipeline, lake = shop.shop.pipeline, shop.shop.lake
    plan = make_plan(pipeline.name, pipeline.nodes, HOURS, [("aggregated", shop.table)])
    (told,) = explain(plan, pipeline, lake, shop.shop.warehouse)
    paid, shown = pipeline.derived[0].name, pipeline.upstream[0].derived[0].name
    for name in (f"transformed/{paid} from", "raw/shop_events from", f"transformed/{shown} of ads from"):
        assert name in told.reads
    assert told.files == 3 + 3 + 3
    assert f"transformed/{shown} of ads (1 h before, 0 s after)" in told.explanation

    read = [event.reading for event in shop.shop.events(plan) if isinstance(event, StepFinished)]
    assert [one.files for one in read if one] == [3 + 3 + 3]

    impact = find_impact(pipeline, lake, Damage(T0 + HOUR, T0 + 2 * HOUR), HOURS.end)
    assert [one.hours for one in impact.tables] == [(T0 + HOUR,)] * 3


def gaps(shop: Shop) -> list[Gap]:
    found = survey(shop.shop.pipeline, HOURS, shop.shop.lake, shop.shop.warehouse).gaps
    return [gap for gap in found if gap.table == f"aggregated/{shop.table}"]


@pytest.mark.whole
def test_what_follows_in_other_pipelines_is_told_before_and_after(shop: Shop) -> None:
    """Hour 1 of `ads` is repaired: hours 1 and 2 of the revenue look at it, through a window of an hour before."""
    shop.ads.run(shop.ads.everything)
    shop.shop.run(shop.shop.everything)
    ads, told, lake = shop.ads.pipeline, shop.shop.pipeline, shop.ads.lake
    plan = shop.ads.plan(shop.ads.everything, HourRange(T0 + HOUR, T0 + 2 * HOUR), Landing.REPLACE)
    planned = planned_hours([plan])
    (before,) = follow_all(ads, [told, ads], planned, planned, lake, HOURS.end)
    assert before.pipeline == "shop"
    assert [(str(one.node.table), one.hours) for one in before.tables] == [
        (f"aggregated/{shop.table}", (T0 + HOUR, T0 + 2 * HOUR))
    ]
    assert "of ads of 2026-01-01T01" in before.tables[0].why[T0 + HOUR]
    assert before.commands == ("backfill run shop --from 2026-01-01T01 --to 2026-01-01T03",)

    # Built again with the same rows, nothing follows. Then an impression is lost at its source.
    ledger = Ledger(shop.ads.warehouse)
    for lost in (None, (1, 61, 0)):
        if lost:
            shop.impressions.remove(lost)
            shop.write()
        since = datetime.now(UTC)
        shop.ads.walk([plan])
        changed = rewritten_hours([plan], ledger, since)
        after = follow_all(ads, [told, ads], changed, planned, lake, HOURS.end)
        assert after == ((before,) if lost else ())
        assert [gap.hour for gap in gaps(shop)] == (list(before.tables[0].hours) if lost else [])


def test_readers_come_after_all_that_they_read() -> None:
    ads = replace(playbacks.pipeline, name="ads")
    shop = replace(playbacks.pipeline, name="shop", upstream=(ads,))
    other = replace(playbacks.pipeline, name="other")
    report = replace(playbacks.pipeline, name="report", upstream=(ads, shop, other))
    assert [one.name for one in readers_of(ads, [report, other, shop, ads])] == ["shop", "report"]
    assert readers_of(report, [report, other, shop, ads]) == ()
