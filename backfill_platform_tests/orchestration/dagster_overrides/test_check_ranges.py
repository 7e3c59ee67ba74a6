"""Evaluations become one for contiguous hours that passed, and each hour's own comes back out of it as it was."""

from typing import Any, cast

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.events import DagsterEvent
from hypothesis import given
from hypothesis import strategies as st

from backfill_platform.domain.hours import HOUR, HourRange, parse_hour, partition_key
from backfill_platform.orchestration.dagster_overrides.check_ranges import hour_of_range, hours_of_text, merged, range_text

START = parse_hour("2025-01-31T22")
KEYS = [partition_key(START + number * HOUR) for number in range(8)]
Event = dg.EventLogEntry


def event(partition: str | None, *, passed: bool = True, number: int | None = 1, run: str = "run", **named: Any) -> Event:
    target = AssetCheckEvaluationTargetMaterializationData(storage_id=number, run_id="maker", timestamp=1.5) if number else None
    evaluation = dg.AssetCheckEvaluation(
        dg.AssetKey(["raw", "clicks"]), "good", passed, partition=partition, target_materialization_data=target, **named
    )
    inner = DagsterEvent(dg.DagsterEventType.ASSET_CHECK_EVALUATION.value, "job", event_specific_data=evaluation)
    return line("text", run)._replace(dagster_event=inner)


def line(text: str, run: str = "run") -> Event:
    return Event(None, 10, text, run, 2.5)  # type: ignore[no-untyped-call]


def said(one: Event) -> dg.AssetCheckEvaluation:
    return cast(dg.AssetCheckEvaluation, one.get_dagster_event().event_specific_data)


def test_hours_that_passed_become_one_and_come_back() -> None:
    facts = [
        {"rows": number, "same": "x", "share": number / 3, "ok": True, "sample": dg.MetadataValue.md(f"|{number}|")}
        for number in range(8)
    ]
    events = [event(key, number=100 + number, metadata=facts[number]) for number, key in enumerate(KEYS)]
    (one,) = merged(events)
    assert said(one).partition == f"{KEYS[0]}...{KEYS[-1]}"
    assert one.user_message == "Asset check 'good' on 'raw/clicks' passed for 8 hours."
    for key, before in zip(KEYS, events, strict=True):
        own = said(hour_of_range(one, key))
        assert own == said(before)
        assert list(own.metadata) == ["rows", "same", "share", "ok", "sample"], "in their order"


def test_what_is_not_the_same_stays_by_itself() -> None:
    alone = [
        event(KEYS[0], passed=False),
        event(KEYS[1], number=None),
        event(KEYS[2], run=""),
        event(KEYS[3], run="other"),
        event(KEYS[4], description="another"),
        event(KEYS[5], metadata={"a": [1]}),
        event(KEYS[6], severity=dg.AssetCheckSeverity.WARN),
        event(None),
        event("2025-01-31"),
        line("a line"),
    ]
    assert merged(alone) == alone
    assert merged([event(KEYS[0]), event(KEYS[2])]) == [event(KEYS[0]), event(KEYS[2])], "not contiguous"


def test_a_check_that_judges_an_hour_twice_is_left_in_its_order() -> None:
    events = [event(KEYS[0]), event(KEYS[1]), event(KEYS[0], passed=False)]
    assert merged(events) == events


@given(st.sets(st.sampled_from(KEYS)), st.lists(st.integers(1, 3), min_size=8, max_size=8))
def test_every_hour_is_in_exactly_one_event(chosen: set[str], steps: list[int]) -> None:
    numbers = {key: sum(steps[: place + 1]) for place, key in enumerate(KEYS)}
    found = merged([event(key, number=numbers[key]) for key in sorted(chosen)])
    seen: list[str] = []
    for one in found:
        hours = hours_of_text(said(one).partition)
        for key in map(partition_key, hours) if hours else [cast(str, said(one).partition)]:
            own = said(hour_of_range(one, key)) if hours else said(one)
            assert cast(Any, own.target_materialization_data).storage_id == numbers[key]
            seen.append(key)
    assert sorted(seen) == sorted(chosen)


def test_a_range_is_told_from_other_partitions() -> None:
    hours = HourRange(START, START + 3 * HOUR)
    assert hours_of_text(range_text(hours)) == hours
    for other in (None, "", KEYS[0], "a...b", "...", f"{KEYS[0]}...", "2025-01-01...2025-01-02"):
        assert hours_of_text(other) is None
