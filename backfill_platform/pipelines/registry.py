"""Finding the declared pipelines."""

from collections.abc import Iterable
from importlib import import_module

from backfill_platform.errors import BackfillError, SettingsError, UsageError
from backfill_platform.pipelines.spec import Pipeline


def load_pipelines(modules: Iterable[str]) -> dict[str, Pipeline]:
    """The `pipeline` of each module, by name.

    Raises SettingsError for a module without one or a name that is used twice, and SpecError for a wrong declaration.
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
        pipelines[pipeline.name] = pipeline
    if not pipelines:
        raise SettingsError("BACKFILL_PIPELINES names no module")
    return pipelines


def find_pipeline(pipelines: dict[str, Pipeline], name: str) -> Pipeline:
    """The pipeline of that name. Raises UsageError with the declared names."""
    if name not in pipelines:
        raise UsageError(f"there is no pipeline '{name}'; there are: {', '.join(sorted(pipelines))}")
    return pipelines[name]
