"""What a repair was about, for people who did not run it: what was wrong, which hours, what changed, who is affected.

Pure: from what was asked and the outcomes of hours to a message. Long lists are cut, and say how much is left out.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from backfill_platform.domain.gaps import Gap
from backfill_platform.domain.hours import HourRange, format_hour, merge_hours
from backfill_platform.domain.notification import Notification, NotificationKind
from backfill_platform.domain.plan import DRY_RUN, WAREHOUSE, AssetPath
from backfill_platform.domain.tables import Layer
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.outcomes import HourOutcome
from backfill_platform.repair.publish import CHANGED_COLUMNS, WITHIN_CHANGE_LIMITS

_IN_CLICKHOUSE = (DRY_RUN, WAREHOUSE)
_MOST_HOURS = 5  # with their error
_MOST_RANGES = 6
_MOST_TEXT = 400  # characters of an error or a reason


@dataclass(frozen=True)
class Asked:
    """What a run is about. What is not known when it begins, or fails, is empty; `undoes` names a repair that it takes back."""

    pipeline: Pipeline
    hours: HourRange | None = None
    assets: tuple[AssetPath, ...] = ()
    repair_id: str = ""
    reason: str = ""
    requester: str = ""
    tenants: tuple[str, ...] = ()
    undoes: str = ""
    run_url: str = ""

    @property
    def rehearses(self) -> bool:
        """Whether nothing but dry runs was asked for."""
        return bool(self.assets) and all(asset[0] == DRY_RUN for asset in self.assets)

    @property
    def what(self) -> str:
        """The verb of the run."""
        return f"undo of {self.undoes}" if self.undoes else "dry run" if self.rehearses else "repair"


@dataclass
class _Change:
    """What became of the hours of one asset."""

    done: list[datetime] = field(default_factory=list)
    changed: list[datetime] = field(default_factory=list)
    cancels: int = 0
    states: int = 0
    untouched: int = 0
    columns: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: HourOutcome) -> None:
        self.done.append(outcome.hour)
        cancels, states = _number(outcome, "cancels"), _number(outcome, "states")
        if cancels or states:
            self.changed.append(outcome.hour)
        self.cancels += cancels
        self.states += states
        self.untouched += _number(outcome, "untouched")
        for rows in outcome.tables:
            if rows.title == CHANGED_COLUMNS:
                self.columns.update({str(name): int(count) for name, count in rows.rows})


def started(asked: Asked) -> Notification:
    """That a run begins, and over what."""
    lines = [*_why(asked), *_which(asked, asked.hours or ())]
    if asked.assets:
        lines.append(f"Will work on: {', '.join('/'.join(asset) for asset in asked.assets)}")
    lines += [*_affected(asked, [name for prefix, name in asked.assets if prefix in _IN_CLICKHOUSE]), *_links(asked)]
    return _message((NotificationKind.STARTED,), asked, f"{asked.what} started", lines, {})


def ended(asked: Asked, outcomes: Sequence[HourOutcome], *, error: str = "", conflicts: int = 0) -> Notification:
    """How a run ended: with an error of the whole run, with hours that failed or wait for a person, or well.

    `conflicts` are the rows that an undo left alone because they have changed since.
    """
    failed = [one for one in outcomes if one.failed and not one.asks]
    asking = [one for one in outcomes if one.failed and one.asks]
    due = [one for one in outcomes if one.error and one.due is not None]
    changes: dict[AssetPath, _Change] = {}
    for one in outcomes:
        if not one.error:
            changes.setdefault(one.asset, _Change()).add(one)
    questions = _questions(asked, outcomes, asking, changes, conflicts)
    kinds = [
        kind for kind, is_so in ((NotificationKind.FAILED, error or failed), (NotificationKind.WAITING, questions)) if is_so
    ] or [NotificationKind.FINISHED]
    lines = [*_why(asked), *_which(asked, asked.hours or {one.hour for one in outcomes})]
    if error:
        lines.append(f"What went wrong: {_short(error)}")
    lines += _named("Failed", failed)
    lines += questions
    lines += _changes(asked, changes)
    lines += _affected(asked, [name for (prefix, name), one in changes.items() if prefix in _IN_CLICKHOUSE and one.changed])
    if due:
        ends = max(one.due for one in due if one.due is not None)
        lines.append(f"Not yet due: {_count(due)}; the last at {ends:%Y-%m-%d %H:%M} UTC. Nothing has to be done")
    lines += _ways(asked, changes, failed, error)
    lines += _links(asked)
    facts = {
        "error": error,
        "failed": [_plain(one) for one in failed],
        "waiting": [_plain(one) for one in asking],
        "tables": [
            {
                "asset": "/".join(asset),
                "hours": [format_hour(hour) for hour in sorted(change.done)],
                "changed_hours": [format_hour(hour) for hour in sorted(change.changed)],
                "cancels": change.cancels,
                "states": change.states,
                "untouched": change.untouched,
            }
            for asset, change in changes.items()
        ],
    }
    return _message(tuple(kinds), asked, _verdict(asked, error, failed, asking, changes), lines, facts)


def gaps_found(
    pipeline: Pipeline, gaps: Sequence[Gap], wanted: Mapping[AssetPath, Iterable[datetime]], page: str = ""
) -> Notification:
    """That damaged hours were found which nothing repairs by itself: what is wrong, and what to run.

    `wanted` are the hours of each asset that mend them, `page` the address of the web page or empty.
    """
    finder = f"{pipeline.name}_gaps"
    asked = Asked(pipeline, HourRange.covering(gap.hour for gap in gaps), reason=f"gaps found by {finder}", requester=finder)
    alike: dict[tuple[str, str], list[Gap]] = {}
    for gap in gaps:
        alike.setdefault((gap.table, str(gap.kind)), []).append(gap)
    lines = ["What is wrong:"]
    for (table, kind), found in list(alike.items())[:_MOST_HOURS]:
        such = " (the first of them)" if len(found) > 1 else ""
        lines += [
            f"- {table} {kind}: {_ranges(merge_hours(gap.hour for gap in found))}",
            f"  {_short(found[0].evidence)}{such}",
        ]
    lines += _more(len(alike) - _MOST_HOURS, "kinds of damage")
    tenants = sorted({tenant for gap in gaps for tenant in gap.tenants})
    if tenants:
        lines.append(f"Tenants whose rows differ: {_some(tenants, 'tenants')}")
    lines += _affected(asked, [name for prefix, name in wanted if prefix == WAREHOUSE])
    repairs = merge_hours(hour for hours in wanted.values() for hour in hours)
    commands = [
        f"backfill run {pipeline.name} --from {format_hour(one.start)} --to {format_hour(one.end)} --reason '{asked.reason}'"
        for one in repairs
    ]
    lines.append("Nothing repairs this by itself. To repair it (`dry-run` in place of `run` shows what that would change):")
    lines += [f"    {command}" for command in commands[:_MOST_RANGES]] + _more(len(commands) - _MOST_RANGES, "ranges")
    if page:
        lines.append(f"Page: {page}")
    facts = {
        "what": "gaps",
        "gaps": [
            {
                "table": gap.table,
                "hour": format_hour(gap.hour),
                "kind": str(gap.kind),
                "evidence": gap.evidence,
                "tenants": list(gap.tenants),
            }
            for gap in gaps
        ],
        "commands": commands,
    }
    verdict = f"{_hours(len({gap.hour for gap in gaps}))} damaged, and the repair waits for you"
    return _message((NotificationKind.WAITING,), asked, verdict, lines, facts)


def trial(pipeline: Pipeline) -> Notification:
    """A message of every kind that says it is a test."""
    text = f"This is a test: the recipients of {pipeline.name} are told of its repairs here. Nothing has happened."
    return Notification(
        tuple(NotificationKind), pipeline.name, f"[backfill] {pipeline.name}: a test message", text, {"test": True}
    )


def _verdict(
    asked: Asked,
    error: str,
    failed: Sequence[HourOutcome],
    asking: Sequence[HourOutcome],
    changes: dict[AssetPath, _Change],
) -> str:
    """The subject: the worst thing first."""
    changed = {hour for asset, change in changes.items() if asset[0] in _IN_CLICKHOUSE for hour in change.changed}
    if error and not failed:
        return f"{asked.what} failed"
    if failed:
        return f"{asked.what} failed for {_count(failed)}"
    if asking:
        return f"{asked.what} waits for you: {_count(asking)} refused"
    if asked.rehearses and changed:
        return f"dry run found differences in {_hours(len(changed))}, and waits for you"
    return f"{asked.what} finished, {_hours(len(changed))} changed in ClickHouse" if changed else f"{asked.what} finished"


def _why(asked: Asked) -> list[str]:
    by = f" (asked by {asked.requester})" if asked.requester else ""
    if asked.undoes:
        return [f"Takes back what the repair {asked.undoes} published{by}"]
    return [f"What was wrong: {_short(asked.reason)}{by}" if asked.reason else f"No reason was given{by}"]


def _which(asked: Asked, hours: Iterable[datetime]) -> list[str]:
    found = merge_hours(hours)
    if not found:
        return []
    lines = [f"Hours: {_ranges(found)}"]
    if asked.tenants:
        lines.append(f"Only rows of: {_some(asked.tenants, 'tenants')}")
    return lines


def _changes(asked: Asked, changes: dict[AssetPath, _Change]) -> list[str]:
    lines = []
    for asset, change in changes.items():
        name = "/".join(asset)
        if asset[0] not in _IN_CLICKHOUSE:
            if not asked.rehearses:  # a dry run throws what it builds away
                did = "landed" if asset[0] == Layer.RAW else "rebuilt"
                lines.append(f"- {name}: {_hours(len(change.done))} {did} in the lake")
        elif not change.changed:
            lines.append(f"- {name}: nothing to change in {_hours(len(change.done))}, {change.untouched:,} rows untouched")
        else:
            lines.append(
                f"- {name}: {_hours(len(change.changed))} {'would change' if asset[0] == DRY_RUN else 'changed'} "
                f"({_ranges(merge_hours(change.changed))}): {change.cancels:,} rows cancelled, {change.states:,} inserted, "
                f"{change.untouched:,} untouched"
            )
            if change.columns:
                columns = [f"{column} in {count:,} rows" for column, count in change.columns.most_common()]
                lines.append(f"  columns that differ: {_some(columns, 'columns')}")
    if not lines:
        return ["What changed: nothing"]
    return ["What would change (nothing was written):" if asked.rehearses else "What changed:", *lines]


def _affected(asked: Asked, tables: Sequence[str]) -> list[str]:
    """Readers of the tables, and what is computed from them without being part of this run."""
    if not tables:
        return []
    pipeline = asked.pipeline
    names = [".".join(table.path) for table in pipeline.published if table.name in tables]
    lines = [f"Who {'would be' if asked.rehearses else 'is'} affected: readers of {', '.join(names)} in ClickHouse"]
    reached = set(tables)
    for node in pipeline.nodes:
        if node.reads is not None and node.reads.name in reached:
            reached.add(node.table.name)
    worked_on = {name for _, name in asked.assets}
    behind = [str(node.table) for node in pipeline.nodes if node.table.name in reached - worked_on]
    if behind and worked_on and not asked.undoes:
        lines.append(f"Computed from these and not part of this run: {', '.join(behind)}")
    if pipeline.owners:
        lines.append(f"Owners: {', '.join(pipeline.owners)}")
    return lines


def _questions(
    asked: Asked,
    outcomes: Sequence[HourOutcome],
    asking: Sequence[HourOutcome],
    changes: dict[AssetPath, _Change],
    conflicts: int,
) -> list[str]:
    """What waits for a person; empty when nothing does."""
    lines = _named("Refused, nothing was written to them; you decide", asking)
    if asked.rehearses and any(change.changed for change in changes.values()):
        lines.append(f"It is for you to repair it: {_command(asked, 'run')} --reason ...")
        outside = [
            one for one in outcomes if any(check.name == WITHIN_CHANGE_LIMITS and not check.passed for check in one.checks)
        ]
        if outside:
            lines.append(f"Beyond the change limits, and so a repair would refuse them: {_count(outside)}")
    suspect = [one for one in outcomes if one.facts.get("views_to_rebuild")]
    for one in suspect[:_MOST_HOURS]:
        lines.append(f"Views to rebuild for {_name(one)}: {_short(str(one.facts['views_to_rebuild']))}")
    lines += _more(len(suspect) - _MOST_HOURS, "hours with views to rebuild")
    if conflicts:
        lines.append(f"Left alone, because they have changed since: {conflicts:,} rows; look whether they are right")
    return lines


def _ways(asked: Asked, changes: dict[AssetPath, _Change], failed: Sequence[HourOutcome], error: str) -> list[str]:
    """How to look, to go on and to go back, as commands."""
    name = asked.pipeline.name
    lines = [f"Look: {_command(asked, 'ledger')}"]
    if (failed or error) and not asked.undoes:
        lines.append("When the cause is gone, run the same again: it does what is missing, and nothing twice")
    published = any(change.changed for asset, change in changes.items() if asset[0] == WAREHOUSE)
    if asked.repair_id and published:
        lines.append(f"Take it back: backfill undo {name} {asked.repair_id}")
    return lines


def _command(asked: Asked, verb: str) -> str:
    bounds = f" --from {format_hour(asked.hours.start)} --to {format_hour(asked.hours.end)}" if asked.hours else ""
    return f"backfill {verb} {asked.pipeline.name}{bounds}"


def _links(asked: Asked) -> list[str]:
    repair = [f"Repair: {asked.repair_id}"] if asked.repair_id else []
    return repair + ([f"Run: {asked.run_url}"] if asked.run_url else [])


def _named(what: str, outcomes: Sequence[HourOutcome]) -> list[str]:
    if not outcomes:
        return []
    lines = [f"- {_name(one)}: {_short(one.error)}" for one in outcomes[:_MOST_HOURS]]
    return [f"{what}: {_count(outcomes)}", *lines, *_more(len(outcomes) - _MOST_HOURS, "hours")]


def _message(
    kinds: tuple[NotificationKind, ...], asked: Asked, verdict: str, lines: Sequence[str], facts: dict[str, Any]
) -> Notification:
    name = asked.pipeline.name
    about = {
        "repair": asked.repair_id,
        "what": asked.what,
        "reason": asked.reason,
        "requester": asked.requester,
        "from": format_hour(asked.hours.start) if asked.hours else None,
        "to": format_hour(asked.hours.end) if asked.hours else None,
        "tenants": list(asked.tenants),
        "owners": list(asked.pipeline.owners),
        "run_url": asked.run_url,
    }
    return Notification(kinds, name, f"[backfill] {name}: {verdict}", "\n".join(lines), {**about, **facts})


def _ranges(ranges: Sequence[HourRange]) -> str:
    """Ranges for people, with their ends as clocks show them."""
    shown = [
        f"{one.start:%Y-%m-%d %H:%M} to {one.end:{'%H:%M' if one.start.date() == one.end.date() else '%Y-%m-%d %H:%M'}}"
        for one in ranges[:_MOST_RANGES]
    ]
    more = _more(len(ranges) - _MOST_RANGES, "ranges")
    return f"{', '.join([*shown, *more])} UTC, {_hours(sum(map(len, ranges)))}"


def _some(texts: Sequence[str], what: str) -> str:
    return ", ".join([*texts[:_MOST_RANGES], *_more(len(texts) - _MOST_RANGES, what)])


def _more(left: int, what: str) -> list[str]:
    return [f"and {left:,} more {what}"] if left > 0 else []


def _count(outcomes: Sequence[HourOutcome]) -> str:
    """Hours of tables: an hour of two tables is two."""
    tables = len({one.asset for one in outcomes})
    return _hours(len({one.hour for one in outcomes})) + (f" ({len(outcomes)} in {tables} tables)" if tables > 1 else "")


def _hours(count: int) -> str:
    return f"{count:,} hour{'s' * (count != 1)}"


def _name(outcome: HourOutcome) -> str:
    return f"{'/'.join(outcome.asset)} {format_hour(outcome.hour)}"


def _plain(outcome: HourOutcome) -> dict[str, str]:
    return {"asset": "/".join(outcome.asset), "hour": format_hour(outcome.hour), "error": outcome.error}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_TEXT else f"{line[:_MOST_TEXT]} ..."


def _number(outcome: HourOutcome, name: str) -> int:
    value = outcome.facts.get(name, 0)
    return value if isinstance(value, int) else 0
