"""Dagster's entry point: everything follows from the settings and the declared pipelines."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from backfill_platform.instance_definitions import instance_definitions
from backfill_platform.orchestration.assets import pipeline_assets
from backfill_platform.orchestration.checks.delivery_counts import delivery_count_checks
from backfill_platform.orchestration.checks.gaps import gap_checks
from backfill_platform.orchestration.dagster_overrides.private_names import Job
from backfill_platform.orchestration.jobs.maintenance import maintenance_asset, maintenance_schedule
from backfill_platform.orchestration.jobs.topics import drain_job, replay_job
from backfill_platform.orchestration.jobs.undo import undo_job
from backfill_platform.orchestration.notifications import Notifier
from backfill_platform.orchestration.partitions import partitions_of
from backfill_platform.orchestration.range_concurrency import gap_evaluation_job_name, repair_job
from backfill_platform.orchestration.resources import build_resources
from backfill_platform.orchestration.sensors.dead_runs import dead_run_sensor
from backfill_platform.orchestration.sensors.gaps import gap_sensor
from backfill_platform.orchestration.turns import AT_THE_HEAD, turn_tags
from backfill_platform.pipelines.registry import load_pipelines
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.planning.downstream import readers_of
from backfill_platform.settings import Settings, load_settings


def build_definitions(settings: Settings, *, overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """All pipelines of the settings, and what an installation needs once; `overrides` replaces resources by name."""
    pipelines = load_pipelines(settings.pipelines).values()
    return dg.Definitions.merge(pipeline_definitions(settings, pipelines, overrides=overrides), instance_definitions(settings))


def team_definitions(*modules: str) -> dg.Definitions:
    """A code location with the pipelines of these modules alone, for the `@dg.definitions` of a team's folder.

    One other location of the workspace loads `backfill_platform.instance_definitions`. Raises as `load_pipelines` does.
    """
    return pipeline_definitions(load_settings(), load_pipelines(modules).values())


def pipeline_definitions(
    settings: Settings, pipelines: Iterable[Pipeline], *, overrides: Mapping[str, Any] | None = None
) -> dg.Definitions:
    """The assets, checks, jobs, sensors and schedules of the pipelines, each over its own hours."""
    # Partitioned checks and backfill policies are beta in the pinned Dagster; our tests say what breaks when they change.
    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    warnings.filterwarnings("ignore", category=dg.PreviewWarning)
    every = tuple(pipelines)
    assets, checks, sensors, schedules = [], [], [], []
    jobs: list[Job] = []
    for pipeline in every:
        notifier, partitions = Notifier.of(pipeline, settings), partitions_of(pipeline)
        assets.append(pipeline_assets(pipeline, partitions, notifier, readers_of(pipeline, every)))
        checks.append(gap_checks(pipeline, partitions))
        repair = dg.define_asset_job(repair_job(pipeline.name), dg.AssetSelection.assets(assets[-1]), tags=turn_tags(pipeline))
        look = dg.define_asset_job(
            gap_evaluation_job_name(pipeline.name), dg.AssetSelection.checks(checks[-1]), tags=AT_THE_HEAD
        )
        maintenance = maintenance_asset(pipeline)
        schedules.append(maintenance_schedule(pipeline, maintenance))
        assets.append(maintenance)
        undo = undo_job(pipeline, notifier)
        jobs += [undo, repair, look]
        if settings.kafka:
            checks.append(delivery_count_checks(pipeline, partitions))
            jobs += [replay_job(pipeline, every), drain_job(pipeline)]
        sensors.append(gap_sensor(pipeline, repair, look, notifier))
        if notifier.audience.recipients:
            sensors.append(dead_run_sensor(pipeline, notifier))
    return dg.Definitions(
        assets=assets,
        asset_checks=checks,
        jobs=jobs,
        sensors=sensors,
        schedules=schedules,
        resources={**build_resources(settings), **(overrides or {})},
        executor=dg.in_process_executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """Read by Dagster when it loads the code location, not when the module is imported."""
    return build_definitions(load_settings())
