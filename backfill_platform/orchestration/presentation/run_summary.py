"""The page of a repair: one Markdown text with its plan, what it changed, its checks, and how to look again or take it back."""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime
from urllib.parse import quote

import dagster as dg

from backfill_platform.domain.hours import format_hour, merge_hours
from backfill_platform.domain.plan import DRY_RUN, WAREHOUSE, Plan
from backfill_platform.orchestration.dagster_overrides.event_log import batched
from backfill_platform.orchestration.presentation.metadata import facts_metadata, markdown, range_overview
from backfill_platform.orchestration.range_concurrency import undo_job_name
from backfill_platform.repair.outcomes import Fact, HourOutcome, Rows, StepFinished
from backfill_platform.repair.publish import CHANGED_COLUMNS
from backfill_platform.repair.runner import Context

_MOST = 20  # lines of a table
_TITLE = "repair report"
_SUMS = ("rows", "quarantined", "cancels", "states", "untouched")


@dataclass
class _Asset:
    """What became of an asset's hours, and what its step told of the range: long steps tell it in parts."""

    explanation: str = ""
    facts: dict[str, Fact] = field(default_factory=dict)
    tables: dict[str, Rows] = field(default_factory=dict)
    outcomes: list[HourOutcome] = field(default_factory=list)
    done: list[datetime] = field(default_factory=list)
    failed: dict[datetime, str] = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)
    columns: Counter[str] = field(default_factory=Counter)
    checks: dict[tuple[str, bool], list[datetime]] = field(default_factory=dict)


@dataclass
class RepairPage:
    """Collects what the steps of a repair told; `show` puts it on the page of every asset that a step was about."""

    plan: Plan
    repair: Context
    assets: dict[str, _Asset] = field(default_factory=dict)

    def add(self, finished: StepFinished) -> None:
        """Keep what a step, or a part of one, has done."""
        found = self.assets.setdefault("/".join(finished.step.asset), _Asset(finished.step.explanation))
        for name, value in finished.facts.items():
            before = found.facts.get(name)
            if name == "read_from" and before is not None:
                continue
            found.facts[name] = value + before if type(value) is int and type(before) is int else value
        found.tables |= {rows.title: rows for rows in finished.tables}
        found.outcomes += [replace(outcome, checks=(), tables=()) for outcome in finished.outcomes]
        for outcome in finished.outcomes:
            if outcome.error:
                found.failed[outcome.hour] = outcome.error
            else:
                found.done.append(outcome.hour)
                found.sums.update({n: v for n, v in outcome.facts.items() if type(v) is int and n in _SUMS})
            for rows in outcome.tables:
                if rows.title == CHANGED_COLUMNS:
                    found.columns.update({str(name): int(count) for name, count in rows.rows})
            for check in outcome.checks:
                found.checks.setdefault((check.name, check.passed), []).append(outcome.hour)

    def show(self, context: dg.AssetExecutionContext) -> None:
        """Log one observation of each asset that a step was about: its range, hour by hour, and the report of the repair."""
        text = dg.MetadataValue.md(self.text(context.run))
        with batched(context.instance):
            for name, one in self.assets.items():
                metadata: dict[str, dg.MetadataValue] = {
                    **facts_metadata(one.facts),
                    **{title: dg.MetadataValue.md(markdown(rows)) for title, rows in one.tables.items()},
                    "repair": dg.MetadataValue.text(self.repair.repair_id),
                    "hours": dg.MetadataValue.md(range_overview(one.outcomes)),
                    _TITLE: text,
                }
                told = f"{self.plan.hours}: {one.explanation}"
                context.log_event(dg.AssetObservation(name.split("/"), description=told, metadata=metadata))

    def text(self, run: dg.DagsterRun) -> str:
        """The page. Long tables are cut, and say how much is left out."""
        repair, pipeline = self.repair, self.plan.pipeline
        head = [
            f"## {repair.repair_id}: {pipeline} {self.plan.hours}",
            f"asked by **{repair.requester or 'nobody'}**: {repair.reason or 'no reason given'}"
            + (f"; only rows of {', '.join(repair.tenants)}" if repair.tenants else ""),
        ]
        steps = tuple(
            (number, "/".join(step.asset), str(step.action), step.explanation) for number, step in enumerate(self.plan.steps, 1)
        )
        parts = [
            *head,
            "### Plan",
            markdown(Rows("plan", ("step", "asset", "action", "what it does"), steps)),
            "### Hours",
            markdown(Rows("hours", ("asset", "done", "failed", *_SUMS), self._counts())),
        ]
        for title, columns, rows in (
            ("Changed columns", ("asset", "column", "rows"), self._columns()),
            ("Checks", ("asset", "check", "passed", "failed", "failed in"), self._checks()),
            ("Hours that were not done", ("asset", "hour (UTC)", "why"), self._failures()),
        ):
            if rows:
                left = len(rows) - _MOST
                parts += [f"### {title}", markdown(Rows(title, columns, tuple(rows[:_MOST])))]
                parts += [f"and {left} more"] if left > 0 else []
        return "\n\n".join([*parts, "### Look again, or take it back", *self._links(run)])

    def _counts(self) -> tuple[tuple[Fact, ...], ...]:
        return tuple(
            (name, len(one.done), len(one.failed), *(f"{one.sums[fact]:,}" if fact in one.sums else "" for fact in _SUMS))
            for name, one in self.assets.items()
        )

    def _columns(self) -> list[tuple[Fact, ...]]:
        return [(name, column, rows) for name, one in self.assets.items() for column, rows in one.columns.most_common()]

    def _checks(self) -> list[tuple[Fact, ...]]:
        found: list[tuple[Fact, ...]] = []
        for name, one in self.assets.items():
            for check in dict.fromkeys(check for check, _ in one.checks):
                failed = one.checks.get((check, False), [])
                where = ", ".join(str(span) for span in merge_hours(failed)[:3])
                found.append((name, check, len(one.checks.get((check, True), [])), len(failed), where))
        return sorted(found, key=lambda row: row[3], reverse=True)

    def _failures(self) -> list[tuple[Fact, ...]]:
        return [(name, format_hour(hour), why) for name, one in self.assets.items() for hour, why in sorted(one.failed.items())]

    def _links(self, run: dg.DagsterRun) -> list[str]:
        pipeline, hours = self.plan.pipeline, self.plan.hours
        bounds = f"--from {format_hour(hours.start)} --to {format_hour(hours.end)}"
        lines = [f"- [this run](/runs/{run.run_id})", f"- `backfill verify {pipeline} {bounds}`"]
        published = [step for step in self.plan.steps if step.asset[0] == WAREHOUSE]
        if published:
            job, op = undo_job_name(pipeline), f"{undo_job_name(pipeline)}_op"
            config = quote(f"ops:\n  {op}:\n    config:\n      repair: {self.repair.repair_id}\n")
            origin = run.remote_job_origin
            where = f"/locations/{quote(origin.location_name, safe='')}/jobs/{job}/playground?config={config}" if origin else ""
            lines.append(
                f"- undo it: `backfill undo {pipeline} {self.repair.repair_id}`" + (f", or [here]({where})" if where else "")
            )
        elif any(step.asset[0] == DRY_RUN for step in self.plan.steps):
            lines.append(f"- publish it: materialize the tables under `{WAREHOUSE}/`, or `backfill run {pipeline} {bounds}`")
        return lines
