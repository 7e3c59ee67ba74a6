"""The assets of a pipeline: one op that walks the plan for whatever is selected, and reports every hour by itself.

One op, because only so each hour of a range run gets its own materialization with its own metadata, hours that fail stay
unmaterialized without holding back the others, and "failed and missing" re-runs exactly those.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.connections import Connections
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.spark.checks import AUDIT_CHECKS, check_name
from backfill_platform.adapters.spark.stopping import stoppable
from backfill_platform.domain.fingerprint import repair_id
from backfill_platform.domain.hours import format_hour
from backfill_platform.domain.plan import DRY_RUN, WAREHOUSE, AssetPath, Plan, make_plan
from backfill_platform.domain.tables import Layer
from backfill_platform.errors import BackfillError, TransientError
from backfill_platform.orchestration.checks.pending_approval import TEXTS
from backfill_platform.orchestration.event_reporting import report
from backfill_platform.orchestration.notifications import NOTHING, Notices, telling
from backfill_platform.orchestration.partitions import hours_of_run
from backfill_platform.orchestration.presentation.metadata import column_lineage, column_schema
from backfill_platform.orchestration.presentation.run_summary import RepairPage
from backfill_platform.orchestration.range_concurrency import repairs_at_work, wait_for_hours
from backfill_platform.orchestration.run_request import REPAIR_TAG, Margins, RepairConfig, Request
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.planning.scope import with_margins
from backfill_platform.repair.outcomes import NO_PENDING_APPROVAL, Event, HourOutcome, Listener, StepStarted
from backfill_platform.repair.publish import DELTA_PROVEN, DRY_RUN_CHECKS, MATCHES_LAKE, PUBLISH_CHECKS, WITHIN_CHANGE_LIMITS
from backfill_platform.repair.runner import Context, Landing, run
from backfill_platform.repair.write_audit_promote import HourAudit

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
    pipeline: Pipeline, partitions: dg.HourlyPartitionsDefinition, notices: Notices = NOTHING
) -> dg.AssetsDefinition:
    """All assets of a pipeline with their checks: its lake tables, and `dry_run/*` and `warehouse/*` of the published."""

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
            hours = hours_of_run(context)
            with ExitStack() as stack:
                notice = stack.enter_context(telling(context, notices, pipeline, hours, selected, retries=_RETRIES))
                request = Request.from_tags(config.with_tags(context.run.tags))
                plan = make_plan(pipeline.name, pipeline.nodes, hours, request.assets(selected, context.run.tags))
                wait_for_hours(context, pipeline)
                session = stack.enter_context(stoppable(lambda: spark.spark_session))
                opened = open_context(context, pipeline, connections, session, request)
                repair = stack.enter_context(opened)
                notice.begin(repair, plan.assets)
                page = RepairPage(plan, repair)
                stack.callback(page.show, context)
                context.log.info(f"repair {repair.repair_id} of {plan.hours}, {len(plan.hours)} hours")
                for event in _walk(plan, repair, request):
                    listener(event)
                    notice(event)
                    if isinstance(event, StepStarted):
                        asset = "/".join(event.step.asset)
                        context.log.info(f"step {event.number} of {event.total}: {asset}: {event.step.explanation}")
                    elif isinstance(event, HourOutcome):
                        told = f"{'/'.join(event.asset)} {format_hour(event.hour)}: {event.error}"
                        if event.failed:
                            failed.append(event)
                            context.log.error(told)
                        elif event.error:
                            context.log.info(told)
                    else:
                        report(context, event, repair.repair_id)
                        page.add(event)
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


def _walk(plan: Plan, repair: Context, request: Request) -> Iterator[Event]:
    """Walk the plan, after landing what its windows need around it, in one repair."""
    plans: tuple[Plan, ...] = (plan,)
    if request.margins is Margins.LAND:
        plans = with_margins(plans, repair.pipeline, repair.lake, repair.clock())
    for one in plans:
        yield from run(one, repair if one is plan else replace(repair, landing=Landing.MISSING))


@contextmanager
def open_context(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    pipeline: Pipeline,
    connections: Connections,
    spark: Callable[[], Any],
    request: Request,
) -> Iterator[Context]:
    """What a repair in this run works with; the warehouse is opened once, when it is first needed.

    Raises UsageError for change limits that cannot be used.
    """
    name = repair_id(datetime.now(UTC), os.urandom(3))
    # Before it stages anything: by this tag others leave it alone.
    context.instance.add_run_tags(context.run.run_id, {REPAIR_TAG: name})
    with ExitStack() as stack:

        @cache
        def warehouse() -> Warehouse:
            return stack.enter_context(closing(connections.warehouse()))

        @cache
        def cluster() -> Cluster:
            return stack.enter_context(closing(connections.cluster()))

        yield Context(
            pipeline,
            connections.lake(),
            spark,
            warehouse,
            clock=lambda: datetime.now(UTC),
            repair_id=name,
            reason=request.reason,
            requester=request.requester,
            code_version=version("backfill-platform"),
            change_limits=request.limits(),
            patch_days=connections.patch_days,
            landing=request.landing,
            loading=connections.loading,
            rewrite_inconsistent=request.rewrite_inconsistent,
            allow_open_hours=request.allow_open_hours,
            tenants=request.tenants,
            at_work=repairs_at_work(context),
            kafka=cluster,
            replayed=connections.replayed,
        )


def asset_specs(pipeline: Pipeline, partitions: dg.HourlyPartitionsDefinition) -> list[dg.AssetSpec]:
    """The specs of all assets of the pipeline."""
    specs = []
    for node in pipeline.nodes:
        table = node.table
        declared = pipeline.declared(table.name)
        text = (declared.schema.__doc__ or "").strip()
        upstream = [node.reads.path] if node.reads else []
        described: list[tuple[AssetPath, list[AssetPath], str]] = [(table.path, upstream, text)]
        if node.published:
            dry_run, warehouse = (DRY_RUN, table.name), (WAREHOUSE, table.name)
            described.append(
                (
                    dry_run,
                    [table.path],
                    f"What a repair of {table} would change in ClickHouse: computed, compared and proven, nothing written.",
                )
            )
            described.append((warehouse, [table.path], f"{table} in ClickHouse, repaired by cancel and state rows.\n\n{text}"))
        for path, deps, description in described:
            metadata: dict[str, Any] = {"dagster/column_schema": column_schema(table)}
            if lineage := column_lineage(pipeline, path):
                metadata["dagster/column_lineage"] = lineage
            specs.append(
                dg.AssetSpec(
                    list(path),
                    deps=[list(dep) for dep in deps],
                    description=description,
                    group_name=pipeline.name,
                    # The graph shows the last part of a key alone; the layer tells assets of one name apart.
                    kinds=_KINDS[path[0]] | {path[0]},
                    owners=list(pipeline.owners),
                    partitions_def=partitions,
                    tags={"backfill/pipeline": pipeline.name, "backfill/layer": path[0]},
                    code_version=pipeline.code_version(table.name) if path == table.path else None,
                    metadata=metadata,
                )
            )
    return specs


def check_specs(pipeline: Pipeline, partitions: dg.HourlyPartitionsDefinition) -> list[dg.AssetCheckSpec]:
    """The checks of all assets of the pipeline; each is evaluated per hour inside the run, before anything is written."""
    specs = []
    for node in pipeline.nodes:
        names = [*AUDIT_CHECKS, *(check_name(rule.name) for rule in pipeline.rules(node.table.name).blocking)]
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
