"""The hours of a pipeline as partitions of its assets, and the hours of a run."""

from collections.abc import Mapping

import dagster as dg

from backfill_platform.domain.hours import HOUR, HourRange, parse_hour, partition_key
from backfill_platform.errors import SettingsError, UsageError
from backfill_platform.pipelines.spec import Pipeline

_START_TAG, _END_TAG = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"

# Dagster's web pages stay quick up to about 25,000 partitions of an asset; this leaves room for a few years.
_MOST_HOURS = 50_000


def partitions_of(pipeline: Pipeline) -> dg.HourlyPartitionsDefinition:
    """The hours of a pipeline, from its start to its end, or to now where it is live; make it once for all of its assets.

    Raises SettingsError when a finished pipeline has more hours than Dagster bears.
    """
    if pipeline.end is not None and len(hours := HourRange(pipeline.start, pipeline.end)) > _MOST_HOURS:
        raise SettingsError(
            f"pipeline {pipeline.name} has {len(hours)} hours, from {pipeline.start:%Y-%m-%d} to {pipeline.end:%Y-%m-%d}; "
            f"Dagster bears about {_MOST_HOURS}: declare its years as pipelines of their own"
        )
    return dg.HourlyPartitionsDefinition(start_date=pipeline.start, end_date=pipeline.end, timezone="UTC")


def hours_of_run(context: dg.AssetExecutionContext) -> HourRange:
    """The half-open range of hours of a run over one partition or a range of them."""
    window = context.partition_time_window
    return HourRange(parse_hour(window.start.isoformat()), parse_hour(window.end.isoformat()))


def range_tags(hours: HourRange) -> dict[str, str]:
    """The run tags by which Dagster runs a whole range in one run; its ends are inclusive."""
    return {_START_TAG: partition_key(hours.start), _END_TAG: partition_key(hours.end - HOUR)}


def hours_of_tags(tags: Mapping[str, str]) -> HourRange | None:
    """The hours of a run over one partition or a range of them, from its tags; None where it has no partitions."""
    first = tags.get(_START_TAG) or tags.get("dagster/partition")
    if first is None:
        return None
    return HourRange(parse_hour(first), parse_hour(tags.get(_END_TAG, first)) + HOUR)


def chosen_hours(tags: Mapping[str, str]) -> HourRange:
    """The hours that a run was launched for. Raises UsageError where it has none."""
    hours = hours_of_tags(tags)
    if hours is None:
        raise UsageError("choose the hours to look at: a partition, or a range of them")
    return hours
