"""The asset `maintenance/<pipeline>`, its job and its schedule: once a day, what the lake no longer needs is removed."""

from contextlib import closing
from datetime import timedelta

import dagster as dg
from pydantic import Field

from backfill_platform.adapters.connections import Connections
from backfill_platform.errors import BackfillError
from backfill_platform.orchestration.job_services import now, repairs_at_work
from backfill_platform.orchestration.recovery import NEVER_RETRIED
from backfill_platform.orchestration.turns import AT_THE_END
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.maintain import Keep, MaintainedTable, maintain
from backfill_platform.reports.maintenance import COLUMNS, lines

_CRON = "17 3 * * *"


class MaintenanceConfig(dg.Config):
    """How maintenance is done."""

    rehearsal: bool = Field(False, description="only say what is not needed any more, and remove nothing")
    keep_days: int | None = Field(
        None, ge=0, description="days for which the lake keeps what was replaced; without, BACKFILL_LAKE_DAYS"
    )


def maintenance_job_name(pipeline: str) -> str:
    """The name of the job that maintains the tables of a pipeline."""
    return f"{pipeline}_maintenance"


def maintenance_asset_key(pipeline: str) -> dg.AssetKey:
    """The asset that stands for the maintenance of a pipeline."""
    return dg.AssetKey(["maintenance", pipeline])


def maintenance_asset(pipeline: Pipeline) -> dg.AssetsDefinition:
    """The asset that stands for well-kept tables: materializing it removes what they do not need."""

    @dg.asset(
        key=maintenance_asset_key(pipeline.name),
        group_name="maintenance",  # not the pipeline's: "Materialize all" of its group is about hours
        kinds={"iceberg", "maintenance"},
        owners=list(pipeline.owners),
        description=f"The lake tables of {pipeline.name} without old snapshots, dead branches and files that nothing names.",
    )
    def maintained(
        context: dg.AssetExecutionContext, config: MaintenanceConfig, connections: dg.ResourceParam[Connections]
    ) -> dg.MaterializeResult[None]:
        done: list[MaintainedTable] = []
        try:
            with closing(connections.warehouse()) as warehouse:
                keep = keeping(connections, context.instance, rehearsal=config.rehearsal, keep_days=config.keep_days)
                for one in maintain(pipeline, connections.lake(), warehouse, keep):
                    context.log.info(
                        f"{one.table}: {one.lake.bytes:,} bytes in {len(one.lake.files)} files not needed any more"
                    )
                    done.append(one)
        except BackfillError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        return dg.MaterializeResult(metadata=maintenance_metadata(done, rehearsal=config.rehearsal))

    return maintained


def keeping(connections: Connections, instance: dg.DagsterInstance, *, rehearsal: bool, keep_days: int | None) -> Keep:
    """What is kept by the settings, or for `keep_days`, and for the repairs that are under way in this Dagster."""
    days = connections.lake_days if keep_days is None else keep_days
    return Keep(now() - timedelta(days=days), connections.patch_days, lambda: repairs_at_work(instance), rehearsal)


def maintenance_metadata(done: list[MaintainedTable], *, rehearsal: bool = False) -> dict[str, dg.MetadataValue]:
    """What was done, for the page of the asset, which plots the sizes. A rehearsal has freed nothing."""
    rows = lines(done)
    records = [dg.TableRecord({name: str(cell) for name, cell in zip(COLUMNS, row, strict=True)}) for row in rows]
    schema = dg.TableSchema([dg.TableColumn(name) for name in COLUMNS])
    return {
        "tables": dg.MetadataValue.table(records=records, schema=schema),
        "bytes_not_needed" if rehearsal else "bytes_freed": dg.MetadataValue.int(sum(one.lake.bytes for one in done)),
        "bytes_of_data": dg.MetadataValue.int(sum(one.lake.kept_data for one in done)),
        "bytes_of_metadata": dg.MetadataValue.int(sum(one.lake.kept_metadata for one in done)),
    }


def maintenance_schedule(pipeline: Pipeline, asset: dg.AssetsDefinition) -> dg.ScheduleDefinition:
    """Maintains the tables of the pipeline every night, UTC."""
    tags = {**NEVER_RETRIED, **AT_THE_END}
    job = dg.define_asset_job(maintenance_job_name(pipeline.name), dg.AssetSelection.assets(asset), tags=tags)
    return dg.ScheduleDefinition(
        name=maintenance_job_name(pipeline.name),
        job=job,
        cron_schedule=_CRON,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Remove what the lake tables of {pipeline.name} no longer need.",
    )
