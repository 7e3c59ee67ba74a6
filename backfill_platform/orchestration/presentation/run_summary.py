"""The summary of a run: one observation of each asset that a step was about, with its range and the report of the repair."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import dagster as dg

from backfill_platform.domain.plan import CompareHours, PublishHours, explanation
from backfill_platform.orchestration.dagster_overrides.hourly_event_log import batched
from backfill_platform.orchestration.presentation.metadata import facts_metadata, range_overview
from backfill_platform.orchestration.range_concurrency import undo_job_name
from backfill_platform.reports.facts import merged_step_facts, step_tables
from backfill_platform.reports.markdown import markdown, paragraph
from backfill_platform.reports.render import page
from backfill_platform.reports.repair_report import RepairReport, command
from backfill_platform.reports.words import error_in_words

_TITLE = "repair report"
_LOCATION = "backfill_platform"  # as workspace.yaml names it


@contextmanager
def shown_at_the_end(context: dg.AssetExecutionContext, report: RepairReport) -> Iterator[None]:
    """Log the report of what this block does, however it ends. A report that cannot be made fails no repair."""
    try:
        yield
    except BaseException as error:
        report.error = error_in_words(error)
        _show_or_warn(context, report)
        raise
    _show_or_warn(context, report)


def _show_or_warn(context: dg.AssetExecutionContext, report: RepairReport) -> None:
    try:
        _show(context, report)
    except Exception:
        context.log.exception("the report of the run cannot be shown, because of a bug; the repair is not affected")


def _show(context: dg.AssetExecutionContext, report: RepairReport) -> None:
    """One observation of each asset that a step was about."""
    if report.plan is None:
        return
    text = dg.MetadataValue.md(page(report, _links(report, context.run)))
    with batched(context.instance):
        for asset, steps in report.steps.items():
            outcomes = [outcome for outcome in report.outcomes if outcome.asset == asset]
            tables = {rows.title: rows for finished in steps for rows in step_tables(finished)}
            metadata: dict[str, dg.MetadataValue] = {
                **facts_metadata(merged_step_facts(steps)),
                "seconds": dg.MetadataValue.float(round(report.seconds.get(asset, 0.0), 3)),
                **{title: dg.MetadataValue.md(markdown(rows)) for title, rows in tables.items()},
                "repair": dg.MetadataValue.text(report.subject.repair_id),
                "hours": dg.MetadataValue.md(range_overview(outcomes)),
                _TITLE: text,
            }
            description = paragraph(f"{report.plan.hours}: {explanation(steps[0].step)}")
            context.log_event(dg.AssetObservation(list(asset), description=description, metadata=metadata))


def _links(report: RepairReport, run: dg.DagsterRun) -> list[str]:
    """How to look again, and how to take it back or to publish it."""
    subject = report.subject
    name, steps = subject.pipeline.name, report.plan.steps if report.plan else ()
    links = [f"- [this run](/runs/{run.run_id})", f"- `{command(subject, 'verify')}`"]
    if any(isinstance(step, PublishHours) for step in steps):
        links.append(f"- undo it: `backfill undo {name} {subject.repair_id}`{_undo_link(report, run)}")
    elif any(isinstance(step, CompareHours) for step in steps):
        links.append(f"- publish it: materialize the tables under `warehouse/`, or `{command(subject, 'run')}`")
    return links


def _undo_link(report: RepairReport, run: dg.DagsterRun) -> str:
    # A run of the command line does not know where it is shown.
    location = run.remote_job_origin.location_name if run.remote_job_origin else _LOCATION
    job = undo_job_name(report.subject.pipeline.name)
    config = quote(f"ops:\n  {job}_op:\n    config:\n      repair: {report.subject.repair_id}\n")
    return f", or [here](/locations/{quote(location, safe='')}/jobs/{job}/playground/setup?config={config})"
