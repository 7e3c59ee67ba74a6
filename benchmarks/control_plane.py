"""What Dagster costs per asset and hour, stock SQLite storage against ours: `python -m benchmarks.control_plane [--quick]`.

One range run over three assets of the shipped pipeline, with their real specs, checks and reports per hour; only the work
itself is left out. Counted is everything from asking for the run to its end in one process: planned events, materializations,
check evaluations, overviews. Both storages are measured alternately, each run in a fresh process and a fresh home. The stock
storage is not measured at 8,760 hours: that would take half an hour.
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
from collections import Counter
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import dagster as dg

from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import make_plan
from backfill_platform.examples import clickstream
from backfill_platform.orchestration.assets import asset_specs, check_specs
from backfill_platform.orchestration.event_reporting import report_step
from backfill_platform.orchestration.partitions import range_tags
from backfill_platform.repair.outcomes import CheckResult, HourOutcome, LakeHour, StepFinished

RESULTS = Path(__file__).parent / "results-control-plane.md"
HEAD = """# The control plane

`python -m benchmarks.control_plane` on {cores} cores ({machine}), Dagster {version}: one range run in one process over
{assets}, with their real specs, checks and reports and no other work.
Medians of 3 runs (720 hours) and 1 run (8,760 hours), stock SQLite storage and ours alternately; the stock one was not
run for 8,760 hours, which would take half an hour. An asset-hour has one planned event, one materialization with metadata,
and {checks} check
evaluations.
The load of the machine, by its one-minute average before each run, was {load}.

| hours | asset-hours | storage | s (spread) | ms per asset-hour | of these before the first step, s | megabytes |
|---|---|---|---|---|---|---|
"""
ASSETS = (("raw", "clickstream"), ("transformed", "sessions"), ("warehouse", "sessions"))
START = datetime(2025, 1, 1, tzinfo=UTC)
STORAGES = ("stock", "ours")
STOCK = "telemetry: {enabled: false}\n"
OURS = STOCK + (
    "storage:\n  custom:\n    module: backfill_platform.orchestration.dagster_overrides.event_log\n    class: EmbeddedStorage\n"
    "    config: {base_dir: {env: DAGSTER_HOME}}\n"
)


def once(hours: int, storage: str) -> tuple[float, float, float]:
    """One run in a process of its own: seconds, seconds before its first step, megabytes."""
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "dagster.yaml").write_text(STOCK if storage == "stock" else OURS)
        command = [sys.executable, "-m", "benchmarks.control_plane", "--measure", str(hours)]
        environment = {**os.environ, "DAGSTER_HOME": home}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        total, before = map(float, done.stdout.splitlines()[-1].split())
        size = sum(file.stat().st_size for file in Path(home).rglob("*") if file.is_file())
        return total, before, size / 1e6


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
        declared = check_specs(pipeline, partitions)
        for step in plan.steps:
            checks = tuple(CheckResult(spec.name, True, True) for spec in declared if spec.asset_key.path == list(step.asset))
            lake = LakeHour(rows=12_345, quarantined=0, content=Fingerprint(12_345, 0x24495E2F2F9E5914), rows_read=12_345)
            outcomes = [HourOutcome(step.asset, hour, checks=checks, lake=lake) for hour in plan.hours]
            report_step(context, StepFinished(step, outcomes), "r20250101t000000_abcdef")
        yield from ()

    definitions = dg.Definitions(assets=[bench], jobs=[dg.define_asset_job("job", [bench])], executor=dg.in_process_executor)
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
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    lines = []
    loads = []
    for hours, runs, storages in ((72, 1, STORAGES),) if options.quick else ((720, 3, STORAGES), (8760, 1, STORAGES[1:])):
        found: dict[str, list[tuple[float, float, float]]] = {storage: [] for storage in storages}
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
        checks=" or ".join(map(str, sorted(checks_by_asset()))),
        load=f"{min(loads):.1f} to {max(loads):.1f}",
    )
    say(text + "".join(lines))
    if not options.quick:
        RESULTS.write_text(text + "".join(lines))


def checks_by_asset() -> set[int]:
    """How many checks the assets have."""
    partitions = dg.HourlyPartitionsDefinition(start_date=START)
    counts = Counter(tuple(spec.asset_key.path) for spec in check_specs(clickstream.pipeline, partitions))
    return {counts[path] for path in ASSETS}


def row(hours: int, storage: str, done: list[tuple[float, float, float]]) -> str:
    total = [run[0] for run in done]
    count = hours * len(ASSETS)
    cells = (
        f"{hours:,}",
        f"{count:,}",
        storage,
        f"{statistics.median(total):.1f} ({min(total):.1f} to {max(total):.1f})",
        f"{statistics.median(total) / count * 1000:.2f}",
        f"{statistics.median(run[1] for run in done):.1f}",
        f"{done[-1][2]:.0f}",
    )
    return f"| {' | '.join(cells)} |\n"


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
