"""Finding the declared pipelines."""

from collections.abc import Iterable
from importlib import import_module

from backfill_platform.errors import BackfillError, SettingsError, UsageError
from backfill_platform.pipelines.spec import Pipeline


def load_pipelines(modules: Iterable[str]) -> dict[str, Pipeline]:
    """The `pipeline` of each module, by name.

    Raises SettingsError for a module without one and for a pipeline or table that is declared twice, and SpecError for a wrong
    declaration.
    """
    pipelines: dict[str, Pipeline] = {}
    for module in modules:
        try:
            pipeline = import_module(module).pipeline
        except BackfillError:
            raise
        except Exception as error:  # a user's module may raise anything; the message names the module
            why = f"{type(error).__name__}: {error}"
            raise SettingsError(
                f"BACKFILL_PIPELINES: module {module} has no `pipeline` that can be imported ({why})"
            ) from error
        if not isinstance(pipeline, Pipeline):
            raise SettingsError(f"BACKFILL_PIPELINES: `pipeline` of {module} is not a Pipeline")
        if pipeline.name in pipelines:
            raise SettingsError(f"BACKFILL_PIPELINES: two pipelines are named {pipeline.name}")
        _check_tables(pipeline, pipelines)
        pipelines[pipeline.name] = pipeline
    if not pipelines:
        raise SettingsError("BACKFILL_PIPELINES names no module")
    return pipelines


def find_pipeline(pipelines: dict[str, Pipeline], name: str) -> Pipeline:
    """The pipeline of that name. Raises UsageError with the declared names."""
    if name not in pipelines:
        raise UsageError(f"there is no pipeline '{name}'; there are: {', '.join(sorted(pipelines))}")
    return pipelines[name]


def _check_tables(pipeline: Pipeline, others: dict[str, Pipeline]) -> None:
    """Refuse a table that another pipeline has: they would write over each other's rows."""
    owners = {table.path: other.name for other in others.values() for table in other.tables}
    for table in pipeline.tables:
        if table.path in owners:
            both = f"{owners[table.path]} and {pipeline.name}"
            raise SettingsError(f"BACKFILL_PIPELINES: {table} is a table of both {both}; rename it in one of them")
    targets = {table.stored_in: other.name for other in others.values() for table in other.published}
    for table in pipeline.published:
        if table.stored_in in targets:
            both = f"{targets[table.stored_in]} and {pipeline.name}"
            place = ".".join(table.stored_in)
            raise SettingsError(
                f"BACKFILL_PIPELINES: {both} both publish to the ClickHouse table {place}; give one another target"
            )
