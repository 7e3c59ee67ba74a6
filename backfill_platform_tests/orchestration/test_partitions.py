"""Pipelines of different eras, each over its own hours."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from backfill_platform.definitions import build_definitions
from backfill_platform.errors import SettingsError
from backfill_platform.examples import clickstream, payments, playbacks
from backfill_platform.orchestration.assets import asset_specs
from backfill_platform.orchestration.partitions import partitions_of
from backfill_platform.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning")


def test_a_pipeline_of_1998_is_loaded_beside_one_of_2017() -> None:
    graph = build_definitions(Settings()).resolve_asset_graph()
    ends = {}
    for asset in ("warehouse/sessions", "warehouse/velocity", "warehouse/playbacks_hourly"):
        (key,) = [key for key in graph.get_all_asset_keys() if key.to_user_string() == asset]
        partitions = graph.get(key).partitions_def
        assert partitions is not None
        keys = partitions.get_partition_keys()
        ends[asset] = (len(keys), keys[0], keys[-1])
    assert ends == {
        "warehouse/sessions": (24, "1998-04-30-22:00", "1998-05-01-21:00"),
        "warehouse/velocity": (8764, "2017-01-01-00:00", "2018-01-01-03:00"),
        "warehouse/playbacks_hourly": (12, "2017-06-01-18:00", "2017-06-02-05:00"),
    }


def test_a_table_depends_on_one_of_another_pipeline_in_the_hours_that_it_has() -> None:
    hourly = replace(payments.pipeline.derived[-1], reads=("velocity", "attribution"))
    reading = replace(payments.pipeline, derived=(payments.pipeline.derived[0], hourly), upstream=(playbacks.pipeline,))
    specs = [spec for one in (playbacks.pipeline, reading) for spec in asset_specs(one, partitions_of(one))]
    graph = dg.Definitions(assets=specs).resolve_asset_graph()
    key, above = dg.AssetKey(["aggregated", "payments_hourly"]), dg.AssetKey(["transformed", "attribution"])
    assert graph.get(key).parent_keys == {above, dg.AssetKey(["transformed", "velocity"])}

    def hours_above(hour: str) -> set[str]:
        found = graph.get_parents_partitions(key, hour)
        assert not found.required_but_nonexistent_parents_partitions
        return {one.partition_key or "" for one in found.parent_partitions if one.asset_key == above}

    assert hours_above("2017-06-01-18:00") == {"2017-06-01-18:00"}
    assert hours_above("2017-01-01-00:00") == set()


def test_a_live_pipeline_has_hours_until_now() -> None:
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=48)
    live = partitions_of(replace(clickstream.pipeline, start=start, end=None))
    assert len(live.get_partition_keys()) in (48, 49)


def test_the_assets_of_a_pipeline_share_one_partitions_object() -> None:
    definitions = build_definitions(Settings(pipelines=(payments.__name__, playbacks.__name__)))
    specs = [spec for asset in definitions.assets or [] for spec in asset.specs]  # type: ignore[union-attr]
    by_pipeline: dict[str, set[int]] = {}
    for spec in specs:
        if spec.partitions_def is not None:
            by_pipeline.setdefault(spec.group_name or "", set()).add(id(spec.partitions_def))
    assert {name: len(found) for name, found in by_pipeline.items()} == {"payments": 1, "playbacks": 1}


def test_more_hours_than_dagster_bears_are_refused_with_what_to_do() -> None:
    ages = replace(clickstream.pipeline, end=clickstream.HOURS.start + timedelta(hours=50_001))
    with pytest.raises(SettingsError, match=r"clickstream has 50001 hours.*declare its years as pipelines of their own"):
        partitions_of(ages)
