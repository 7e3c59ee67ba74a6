"""Pipelines of different hours under the one partitions object."""

import pytest

from backfill_platform.definitions import build_definitions
from backfill_platform.errors import SettingsError
from backfill_platform.examples import clickstream, payments, playbacks
from backfill_platform.orchestration.partitions import shared_partitions
from backfill_platform.settings import Settings


@pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning")
def test_the_pipelines_of_one_era_are_loaded_together() -> None:
    definitions = build_definitions(Settings(pipelines=(payments.__name__, playbacks.__name__)))
    found = {key.to_user_string() for key in definitions.resolve_all_asset_keys()}
    assert {"raw/payments", "warehouse/velocity", "raw/playbacks", "warehouse/playbacks_hourly"} <= found
    keys = shared_partitions([payments.pipeline, playbacks.pipeline]).get_partition_keys()
    assert (len(keys), keys[0], keys[-1]) == (8764, "2017-01-01-00:00", "2018-01-01-03:00")


def test_pipelines_of_two_eras_are_refused_with_what_to_do() -> None:
    with pytest.raises(SettingsError, match="list pipelines of one era in BACKFILL_PIPELINES"):
        shared_partitions([clickstream.pipeline, payments.pipeline])
