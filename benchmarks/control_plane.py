"""What Dagster's history costs per asset and hour: `python -m benchmarks.control_plane [--quick]`.

One range run over the five assets of the shipped pipeline, published for the first time, with the real specs, checks, facts
and reports of every hour; only the work itself is left out. Counted is everything from asking for the run to its end in one
process: planned events, materializations, check evaluations. Each run has a fresh process and a fresh store: Dagster's SQLite,
ours, and ours in PostgreSQL, where its programs are there (`scripts/need-postgres`). The stock storage is measured for 72 hours
only: a year would take an hour. `--detail` prints where the bytes of one run of ours lie.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import dagster as dg

from backfill_platform.adapters.clickhouse.publishing.diff import Effect, HourDiff, Sample
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, Status
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import PublishHours, Step, make_plan
from backfill_platform.domain.tables import Layer
from backfill_platform.examples import clickstream
from backfill_platform.orchestration.assets import asset_specs, check_specs
from backfill_platform.orchestration.checks.gaps import gap_checks
from backfill_platform.orchestration.event_reporting import report_step
from backfill_platform.orchestration.partitions import range_tags
from backfill_platform.repair.outcomes import HourOutcome, LakeHour, StepFinished, TargetHour
from backfill_platform.repair.publish import _outcome
from backfill_platform.repair.write_audit_promote import HourAudit
from backfill_platform_tests.fixtures_postgres import execute, new_database, programs, running_postgres
from benchmarks.bytes_by_place import bytes_by_place

RESULTS = Path(__file__).parent / "results-control-plane.md"
HEAD = """# The control plane

`python -m benchmarks.control_plane` on {cores} cores ({machine}), Dagster {version}: one range run in one process over
{assets},
published for the first time, with the real specs, checks, facts and reports of every hour and no other work. Medians of 3 runs
(720 hours) or 1 run (72 and 8,760 hours), the storages in turn. An asset-hour has one planned event, one materialization with
metadata, and {checks:.0f} check evaluations on average. `stock` is Dagster's SQLite storage, run for 72 hours; `sqlite` and
`postgres` are those of `orchestration/dagster_overrides`. What an empty home or database holds is counted, 0.5 and 8 MB.
The load of the machine, by its one-minute average before each run, was {load}.

| hours | asset-hours | storage | s (spread) | ms per asset-hour | before the first step, s | megabytes | bytes per asset-hour |
|---|---|---|---|---|---|---|---|
"""
ASSETS = (
    ("raw", "clickstream"),
    ("transformed", "sessions"),
    ("aggregated", "site_hourly"),
    ("warehouse", "sessions"),
    ("warehouse", "site_hourly"),
)
START = datetime(2025, 1, 1, tzinfo=UTC)
STOCK = "telemetry: {enabled: false}\n"
OURS = STOCK + (
    "storage:\n  custom:\n    module: backfill_platform.orchestration.dagster_overrides.event_log\n    class: EmbeddedStorage\n"
    "    config: {base_dir: {env: DAGSTER_HOME}}\n"
)
POSTGRES = (
    "telemetry: {{enabled: false}}\n"
    "storage:\n  custom:\n    module: backfill_platform.orchestration.dagster_overrides.postgres\n    class: PostgresStorage\n"
    '    config: {{postgres_url: "{url}"}}\n'
)
ROWS = 12_345


def outcome(step: Step, hour: datetime) -> HourOutcome:
    """An hour that went well: what the lake step or the publish of it reports. Its numbers differ from hour to hour."""
    rows = ROWS + hash(hour) % 1000
    content = Fingerprint(rows, hash((hour, step.asset)) % 2**64)
    if step.asset[0] in (Layer.RAW, Layer.TRANSFORMED, Layer.AGGREGATED):
        cap = 0 if step.asset == ("transformed", "sessions") else None
        audit = HourAudit(rows, rows, rows_read=rows, deduplicated=0, content=content.hash, beyond_cap=cap)
        checks = audit.checks(clickstream.pipeline.rules(step.asset[1]))
        return HourOutcome(step.asset, hour, checks=checks, lake=LakeHour(rows, 0, content, rows, 0))
    assert isinstance(step, PublishHours)
    result = HourPublish(hour, Status.PUBLISHED, Fingerprint(0, 0), content, content, states=rows)
    table = clickstream.pipeline.declared(step.asset[1]).table
    new = tuple(Sample(None, {name: f"{name}-{rows}-{row}" for name in table.column_names}) for row in range(5))
    totals = tuple(Effect(column.name, 0, rows * 3) for column in table.columns if "int" in str(column.type).lower())
    difference = HourDiff(hour, 0, only_here=rows, samples=new, effects=totals)
    return _outcome(step, result, TargetHour(result, difference), None)


def once(hours: int, storage: str, *, detail: bool = False) -> tuple[float, float, float]:
    """One run in a process of its own: seconds, seconds before its first step, bytes."""
    with tempfile.TemporaryDirectory() as home, configured(Path(home), storage) as size:
        command = [sys.executable, "-m", "benchmarks.control_plane", "--measure", str(hours)]
        environment = {**os.environ, "DAGSTER_HOME": home, "PYTHONHASHSEED": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        total, before = map(float, done.stdout.splitlines()[-1].split())
        if detail:
            say(bytes_by_place(Path(home), hours * len(ASSETS)))
        return total, before, size()


@contextmanager
def configured(home: Path, storage: str) -> Iterator[Callable[[], int]]:
    """A Dagster home with the storage; what is yielded measures its bytes."""
    if storage == "postgres":
        with running_postgres(durable=True) as server, new_database(server) as url:
            (home / "dagster.yaml").write_text(POSTGRES.format(url=url))
            yield lambda: int(execute(url, "SELECT pg_database_size(current_database())")[0][0])
        return
    (home / "dagster.yaml").write_text(STOCK if storage == "stock" else OURS)
    yield lambda: sum(file.stat().st_size for file in home.rglob("*") if file.is_file())


def measure(hours: int) -> None:
    """Run in this process and print the seconds."""
    for category in (dg.BetaWarning, dg.PreviewWarning):
        warnings.filterwarnings("ignore", category=category)
    partitions = dg.HourlyPartitionsDefinition(start_date=START, end_date=START + timedelta(hours=hours), timezone="UTC")
    pipeline = clickstream.pipeline
    began: list[float] = []

    @dg.multi_asset(
        name="bench",
        specs=asset_specs(pipeline, partitions),
        check_specs=check_specs(pipeline, partitions),
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def bench(context: dg.AssetExecutionContext):  # type: ignore[no-untyped-def]
        began.append(time.perf_counter())
        plan = make_plan(pipeline.name, pipeline.nodes, HourRange(START, START + timedelta(hours=hours)), ASSETS)
        for step in plan.steps:
            outcomes = [outcome(step, hour) for hour in plan.hours]
            report_step(context, StepFinished(step, outcomes), "r20250101t000000_abcdef")
        yield from ()

    definitions = dg.Definitions(
        assets=[bench],
        asset_checks=[gap_checks(pipeline, partitions)],
        jobs=[dg.define_asset_job("job", [bench])],
        resources={"connections": dg.ResourceDefinition.none_resource()},
        executor=dg.in_process_executor,
    )
    job = definitions.resolve_job_def("job")
    with dg.DagsterInstance.get() as instance:
        started = time.perf_counter()
        result = job.execute_in_process(
            instance=instance,
            tags=range_tags(HourRange(START, START + timedelta(hours=hours))),
            asset_selection=[dg.AssetKey(list(path)) for path in ASSETS],
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
        ended = time.perf_counter()
        assert result.success
        for path in ASSETS:
            assert len(instance.get_materialized_partitions(dg.AssetKey(list(path)))) == hours
    say(f"{ended - started} {began[0] - started}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of 72 hours")
    parser.add_argument("--detail", type=int, metavar="HOURS", help="one run of ours; print where its bytes lie")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    if options.detail:
        say(f"{once(options.detail, 'sqlite', detail=True)}\n")
        return
    storages = ("stock", "sqlite", *(("postgres",) if programs() else ()))
    plan = ((72, 1, storages), (720, 3, storages[1:]), (8760, 1, storages[1:]))
    lines = []
    loads = []
    for hours, runs, chosen in plan[:1] if options.quick else plan:
        found: dict[str, list[tuple[float, float, float]]] = {storage: [] for storage in chosen}
        for _ in range(runs):
            for storage, done in found.items():
                loads.append(os.getloadavg()[0])
                done.append(once(hours, storage))
                say(f"{hours} hours, {storage}: {done[-1][0]:.1f} s\n")
        lines += [row(hours, storage, done) for storage, done in found.items()]
    text = HEAD.format(
        cores=len(os.sched_getaffinity(0)),
        machine=platform.machine(),
        version=version("dagster"),
        assets=", ".join("/".join(path) for path in ASSETS),
        checks=checks_by_asset(),
        load=f"{min(loads):.1f} to {max(loads):.1f}",
    )
    say(text + "".join(lines))
    if not options.quick:
        RESULTS.write_text(text + "".join(lines))


def checks_by_asset() -> float:
    """How many checks an asset has, on average; `no_gap` is one more than the declared ones."""
    partitions = dg.HourlyPartitionsDefinition(start_date=START)
    declared = [spec for spec in check_specs(clickstream.pipeline, partitions) if tuple(spec.asset_key.path) in ASSETS]
    return len(declared) / len(ASSETS) + 1


def row(hours: int, storage: str, done: list[tuple[float, float, float]]) -> str:
    total = [run[0] for run in done]
    count = hours * len(ASSETS)
    size = done[-1][2]
    cells = (
        f"{hours:,}",
        f"{count:,}",
        storage,
        f"{statistics.median(total):.1f} ({min(total):.1f} to {max(total):.1f})",
        f"{statistics.median(total) / count * 1000:.2f}",
        f"{statistics.median(run[1] for run in done):.1f}",
        f"{size / 1e6:.1f}",
        f"{size / count:,.0f}",
    )
    return f"| {' | '.join(cells)} |\n"


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
