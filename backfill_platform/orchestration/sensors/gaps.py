"""The gap sensor of a pipeline: looks at the data, has gaps shown where they have changed, and asks for repairs or tells.

A repair is one range run with Dagster's own range tags. What is asked for, and how much of it, is the pipeline's `on_gaps`.
Gaps are shown by a run of the check `no_gap`, and not by the tick itself: Dagster keeps one evaluation outside of runs for each
hour and refuses the next (a unique index of its storage).
"""

import hashlib
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime

import dagster as dg

from backfill_platform.adapters.connections import Connections
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.detection.remediation import remedies, wanted_hours
from backfill_platform.detection.survey import survey
from backfill_platform.domain import request as domain_request
from backfill_platform.domain.change_limits import ChangeLimits
from backfill_platform.domain.gap_policy import Asked, GapPolicy, OnGap, RepairRequest, Seen, assets_for, decide, gap_of, unseen
from backfill_platform.domain.gaps import Gap
from backfill_platform.domain.hours import HourRange, format_hour
from backfill_platform.domain.plan import make_plan
from backfill_platform.errors import BackfillError
from backfill_platform.orchestration.dagster_overrides.private_names import Job
from backfill_platform.orchestration.notifications import SILENT, Notifier, tell_of_gaps
from backfill_platform.orchestration.partitions import range_tags
from backfill_platform.orchestration.run_request import RunRequest, plan_config
from backfill_platform.orchestration.sensors.hours_in_work import hours_in_work
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.planning.scope import with_margins

_SHOWN = 5

DOES = {
    OnGap.REPORT: "only reports them",
    OnGap.DRY_RUN: "builds the hours of the lake again and shows what would change in the warehouse",
    OnGap.PUBLISH: "repairs them within the change limits of the pipeline",
}


def gap_sensor(pipeline: Pipeline, repair: Job, look: Job, notifier: Notifier = SILENT) -> dg.SensorDefinition:
    """The sensor `<pipeline>_gaps`; it runs by itself where the pipeline declares `on_gaps`, else when switched on."""
    policy = pipeline.on_gaps or GapPolicy()
    running = dg.DefaultSensorStatus.RUNNING if pipeline.on_gaps else dg.DefaultSensorStatus.STOPPED

    @dg.sensor(
        name=f"{pipeline.name}_gaps",
        jobs=[repair, look],
        minimum_interval_seconds=int(policy.every.total_seconds()),
        default_status=running,
        description=f"Finds damaged hours of {pipeline.name} from data. Without asking, it {DOES[policy.action]}.",
    )
    def watch_gaps(
        context: dg.SensorEvaluationContext, connections: dg.ResourceParam[Connections]
    ) -> dg.SensorResult | dg.SkipReason:
        now = datetime.now(UTC)
        hours = policy.hours(pipeline.hours_until(now), now)
        if hours is None:
            return dg.SkipReason(f"{pipeline.name} has no hours yet that are over for {policy.settle}")
        seen = Seen.from_json(context.cursor)
        busy = hours_in_work(context.instance, context.repository_def, pipeline)
        lake = connections.lake()
        try:
            with closing(connections.warehouse()) as warehouse:
                gaps = survey(pipeline, hours, lake, warehouse, connections.loading, now=now, connect=connections.named).gaps
        except BackfillError as error:
            return dg.SkipReason(f"cannot look: {error}")
        new = unseen(gaps, seen, busy, policy.action)
        reports = policy.action is OnGap.REPORT
        wanted = {} if reports else assets_for(policy, wanted_hours(pipeline, lake, new, now))
        decision = decide(gaps, wanted, seen, busy, policy)
        if reports:  # of what it asks for, the runs tell
            tell_of_gaps(
                *(context.log, notifier, pipeline, new),
                lambda: (wanted_hours(pipeline, lake, new, now), remedies(pipeline, lake, new, now)),
            )
        keys = (decision.seen.asked, seen.number)
        requests = [_run(request, keys, repair, pipeline, lake, now) for request in decision.requests]
        if changed := [gap.hour for gap in decision.new] + [gap_of(name)[1] for name in decision.gone]:
            # First: repairs of the same tick wait for it (`range_concurrency`), so that what they mend has been shown.
            requests.insert(0, _show(HourRange.covering(changed), decision.seen, look))
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else _told(gaps, hours, len(decision.seen.waiting), len(busy)),
            cursor=decision.seen.to_json(),
        )

    return watch_gaps


def _run(
    request: RepairRequest, keys: tuple[Mapping[str, Asked], int], job: Job, pipeline: Pipeline, lake: Lake, now: datetime
) -> dg.RunRequest:
    """A range run with its plan. `keys` are the evidence of the gaps and the number of the request, which name it."""
    asked_for, number = keys
    policy = pipeline.on_gaps or GapPolicy()
    reason = f"{len(request.gaps)} gap{'s' * (len(request.gaps) != 1)} found by {pipeline.name}_gaps"
    limits = ChangeLimits.parse(policy.change_limits or {})
    wanted = RunRequest(domain_request.RepairRequest(reason=reason, requester=f"{pipeline.name}_gaps", change_limits=limits))
    plan = make_plan(pipeline.name, pipeline.nodes, request.hours, request.assets)
    (plan,) = with_margins((plan,), pipeline, lake, now)
    return dg.RunRequest(
        run_key=f"{request.key(asked_for)}#{number}",
        job_name=job.name,
        tags={**range_tags(request.hours), **wanted.to_tags()},
        run_config=plan_config(pipeline, plan),
        asset_selection=[dg.AssetKey(list(asset)) for asset in request.assets],
    )


def _show(hours: HourRange, seen: Seen, job: Job) -> dg.RunRequest:
    """A look at the hours. The text of the state names it: the same state is looked at once, also if the tick is repeated."""
    state = hashlib.sha256(seen.to_json().encode()).hexdigest()[:16]
    return dg.RunRequest(run_key=f"look {hours}#{state}", job_name=job.name, tags=range_tags(hours))


def _told(gaps: tuple[Gap, ...], hours: object, waiting: int, busy: int) -> str:
    """What the tick found, for the page of the sensor."""
    if not gaps:
        return f"no gaps in {hours}"
    shown = "; ".join(f"{gap.table} {format_hour(gap.hour)} {gap.kind}: {gap.evidence}" for gap in gaps[:_SHOWN])
    more = f"; and {len(gaps) - _SHOWN} more" if len(gaps) > _SHOWN else ""
    held = f"; {waiting} repairs wait for their turn" if waiting else ""
    work = f"; {busy} hours are in work" if busy else ""
    return f"{len(gaps)} gaps, all of them asked for or reported{held}{work}: {shown}{more}"
