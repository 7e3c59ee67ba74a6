"""What people read of a repair, from hand-made outcomes."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from backfill_platform.adapters.clickhouse.publishing.diff import ColumnChange, HourDiff
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, Status
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.notification import Notification, NotificationKind
from backfill_platform.domain.plan import AssetPath
from backfill_platform.domain.request import RepairRequest
from backfill_platform.examples import clickstream
from backfill_platform.notifications.messages import run_ended, run_started
from backfill_platform.repair.outcomes import CheckResult, HourOutcome, TargetHour
from backfill_platform.reports.repair_report import RepairReport, RunSubject

FIRST = datetime(1998, 4, 30, 22, tzinfo=UTC)
SESSIONS: AssetPath = ("warehouse", "sessions")
HOURLY: AssetPath = ("warehouse", "site_hourly")
OWNED = replace(clickstream.pipeline, owners=("team:web",))
REQUEST = RepairRequest(reason="a broker was down", requester="ada")
REPAIR = RunSubject(
    OWNED,
    HourRange(FIRST, FIRST + 24 * HOUR),
    (("transformed", "sessions"), SESSIONS, HOURLY),
    repair_id="r7",
    request=REQUEST,
    run_url="http://ui/runs/1",
)


def ended(subject: RunSubject, outcomes: Sequence[HourOutcome], *, error: str = "", conflicts: int = 0) -> Notification:
    report = RepairReport(subject, error=error, conflicts=conflicts)
    for outcome in outcomes:
        report.add(outcome)
    return run_ended(report)


def done(
    asset: AssetPath, number: int, cancels: int = 0, states: int = 0, untouched: int = 0, columns: Sequence[ColumnChange] = ()
) -> HourOutcome:
    hour = FIRST + number * HOUR
    before = Fingerprint(cancels + untouched)
    result = HourPublish(hour, Status.PUBLISHED, before, Fingerprint(states + untouched), cancels=cancels, states=states)
    diff = HourDiff(hour, untouched, changed=cancels, columns=tuple(columns))
    return HourOutcome(asset, hour, target=TargetHour(result, diff))


def bad(number: int, error: str = "failed a check", asset: AssetPath = SESSIONS, *, refused: bool = False) -> HourOutcome:
    return HourOutcome(asset, FIRST + number * HOUR, error, refused=refused)


def test_the_start_says_why_which_hours_and_whose_tables() -> None:
    message = run_started(RepairReport(replace(REPAIR, request=REQUEST.model_copy(update={"tenants": ("17505", "9")}))))
    assert message.kinds == (NotificationKind.STARTED,)
    assert message.subject == "[backfill] clickstream: repair started"
    assert message.text.splitlines() == [
        "What was wrong: a broker was down (asked by ada)",
        "Hours: 1998-04-30 22:00 to 1998-05-01 22:00 UTC, 24 hours",
        "Only rows of: 17505, 9",
        "Will work on: transformed/sessions, warehouse/sessions, warehouse/site_hourly",
        "Who is affected: readers of transformed.sessions, aggregated.site_hourly in ClickHouse",
        "Owners: team:web",
        "Repair: r7",
        "Run: http://ui/runs/1",
    ]


def test_the_end_says_what_changed_and_how_to_take_it_back() -> None:
    columns = [ColumnChange("bytes", 2), ColumnChange("requests", 1)]
    outcomes = [
        HourOutcome(("transformed", "sessions"), FIRST),
        done(SESSIONS, 0, 1000, 1500, 10, columns),
        done(SESSIONS, 1, 0, 0, 20),
        done(SESSIONS, 2, 1, 2, 3, columns),
        done(HOURLY, 0, 0, 0, 1),
    ]
    message = ended(REPAIR, outcomes)
    assert message.kinds == (NotificationKind.FINISHED,)
    assert message.subject == "[backfill] clickstream: repair finished, 2 hours changed in ClickHouse"
    assert message.text.splitlines()[2:] == [
        "What changed:",
        "- transformed/sessions: 1 hour rebuilt in the lake",
        "- warehouse/sessions: 2 hours changed (1998-04-30 22:00 to 23:00, 1998-05-01 00:00 to 01:00 UTC, 2 hours): "
        "1,001 rows cancelled, 1,502 inserted, 33 untouched",
        "  columns that differ: bytes in 4 rows, requests in 2 rows",
        "- warehouse/site_hourly: nothing to change in 1 hour, 1 row untouched",
        "Who is affected: readers of transformed.sessions in ClickHouse",
        "Owners: team:web",
        "Look: backfill ledger clickstream --from 1998-04-30T22 --to 1998-05-01T22",
        "Take it back: backfill undo clickstream r7",
        "Repair: r7",
        "Run: http://ui/runs/1",
    ]


def test_tables_that_are_computed_from_what_changed_are_named_when_they_are_left_out() -> None:
    only = replace(REPAIR, assets=(SESSIONS,))
    assert "not part of this run: aggregated/site_hourly" in ended(only, [done(SESSIONS, 0, 1, 1)]).text
    assert "not part of this run" not in ended(REPAIR, [done(SESSIONS, 0, 1, 1)]).text


def test_hours_that_failed_come_first_with_their_error_and_long_lists_say_what_they_leave_out() -> None:
    outcomes = [bad(number, f"error {number} " + "x" * 1000) for number in range(8)] + [done(SESSIONS, 9, 1, 1)]
    message = ended(REPAIR, outcomes)
    assert message.kinds == (NotificationKind.FAILED,)
    assert message.subject.endswith("repair failed for 8 hours")
    lines = message.text.splitlines()
    assert lines[2] == "Failed: 8 hours"
    assert lines[3].startswith("- warehouse/sessions 1998-04-30T22: error 0 xxx")
    assert lines[3].endswith(" ...")
    assert lines[8] == "and 3 more hours"
    assert "error 5" not in message.text
    assert "run the same again" in message.text
    assert max(map(len, lines)) < 500


def test_an_hour_of_two_tables_is_one_hour() -> None:
    assert ended(REPAIR, [bad(0), bad(0, asset=HOURLY)]).subject.endswith("repair failed for 1 hour (2 in 2 tables)")


def test_refused_hours_wait_for_a_person_and_failed_ones_are_more_serious() -> None:
    message = ended(REPAIR, [bad(0, "beyond the change limits: 3 of 4", refused=True), done(SESSIONS, 1, 1, 1)])
    assert message.kinds == (NotificationKind.WAITING,)
    assert message.subject.endswith("repair waits for you: 1 hour refused")
    assert "- warehouse/sessions 1998-04-30T22: beyond the change limits: 3 of 4" in message.text
    assert "Take it back: backfill undo clickstream r7" in message.text
    both = ended(REPAIR, [bad(0, refused=True), bad(1)])
    assert both.kinds == (NotificationKind.FAILED, NotificationKind.WAITING)
    assert both.subject.endswith("repair failed for 1 hour")


def test_a_dry_run_waits_only_when_it_found_differences() -> None:
    dry: AssetPath = ("dry_run", "sessions")
    asked = replace(REPAIR, assets=(dry,))
    same = ended(asked, [HourOutcome(("transformed", "sessions"), FIRST), done(dry, 0)])
    assert "in the lake" not in same.text
    assert (same.kinds, same.subject) == ((NotificationKind.FINISHED,), "[backfill] clickstream: dry run finished")
    found = ended(asked, [done(dry, 0, 3, 4, 5)])
    assert found.kinds == (NotificationKind.WAITING,)
    assert found.subject.endswith("dry run found differences in 1 hour, and waits for you")
    assert "What would change (nothing was written):" in found.text
    assert "backfill run clickstream --from 1998-04-30T22 --to 1998-05-01T22" in found.text
    assert "undo" not in found.text
    outside = replace(done(dry, 0, 3, 4), checks=(CheckResult("within_change_limits", False, True),))
    assert "Beyond the change limits, and so a repair would refuse them: 1 hour" in ended(asked, [outside]).text


def test_hours_that_are_not_yet_due_need_nobody() -> None:
    due = replace(bad(0, "not yet due"), due=FIRST + timedelta(hours=30))
    message = ended(REPAIR, [due])
    assert message.kinds == (NotificationKind.FINISHED,)
    assert "Not yet due: 1 hour; the last at 1998-05-02 04:00 UTC" in message.text


def test_views_that_are_wrong_now_wait_for_a_person() -> None:
    changed = done(SESSIONS, 0, 1, 1)
    assert changed.target is not None
    outcome = replace(changed, target=replace(changed.target, views_to_rebuild="reports.daily"))
    message = ended(REPAIR, [outcome])
    assert message.kinds == (NotificationKind.WAITING,)
    assert "Views to rebuild for warehouse/sessions 1998-04-30T22: reports.daily" in message.text


def test_an_undo_says_what_it_takes_back_and_what_it_left_alone() -> None:
    asked = RunSubject(OWNED, undoes="r7", repair_id="r8", request=RepairRequest(requester="ada", reason="undo of r7"))
    message = ended(asked, [done(SESSIONS, 0, 2, 1)], conflicts=3)
    assert message.kinds == (NotificationKind.WAITING,)
    assert message.text.startswith(
        "Takes back what the repair r7 published (asked by ada)\nHours: 1998-04-30 22:00 to 23:00 UTC"
    )
    assert "Left alone, because they have changed since: 3 rows" in message.text
    assert "Take it back: backfill undo clickstream r8" in message.text
    assert ended(asked, [done(SESSIONS, 0, 2, 1)]).kinds == (NotificationKind.FINISHED,)


@pytest.mark.parametrize("known", [REPAIR, RunSubject(OWNED)])
def test_a_run_that_fails_as_a_whole_says_with_what(known: RunSubject) -> None:
    message = ended(known, [], error="no embedded warehouse is running:\nstart it with `backfill up`")
    assert message.kinds == (NotificationKind.FAILED,)
    assert message.subject == "[backfill] clickstream: repair failed"
    assert "What went wrong: no embedded warehouse is running: start it with `backfill up`" in message.text
