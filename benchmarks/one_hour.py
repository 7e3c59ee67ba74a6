"""One hour, from the click to verified: `python -m benchmarks.one_hour [--hours N]`.

`backfill up` on a home of its own, a day of real requests landed, then one backfill after the other for a single hour of
sessions and site metrics, built, published and verified, asked for as the Dagster UI asks (GraphQL). The stack is started three
times: to land; to ask at once when it is ready; and to ask when its Spark server has been warmed. Every hour is published for
the first time, and must be materialized in the end.
"""

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

from backfill_platform.domain.hours import partition_key
from backfill_platform.examples import clickstream
from benchmarks.stack import Took, stack

RESULTS = Path(__file__).parent / "results-one-hour.md"
HOURS = [partition_key(hour) for hour in clickstream.HOURS]
RAW = ("raw/clickstream",)
DERIVED = ("transformed/sessions", "warehouse/sessions", "aggregated/site_hourly", "warehouse/site_hourly")


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def line(what: str, took: list[Took]) -> str:
    def cell(name: str) -> str:
        values = [getattr(one, name) for one in took]
        spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
        return f"{statistics.median(values):.1f}{spread}"

    load = f"{min(one.load for one in took):.1f} to {max(one.load for one in took):.1f}"
    return f"| {what} | {len(took)} | {cell('started')} | **{cell('ended')}** | {cell('told')} | {load} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=6, help="how many after the first of a start")
    wanted = parser.parse_args().hours
    lines, hours, folder = "", iter(HOURS[2:]), Path(tempfile.mkdtemp())
    home = folder / "home"
    try:
        with stack(home, clickstream.__name__) as running:
            landed = running.backfill(RAW, HOURS[0], HOURS[-1])
            say(f"landed: {landed}\n")
        for warmed in (False, True):
            with stack(home, clickstream.__name__) as running:
                waited = running.wait_until_warm() if warmed else 0.0
                say(f"warming went on for {waited:.1f} s\n")
                took = []
                for number, hour in zip(range(wanted + 1), hours, strict=False):
                    took.append(running.backfill(DERIVED, hour, hour))
                    say(f"{hour}: {took[number]}\n")
                first = (
                    f"the first, {waited:.0f} s later, when Spark is warm"
                    if warmed
                    else "the first, at once when `up` is ready"
                )
                lines += line(first, took[:1]) + line("the next ones", took[1:])
    finally:
        shutil.rmtree(folder)
    text = HEAD.format(
        cores=len(os.sched_getaffinity(0)),
        machine=platform.machine(),
        spark=version("pyspark"),
        dagster=version("dagster"),
        day=timedelta(hours=len(HOURS)) // timedelta(hours=1),
    )
    say(text + lines)
    if wanted == parser.get_default("hours"):
        RESULTS.write_text(text + lines)


HEAD = """# One hour, from the click to verified

`python -m benchmarks.one_hour` on {cores} cores ({machine}), PySpark {spark}, Dagster {dagster}: backfills of a single hour of
the shipped clickstream ({day} hours of real requests are landed), sessions and site metrics built, published and verified,
asked for by GraphQL as the Dagster UI does. Seconds from asking, medians and spread; the load is the machine's one-minute
average when it was asked, other work included.

| backfill | number | run started, s | run ended: published and verified, s | the UI says done, s | load |
|---|---|---|---|---|---|
"""


if __name__ == "__main__":
    main()
