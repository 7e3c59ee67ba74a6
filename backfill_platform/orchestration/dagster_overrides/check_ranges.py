"""Evaluations of a check that say the same of many hours, as one: what is written, and how an hour's own is read from it.

Dagster stores an evaluation per hour and check, and a row about it besides: most of what a year of hours leaves, and nearly all
of them say "passed". Here the passed ones of contiguous hours become one evaluation whose partition is `FIRST...LAST`, as in
Dagster's dialog. Its metadata name for each hour the materialization that was judged, and the facts in which the hours differ.
Failed ones stay by themselves.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, cast

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationPlanned,
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster_shared.record import replace

from backfill_platform.domain.hours import HOUR, PARTITION_KEY_FORMAT, HourRange, merge_hours, partition_key

# Its JSON has `materializations`, [[number of the first, how many, run, timestamp], ...] in the order of the hours, `facts`,
# {name: [kind, [value of each hour]]}, and the `names` of all facts in their order.
JUDGED = "hour by hour"
# By the names that `dg.MetadataValue` makes them with. Evaluations with others stay by themselves.
_KINDS: dict[type, str] = {
    dg.IntMetadataValue: "int",
    dg.FloatMetadataValue: "float",
    dg.BoolMetadataValue: "bool",
    dg.TextMetadataValue: "text",
    dg.MarkdownMetadataValue: "md",
}
_TO = "..."

Event = dg.EventLogEntry


def range_text(hours: HourRange) -> str:
    """`2025-01-01-00:00...2025-01-01-23:00`: a range in place of a partition; its ends are inclusive."""
    return f"{partition_key(hours.start)}{_TO}{partition_key(hours.end - HOUR)}"


def hours_of_text(partition: str | None) -> HourRange | None:
    """The hours of a `range_text`; None for any other partition."""
    first, to, last = (partition or "").partition(_TO)
    ends = _hour(first), _hour(last)
    return HourRange(ends[0], ends[1] + HOUR) if to and ends[0] and ends[1] else None


def merged(events: Sequence[Event]) -> list[Event]:
    """The events with one evaluation for each contiguous range of hours that a check says the same good news of."""
    alike: dict[Any, list[int]] = defaultdict(list)
    seen: set[Any] = set()
    again: set[Any] = set()  # checks that judge an hour twice here: what came last must stay so
    for number, event in enumerate(events):
        evaluation = _evaluation(event)
        if evaluation is None:
            continue
        hour = event.run_id, evaluation.asset_check_key, evaluation.partition
        if hour in seen:
            again.add(hour[:2])
        seen.add(hour)
        if (common := _common(event, evaluation)) is not None:
            alike[common].append(number)
    left = dict(enumerate(events))
    for common, numbers in alike.items():
        if common[:2] in again:
            continue
        by_hour = {cast(datetime, _hour(_known(events[number]).partition)): number for number in numbers}
        for hours in merge_hours(by_hour):
            if len(hours) > 1:
                joined = [by_hour[hour] for hour in hours]
                for number in joined:
                    del left[number]
                left[max(joined)] = _joined([events[number] for number in joined], hours)
    return [left[number] for number in sorted(left)]


def hour_of_range(event: Event, hour: str) -> Event:
    """The evaluation of one hour (a partition key), from the event of a range that holds it."""
    evaluation = _known(event)
    hours = hours_of_text(evaluation.partition)
    assert hours is not None
    number = int((cast(datetime, _hour(hour)) - hours.start) / HOUR)
    judged = next(islice(materializations(event), number, None))
    by_hour = _hour_by_hour(event)
    facts = {name: _fact(kind, values[number]) for name, (kind, values) in by_hour["facts"].items()}
    metadata = {name: facts[name] if name in facts else evaluation.metadata[name] for name in by_hour["names"]}
    own = replace(evaluation, partition=hour, metadata=metadata, target_materialization_data=judged)
    return _with_evaluation(event, own, event.user_message)


def materializations(event: Event) -> Iterator[AssetCheckEvaluationTargetMaterializationData]:
    """The materializations that the event of a range has judged, one for each of its hours."""
    for first, count, run_id, timestamp in _hour_by_hour(event)["materializations"]:
        for number in range(first, first + count):
            yield AssetCheckEvaluationTargetMaterializationData(storage_id=number, run_id=run_id, timestamp=timestamp)


def is_of_hours(event: Event) -> bool:
    """Whether a planned check is planned for hours, and for nothing else."""
    planned = cast(AssetCheckEvaluationPlanned, event.get_dagster_event().event_specific_data)
    subset = planned.partitions_subset
    return subset is not None and all(_hour(key) is not None for key in subset.get_partition_keys())


def _evaluation(event: Event) -> dg.AssetCheckEvaluation | None:
    if event.dagster_event_type is not dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        return None
    return cast(dg.AssetCheckEvaluation, event.get_dagster_event().event_specific_data)


def _known(event: Event) -> dg.AssetCheckEvaluation:
    evaluation = _evaluation(event)
    assert evaluation is not None
    return evaluation


def _common(event: Event, evaluation: dg.AssetCheckEvaluation) -> tuple[Any, ...] | None:
    """What evaluations must share to become one; None for those that stay by themselves."""
    unfit = not evaluation.passed or not event.run_id or evaluation.target_materialization_data is None
    if unfit or _hour(evaluation.partition) is None:
        return None
    kinds = tuple((name, _KINDS.get(type(value))) for name, value in evaluation.metadata.items())
    if any(kind is None for _, kind in kinds):
        return None
    about = (evaluation.severity, evaluation.description, evaluation.blocking, kinds)
    return event.run_id, evaluation.asset_check_key, event.step_key, about


def _joined(parts: Sequence[Event], hours: HourRange) -> Event:
    judged: list[list[Any]] = []
    for part in parts:
        target = cast(AssetCheckEvaluationTargetMaterializationData, _known(part).target_materialization_data)
        follows = [target.storage_id, target.run_id, target.timestamp]
        if judged and follows == [judged[-1][0] + judged[-1][1], *judged[-1][2:]]:
            judged[-1][1] += 1
        else:
            judged.append([target.storage_id, 1, target.run_id, target.timestamp])
    last = _known(parts[-1])
    all_facts = [_known(part).metadata for part in parts]
    same = {name: value for name, value in last.metadata.items() if all(facts[name] == value for facts in all_facts)}
    facts = {
        name: [_KINDS[type(value)], [facts[name].value for facts in all_facts]]
        for name, value in last.metadata.items()
        if name not in same
    }
    hour_by_hour = {"materializations": judged, "facts": facts, "names": list(last.metadata)}
    metadata = {**same, JUDGED: dg.MetadataValue.json(hour_by_hour)}
    joined = replace(last, partition=range_text(hours), metadata=metadata)
    text = f"Asset check '{last.check_name}' on '{last.asset_key.to_user_string()}' passed for {len(hours)} hours."
    return _with_evaluation(parts[-1], joined, f"{text} Description: '{last.description}'" if last.description else text)


def _hour_by_hour(event: Event) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], _known(event).metadata[JUDGED].value)


def _fact(kind: str, value: Any) -> dg.MetadataValue:
    return cast(dg.MetadataValue, getattr(dg.MetadataValue, kind)(value))


def _with_evaluation(event: Event, evaluation: dg.AssetCheckEvaluation, message: str) -> Event:
    inner = event.get_dagster_event()._replace(event_specific_data=evaluation, message=message)
    return event._replace(dagster_event=inner, user_message=message)


def _hour(key: str | None) -> datetime | None:
    try:
        return datetime.strptime(key or "", PARTITION_KEY_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None
