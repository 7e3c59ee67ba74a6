"""Dagster's entry point: everything follows from the settings and the declared pipelines."""

import warnings
from collections.abc import Mapping
from typing import Any

import dagster as dg

from backfill_platform.orchestration.assets import pipeline_assets
from backfill_platform.orchestration.partitions import shared_partitions
from backfill_platform.orchestration.resources import build_resources
from backfill_platform.orchestration.turns import repair_job
from backfill_platform.orchestration.undo import undo_job
from backfill_platform.pipelines.registry import load_pipelines
from backfill_platform.settings import Settings, load_settings


def build_definitions(settings: Settings, *, overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """The code location of the settings; `overrides` replaces resources by name, as tests do."""
    # Partitioned checks and backfill policies are beta in the pinned Dagster; our tests say what breaks when they change.
    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    warnings.filterwarnings("ignore", category=dg.PreviewWarning)
    pipelines = load_pipelines(settings.pipelines).values()
    partitions = shared_partitions(pipelines)
    assets = [pipeline_assets(pipeline, partitions) for pipeline in pipelines]
    return dg.Definitions(
        assets=assets,
        jobs=[
            *(undo_job(pipeline) for pipeline in pipelines),
            *(
                dg.define_asset_job(repair_job(pipeline.name), dg.AssetSelection.assets(definition))
                for pipeline, definition in zip(pipelines, assets, strict=True)
            ),
        ],
        resources={**build_resources(settings), **(overrides or {})},
        executor=dg.in_process_executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """Read by Dagster when it loads the code location, not when the module is imported."""
    return build_definitions(load_settings())
