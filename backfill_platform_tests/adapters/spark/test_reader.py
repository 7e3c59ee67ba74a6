"""Reading a range: whatever the chunking, the owned sessions are those of the reference."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from backfill_platform.adapters.spark import looks as looks_module
from backfill_platform.adapters.spark.arrow_looks import ArrowLooks
from backfill_platform.adapters.spark.hours import within
from backfill_platform.adapters.spark.looks import Looks
from backfill_platform.adapters.spark.reader import RangeRead, read_range, stored_rows
from backfill_platform.adapters.spark.sessions import SESSION_START, with_session_start, within_cap
from backfill_platform.adapters.spark.spark_looks import SparkLooks
from backfill_platform.domain.column_types import ColumnType, DecimalType
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.tables import Column, Layer, Table
from backfill_platform.domain.windows import UntilClosed, Window
from backfill_platform.examples.session_rule import sessionize
from backfill_platform_tests.events import T0, Click, hour, random_clicks

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

GAP = timedelta(minutes=30)
EVENTS = Table(
    Layer.RAW,
    "clicks",
    (Column("hour", ColumnType.TIMESTAMP), Column("client", ColumnType.INT64), Column("at", ColumnType.TIMESTAMP)),
)
WINDOW = Window(lookback=GAP, lookahead=UntilClosed(key="client", gap=GAP))
Owned = Counter[tuple[int, datetime, datetime, int]]


class Files:
    """Parquet files by event hour, and the spans of time for which files were planned."""

    def __init__(self, spark: "SparkSession", folder: Path, clicks: list[Click]) -> None:
        rows = [(click.at.replace(minute=0, second=0), click.client, click.at) for click in clicks]
        frame = spark.createDataFrame(rows, "hour timestamp, client long, at timestamp")
        frame.withColumn("h", F.unix_seconds("hour")).coalesce(1).write.partitionBy("h").parquet(str(folder))
        self.by_hour = {
            datetime.fromtimestamp(int(path.parent.name.removeprefix("h=")), UTC): str(path)
            for path in folder.glob("h=*/*.parquet")
        }
        self.planned: list[tuple[datetime, datetime]] = []

    def plan(self, start: datetime, end: datetime) -> list[str]:
        self.planned.append((start, end))
        return [path for file_hour, path in self.by_hour.items() if file_hour < end and start < file_hour + HOUR]


def read(spark: "SparkSession", files: Files, hours: HourRange, window: Window, available_until: datetime) -> RangeRead:
    return read_range(
        spark, EVENTS, files.plan, time="at", hours=hours, window=window, origin=T0, available_until=available_until
    )


def owned(result: RangeRead, hours: HourRange, cap: timedelta) -> Owned:
    rows = (
        with_session_start(result.rows, UntilClosed("client", GAP, cap), "at")
        .where(within_cap("at", cap) & within(SESSION_START, hours))
        .groupBy("client", SESSION_START)
        .agg(F.unix_seconds(SESSION_START).alias("a"), F.unix_seconds(F.max("at")).alias("b"), F.count("*").alias("n"))
        .collect()
    )
    return Counter(
        (r["client"], datetime.fromtimestamp(r["a"], UTC), datetime.fromtimestamp(r["b"], UTC), r["n"]) for r in rows
    )


def reference(clicks: list[Click], available_until: datetime, cap: timedelta) -> Owned:
    sessions = sessionize(
        clicks, key=lambda c: c.client, time=lambda c: c.at, gap=GAP, cap=cap, available_until=available_until
    )
    return Counter((s.key, s.started_at, s.ended_at, len(s.events)) for s in sessions)  # type: ignore[misc]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("cap", "hours", "sizes"),
    [
        pytest.param(timedelta(hours=1), 4, (4, 2, 1), id="short cap"),
        pytest.param(timedelta(days=1), 12, (12, 5, 3, 1), id="long cap", marks=pytest.mark.slow),
    ],
)
def test_every_chunking_gives_the_sessions_of_the_reference(
    spark: "SparkSession", tmp_path: Path, cap: timedelta, hours: int, sizes: tuple[int, ...]
) -> None:
    clicks = random_clicks(11, hours=hours, clients=80)
    files, available_until = Files(spark, tmp_path / "events", clicks), hour(hours)
    window = Window(lookback=GAP, lookahead=UntilClosed(key="client", gap=GAP, cap=cap))
    expected = reference(clicks, available_until, cap)
    for size in sizes:
        chunks = [HourRange(hour(n), hour(min(n + size, hours))) for n in range(0, hours, size)]
        sessions = sum((owned(read(spark, files, chunk, window, available_until), chunk, cap) for chunk in chunks), Counter())
        assert sessions == expected, f"in chunks of {size} hours"


@pytest.mark.whole
def test_reading_follows_open_keys_only_and_proves_that_all_are_closed(spark: "SparkSession", tmp_path: Path) -> None:
    long_visit = [Click(1, second) for second in range(3000, 4 * 3600, 1200)]
    crowd = [Click(client, second) for client in range(2, 40) for second in range(0, 6 * 3600, 7200)]
    files = Files(spark, tmp_path / "events", long_visit + crowd)
    window = Window(lookback=GAP, lookahead=UntilClosed(key="client", gap=GAP))
    result = read(spark, files, HourRange(hour(0), hour(1)), window, hour(6))
    assert result.closure.open_at == ((GAP, 1), (3 * GAP, 1), (7 * GAP, 0))
    assert result.closure.cut_at_first_read_end == 1
    assert result.closure.still_open == 0
    assert result.closure.limit == ""
    assert result.closure.margin == 7 * GAP
    beyond = result.rows.where(F.col("at") >= F.lit(hour(1) + GAP)).select("client").distinct().collect()
    assert [row["client"] for row in beyond] == [1]


@pytest.fixture(params=["arrow", "spark"])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sessions each look finds, by whichever engine."""
    found: list[int] = []
    engine: type[Looks] = {"arrow": ArrowLooks, "spark": SparkLooks}[request.param]
    if engine is SparkLooks:
        monkeypatch.setattr(looks_module, "MOST_EVENTS", 0)
    for name in ("sessions", "go_on"):
        monkeypatch.setattr(engine, name, counting(getattr(engine, name), found))
    return found


def counting(look: Callable[..., "pyarrow.Table"], found: list[int]) -> Callable[..., "pyarrow.Table"]:
    def counted(*arguments: object) -> "pyarrow.Table":
        sessions = look(*arguments)
        found.append(sessions.num_rows)
        return sessions

    return counted


@pytest.mark.whole
def test_sessions_that_close_within_seven_gaps_take_one_look_and_longer_ones_two(
    spark: "SparkSession", tmp_path: Path, looks: list[int]
) -> None:
    for hours, expected in ((4, [2]), (6, [2, 1])):
        looks.clear()
        visit = [Click(1, second) for second in range(3000, hours * 3600, 1200)]
        files = Files(spark, tmp_path / f"{hours} hours", [*visit, Click(2, 3000), Click(2, 4000)])
        result = read(spark, files, HourRange(hour(0), hour(1)), WINDOW, hour(12))
        assert result.closure.still_open == 0
        assert looks == expected


@pytest.mark.whole
def test_only_sessions_that_may_have_begun_earlier_are_read_further_back(
    spark: "SparkSession", tmp_path: Path, looks: list[int]
) -> None:
    """Beyond the last seven gaps, 63 are looked at, then all of the range."""
    end = 40
    began = {1: -24, 2: 1, 3: 20, 4: 38, 5: 39}
    clicks = [Click(client, s) for client, at in began.items() for s in range(at * 3600 + 60, (end + 1) * 3600, 1200)]
    clicks += [Click(6, (end - 1) * 3600 + 1800), Click(7, end * 3600 + 60)]  # one does not go on, one begins after the hours
    files = Files(spark, tmp_path / "events", clicks)
    hours = HourRange(hour(0), hour(end))
    result = read_range(
        spark, EVENTS, files.plan, time="at", hours=hours, window=WINDOW, origin=hour(-30), available_until=hour(end + 9)
    )
    # Five are open; the first look knows where two of them begin, the second one more, and of the others one began before.
    # The last two ask how long the one that began before the hours has been going on (`long_sessions`).
    assert looks == [5, 3, 1, 1, 1]
    assert result.earlier is not None
    assert result.earlier["client"].to_pylist() == [1]
    assert (result.closure.cut_at_first_read_end, result.closure.still_open) == (4, 0)


def test_beyond_the_first_margin_only_events_of_the_open_sessions_are_read(spark: "SparkSession", tmp_path: Path) -> None:
    long_visit = [Click(1, second) for second in range(3000, 4 * 3600, 1200)]
    comes_back = [Click(2, second) for second in (3000, 4200, 5500, 9000, 9600)]
    files = Files(spark, tmp_path / "events", long_visit + comes_back)
    result = read(spark, files, HourRange(hour(0), hour(1)), WINDOW, hour(6))
    assert result.closure.open_at == ((GAP, 2), (3 * GAP, 1), (7 * GAP, 0))
    beyond = result.rows.where(F.col("at") >= F.lit(hour(1) + GAP)).select("client", F.unix_seconds("at").alias("at")).collect()
    started = int(hour(0).timestamp())
    assert Counter((row["client"], row["at"] - started) for row in beyond) == Counter(
        [(2, 5500), *((1, click.seconds) for click in long_visit if click.seconds >= 5400)]
    )


@pytest.mark.whole
def test_sessions_that_began_long_before_the_end_of_the_range_belong_to_the_hour_of_their_start(
    spark: "SparkSession", tmp_path: Path
) -> None:
    began_before = [Click(1, second) for second in range(1200, 8 * 3600, 1200)]
    began_early = [Click(2, second) for second in range(3600 + 60, 8 * 3600, 1200)]
    began_late = [Click(3, 7 * 3600 - 600)]
    files = Files(spark, tmp_path / "events", began_before + began_early + began_late)
    long = read(spark, files, HourRange(hour(1), hour(7)), WINDOW, hour(12))
    assert long.closure.open_at == ((GAP, 1), (3 * GAP, 0))
    whole = read(spark, files, HourRange(hour(0), hour(7)), WINDOW, hour(12))
    assert whole.closure.cut_at_first_read_end == 2


def test_a_proxy_that_never_idles_stops_the_reading_at_the_cap(spark: "SparkSession", tmp_path: Path) -> None:
    proxy = [Click(1, second) for second in range(0, 6 * 3600, 600)]
    files = Files(spark, tmp_path / "events", proxy)
    window = Window(lookback=GAP, lookahead=UntilClosed(key="client", gap=GAP, cap=timedelta(hours=2)))
    result = read(spark, files, HourRange(hour(0), hour(1)), window, hour(6))
    assert (result.closure.still_open, result.closure.limit) == (1, "cap")
    assert max(end for _, end in files.planned) == hour(3)


@pytest.mark.whole
def test_proxies_that_do_not_idle_for_six_days_cost_an_hour_no_more_than_its_cap(spark: "SparkSession", tmp_path: Path) -> None:
    end, target, cap = 6 * 24 * 3600, HourRange(hour(70), hour(71)), timedelta(hours=6)
    older = [Click(1, second) for second in range(0, end, 1200)]
    starting = [Click(2, second) for second in range(70 * 3600, end, 1200)]
    crowd = [Click(1000 + second, second) for second in range(0, end, 300)]
    files = Files(spark, tmp_path / "events", older + starting + crowd)
    window = Window(lookback=GAP, lookahead=UntilClosed(key="client", gap=GAP, cap=cap))
    result = read(spark, files, target, window, hour(6 * 24))

    assert (result.closure.still_open, result.closure.limit) == (1, "cap")
    assert (result.start, result.end) == (target.start - GAP, target.end + cap)
    assert (len(files.by_hour), result.files) == (144, 1 + 1 + 6)
    rows = Counter(min(row["client"], 1000) for row in result.rows.select("client").collect())
    # Only the session that starts in the hour is followed: 3 rows an hour for 7 hours. Of all others, what lies within a gap.
    assert rows == {1: 2 * 3, 2: 7 * 3, 1000: 2 * 12}
    assert set(owned(result, target, cap)) >= {(2, hour(70), hour(77) - timedelta(minutes=20), 21)}
    assert not [key for key, *_ in owned(result, target, cap) if key == 1]


def test_nothing_is_read_beyond_what_has_landed(spark: "SparkSession", tmp_path: Path) -> None:
    files = Files(spark, tmp_path / "events", [Click(1, 0), Click(1, 3599)])
    window = Window(lookback=GAP, lookahead=UntilClosed(key="client", gap=GAP))
    result = read(spark, files, HourRange(hour(0), hour(1)), window, hour(1))
    assert (result.closure.still_open, result.closure.limit) == (1, "end of the landed hours")
    assert read(spark, files, HourRange(hour(3), hour(4)), window, hour(1)).rows.count() == 0


def test_files_outside_the_window_are_not_opened(spark: "SparkSession", tmp_path: Path) -> None:
    files = Files(spark, tmp_path / "events", random_clicks(3, hours=6, clients=20))
    result = read(spark, files, HourRange(hour(2), hour(3)), Window(lookback=GAP), hour(6))
    assert result.files == 2
    assert (result.start, result.end) == (hour(2) - GAP, hour(3))


def test_files_of_earlier_declarations_are_read_as_the_newest_one_says(spark: "SparkSession", tmp_path: Path) -> None:
    """Columns that were added, widened, renamed and dropped since: three files of one table, each of its time."""
    table = Table(
        Layer.RAW,
        "events",
        (
            Column("ingestion_hour", ColumnType.TIMESTAMP),
            Column("pages", ColumnType.INT64, nullable=True, was=("clicks", "hits")),
            Column("score", ColumnType.FLOAT64, nullable=True),
            Column("amount", DecimalType(20, 2), nullable=True),
            Column("added", ColumnType.STRING, nullable=True),
        ),
        hour="ingestion_hour",
    )
    stamps = pa.array([T0], pa.timestamp("us", "UTC"))
    amount = pa.array([Decimal("1.25")], pa.decimal128(5, 2))
    files = [
        {"ingestion_hour": stamps, "hits": pa.array([1], pa.int32()), "score": pa.array([0.5], pa.float32()), "amount": amount},
        {"ingestion_hour": stamps, "clicks": pa.array([2], pa.int64()), "gone": pa.array(["x"])},
        {"ingestion_hour": stamps, "pages": pa.array([3], pa.int64()), "added": pa.array(["new"])},
    ]
    paths = [str(tmp_path / f"{number}.parquet") for number in range(len(files))]
    for path, columns in zip(paths, files, strict=True):
        pq.write_table(pa.table(columns), path)
    rows = stored_rows(spark, table, paths).drop("ingestion_hour").orderBy("pages").collect()
    assert [tuple(row) for row in rows] == [(1, 0.5, Decimal("1.25"), None), (2, None, None, None), (3, None, None, "new")]
