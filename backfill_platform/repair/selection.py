"""Which assets a repair of a range takes, when nobody names them."""

from collections.abc import Iterable

from backfill_platform.core.hours import HourRange
from backfill_platform.core.plan import DRY_RUN, WAREHOUSE, AssetPath
from backfill_platform.errors import UsageError
from backfill_platform.lake.tables import Lake
from backfill_platform.pipelines.spec import Pipeline


def repair_assets(pipeline: Pipeline, lake: Lake, hours: HourRange) -> tuple[AssetPath, ...]:
    """The derived tables and their warehouse copies; and the raw table, where an hour of the range has not landed.

    Landed hours are left alone: they are closed, and everything else is computed from them.
    """
    assets = [asset for node in pipeline.nodes[1:] for asset in node.assets if asset[0] != DRY_RUN]
    if not set(hours) <= lake.built_hours(pipeline.raw.table):
        assets.insert(0, pipeline.raw.table.path)
    return tuple(assets)


def dry_run_assets(pipeline: Pipeline) -> tuple[AssetPath, ...]:
    """The dry runs of all published tables."""
    return tuple((DRY_RUN, table.name) for table in pipeline.published)


def named_assets(names: Iterable[str]) -> tuple[AssetPath, ...]:
    """Assets from texts such as `warehouse/sessions`. Raises UsageError for a text that names none."""
    found = []
    for name in names:
        prefix, slash, table = name.partition("/")
        if not (prefix and slash and table):
            raise UsageError(f"'{name}' names no asset; write it like transformed/sessions or {WAREHOUSE}/sessions")
        found.append((prefix, table))
    return tuple(found)
