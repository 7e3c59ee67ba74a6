"""The assets of a pipeline: one op that walks the plan for whatever is selected, and reports every hour by itself.

One op, because only so each hour of a range run gets its own materialization with its own metadata, hours that fail stay
unmaterialized without holding back the others, and "failed and missing" re-runs exactly those.
"""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.connections import Connections
from backfill_platform.adapters.spark.checks import EVENTS_WITHIN_CAP, check_name
from backfill_platform.domain.hours import format_hour
from backfill_platform.domain.plan import DRY_RUN, WAREHOUSE, AssetPath, Input, Plan, explanation, make_plan
from backfill_platform.domain.tables import Layer
from backfill_platform.errors import BackfillError, TransientError, UsageError
from backfill_platform.orchestration.checks.pending_approval import TEXTS
from backfill_platform.orchestration.event_reporting import report_step
from backfill_platform.orchestration.job_services import begin_job, live_repairs, open_services, stoppable_spark
from backfill_platform.orchestration.notifications import SILENT, Notifier, notifying
from backfill_platform.orchestration.partitions import hours_of_run
from backfill_platform.orchestration.presentation.metadata import column_lineage, column_schema
from backfill_platform.orchestration.presentation.run_summary import shown_at_the_end
from backfill_platform.orchestration.range_concurrency import wait_for_hours
from backfill_platform.orchestration.run_request import Margins, RepairConfig, RunRequest, readable_request
from backfill_platform.orchestration.turns import turn_tags
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.planning.downstream import Following, stale_after
from backfill_platform.planning.scope import with_margins
from backfill_platform.repair.outcomes import (
    NO_PENDING_APPROVAL,
    Event,
    HourOutcome,
    HoursCommitted,
    Listener,
    StepFinished,
    StepStarted,
)
from backfill_platform.repair.publish import DELTA_PROVEN, DRY_RUN_CHECKS, MATCHES_LAKE, PUBLISH_CHECKS, WITHIN_CHANGE_LIMITS
from backfill_platform.repair.runner import run_plan
from backfill_platform.repair.wiring import Services, repair_services
from backfill_platform.repair.write_audit_promote import CAP_TEXT, HourAudit
from backfill_platform.reports.pace import Pace
from backfill_platform.reports.repair_report import RunSubject

_RETRIES = 2
_RETRY_SECONDS = 5  # before the first retry; twice as long before each further one

_KINDS: dict[str, set[str]] = {
    Layer.RAW: {"pyspark", "iceberg"},
    Layer.TRANSFORMED: {"pyspark", "iceberg"},
    Layer.AGGREGATED: {"pyspark", "iceberg"},
    DRY_RUN: {"clickhouse"},
    WAREHOUSE: {"clickhouse"},
}

_WAREHOUSE_CHECKS = {
    DELTA_PROVEN: "the fingerprints of the warehouse and of the delta add up to the lake's",
    MATCHES_LAKE: "after publishing, net state, FINAL and the lake have one fingerprint",
    WITHIN_CHANGE_LIMITS: "the difference stays within the change limits of the repair",
}


def pipeline_assets(
    pipeline: Pipeline,
    partitions: dg.HourlyPartitionsDefinition,
    notifier: Notifier = SILENT,
    readers: Collection[Pipeline] = (),
) -> dg.AssetsDefinition:
    """All assets of a pipeline with their checks: its lake tables, and `dry_run/*` and `warehouse/*` of the published.

    `readers` are pipelines that read its tables: what a run makes stale there is told in its report.
    """

    @dg.multi_asset(
        name=pipeline.name,
        specs=asset_specs(pipeline, partitions),
        check_specs=check_specs(pipeline, partitions),
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run(),
        description=pipeline.description,
    )
    def materialize(  # type: ignore[no-untyped-def]  # Dagster reads outputs into any annotation, and there are none
        context: dg.AssetExecutionContext,
        config: RepairConfig,
        spark: LazyPySparkResource,
        connections: dg.ResourceParam[Connections],
        listener: dg.ResourceParam[Listener],
    ):
        selected = [(key.path[0], key.path[1]) for key in context.selected_asset_keys]
        failed: list[HourOutcome] = []
        try:
            with ExitStack() as stack:
                asked = readable_request(context.run.tags)
                subject = RunSubject(pipeline, hours_of_run(context), tuple(selected), request=asked)
                told = stack.enter_context(notifying(context, notifier, subject, retries=_RETRIES))
                request = RunRequest.from_tags(config.with_tags(context.run.tags))
                wait_for_hours(context, pipeline)
                services = stack.enter_context(open_services(connections, stoppable_spark(stack, spark)))
                given = config.given_plan(pipeline, request, subject.hours, request.assets(selected, context.run.tags))
                plan = given or _make_plan(pipeline, services, subject, request, context)
                job = begin_job(context, pipeline, request.repair)
                report = told.begin(job, plan)
                stack.enter_context(shown_at_the_end(context, report))
                context.log.info(
                    f"repair {job.repair_id} of {plan.hours}, {len(plan.hours)} hours. Its report is the newest event of "
                    f"{'/'.join(plan.assets[-1])} when the run has ended: /assets/{'/'.join(plan.assets[-1])}?view=events"
                )
                engines, pace, started = repair_services(job, services, live_repairs(context)), Pace(), services.clock()
                for event in run_plan(plan, job, engines):
                    listener(event)
                    said = pace.take(event)
                    if said and not isinstance(event, StepStarted):
                        context.log.info(said)
                    failed += _log_event(context, event)
                    report.take(event)
                    if isinstance(event, StepFinished):
                        report_step(context, event, job.repair_id)
                report.following = _following(context, pipeline, readers, plan, services, started)
        except TransientError as error:
            # Not a RetryPolicy of the op: Dagster applies one to a run that somebody stops, too.
            retry = context.op_execution_context.retry_number
            if retry < _RETRIES:
                context.log.warning(f"attempt {retry + 1} failed: {error}")
                raise dg.RetryRequested(_RETRIES, _RETRY_SECONDS * 2**retry) from error
            raise dg.Failure(str(error), allow_retries=False) from error
        except BackfillError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        except Exception as error:  # a bug, or an engine's own error: nothing may repeat it blindly
            raise dg.Failure(f"{type(error).__name__}: {_first_line(error)}", allow_retries=False) from error
        if failed:
            raise dg.Failure(_summary(failed), allow_retries=False)
        # A generator without a value has no outputs: each hour has been reported by itself.
        yield from ()

    return materialize


def _following(
    context: dg.AssetExecutionContext,
    pipeline: Pipeline,
    readers: Collection[Pipeline],
    plan: Plan,
    services: Services,
    started: datetime,
) -> tuple[Following, ...]:
    """What the run has made stale; a question that cannot be answered fails no repair."""
    try:
        return stale_after(pipeline, readers, [plan], services.lake, lambda: Ledger(services.warehouse()), started)
    except BackfillError as error:
        context.log.warning(f"what reads the hours of this run could not be looked up: {error}")
        return ()


def _make_plan(
    pipeline: Pipeline, services: Services, subject: RunSubject, request: RunRequest, context: dg.AssetExecutionContext
) -> Plan:
    """The plan of a run that was launched without one, as in the web page: by the same functions as the command line's."""
    if subject.hours is None:
        raise UsageError("choose the hours to materialize: a partition, or a range of them")
    assets = request.assets(subject.assets, context.run.tags)
    plan = make_plan(pipeline.name, pipeline.nodes, subject.hours, assets, request.landing)
    if request.margins is Margins.LAND:
        (plan,) = with_margins((plan,), pipeline, services.lake, services.clock())
    return plan


def _log_event(context: dg.AssetExecutionContext, event: Event) -> list[HourOutcome]:
    """Say in the log of the run what happens; the hour, if it failed."""
    if isinstance(event, StepStarted):
        asset = "/".join(event.step.asset)
        context.log.info(f"step {event.number} of {event.total}: {asset}: {explanation(event.step)}")
    elif isinstance(event, HoursCommitted):
        count = len(event.hours)
        context.log.info(f"{event.step.node.table}: {count} hour{'s' * (count != 1)} committed to main")
    elif isinstance(event, HourOutcome) and event.error:
        text = f"{'/'.join(event.asset)} {format_hour(event.hour)}: {event.error}"
        if event.failed:
            context.log.error(text)
            return [event]
        context.log.info(text)
    return []


def asset_specs(pipeline: Pipeline, partitions: dg.HourlyPartitionsDefinition) -> list[dg.AssetSpec]:
    """The specs of all assets of the pipeline."""
    specs = []
    for node in pipeline.nodes:
        table = node.table
        declared = pipeline.declared(table.name)
        text = (declared.schema.__doc__ or "").strip()
        upstream = [_dependency(source) for source in node.inputs]
        described: list[tuple[AssetPath, list[dg.AssetDep], str]] = [(table.path, upstream, text)]
        if node.published:
            dry_run, warehouse = (DRY_RUN, table.name), (WAREHOUSE, table.name)
            described.append(
                (
                    dry_run,
                    [dg.AssetDep(list(table.path))],
                    f"What a repair of {table} would change in ClickHouse: computed, compared and proven, nothing written.",
                )
            )
            described.append(
                (
                    warehouse,
                    [dg.AssetDep(list(table.path))],
                    f"{table} in ClickHouse, repaired by cancel and state rows.\n\n{text}",
                )
            )
        for path, deps, description in described:
            metadata: dict[str, Any] = {"dagster/column_schema": column_schema(table)}
            if lineage := column_lineage(pipeline, path):
                metadata["dagster/column_lineage"] = lineage
            specs.append(
                dg.AssetSpec(
                    list(path),
                    deps=deps,
                    description=description,
                    group_name=pipeline.name,
                    # The graph shows the last part of a key alone; the layer tells assets of one name apart.
                    kinds=_KINDS[path[0]] | {path[0]},
                    owners=list(pipeline.owners_of(table.name)),
                    partitions_def=partitions,
                    tags={**turn_tags(pipeline), "backfill/layer": path[0]},
                    code_version=pipeline.code_version(table.name) if path == table.path else None,
                    metadata=metadata,
                )
            )
    return specs


def _dependency(source: Input) -> dg.AssetDep:
    if not source.elsewhere:
        return dg.AssetDep(list(source.table.path))
    # Its pipeline may have fewer hours. What of them an hour needs is looked up in the lake.
    mapping = dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)
    return dg.AssetDep(list(source.table.path), partition_mapping=mapping)


def check_specs(pipeline: Pipeline, partitions: dg.HourlyPartitionsDefinition) -> list[dg.AssetCheckSpec]:
    """The checks of all assets of the pipeline; each is evaluated per hour inside the run, before anything is written."""
    specs = []
    for node in pipeline.nodes:
        names = [
            *pipeline.audit_checks(node.table.name),
            *(check_name(rule.name) for rule in pipeline.rules(node.table.name).blocking),
        ]
        by_asset = {node.table.path: names}
        if node.published:
            by_asset[(DRY_RUN, node.table.name)] = list(DRY_RUN_CHECKS)
            by_asset[(WAREHOUSE, node.table.name)] = [*PUBLISH_CHECKS, NO_PENDING_APPROVAL]
        texts = _check_texts(pipeline, node.table.name)
        for path, checks in by_asset.items():
            specs += [
                dg.AssetCheckSpec(name, asset=list(path), description=texts[name], partitions_def=partitions) for name in checks
            ]
    return specs


def _check_texts(pipeline: Pipeline, table: str) -> dict[str, str]:
    """What each check says and does. Dagster's page calls them all non-blocking: ours block hours, Dagster's block runs."""
    audits = HourAudit().checks(pipeline.rules(table))
    blocks = "An hour that fails it is not materialized; the others are."
    texts = {name: f"{text}. {blocks}" for name, text in _WAREHOUSE_CHECKS.items()}
    texts[EVENTS_WITHIN_CAP] = f"{CAP_TEXT}. It holds nothing back."
    for check in audits:
        text = check.description or check.name.replace("_", " ")
        texts[check.name] = f"{text}. {blocks if check.blocking else 'It holds nothing back.'}"
    return {name: text[0].upper() + text[1:] for name, text in (texts | TEXTS).items()}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _summary(failed: Sequence[HourOutcome]) -> str:
    lines = [f"{'/'.join(outcome.asset)} {format_hour(outcome.hour)}: {outcome.error}" for outcome in failed]
    shown = "\n".join(lines[:50]) + (f"\nand {len(lines) - 50} more" if len(lines) > 50 else "")
    return f"{len(failed)} {'hour was' if len(failed) == 1 else 'hours were'} not materialized:\n{shown}"
