"""A pipeline written from the documentation, run by the command line and counted again in plain Python; nothing is shared."""

import gzip
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.fixtures_stack import ROOT, environment
from backfill_platform_tests.pipelines import nasa

pytestmark = pytest.mark.whole

HOUR = datetime(1995, 7, 1, 4, tzinfo=UTC)  # midnight at the server; all lines are of its first 18 minutes
RANGE = ("--from", "1995-07-01T04", "--to", "1995-07-01T06")
LETTERS = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-")


class Request(NamedTuple):
    host: str
    at: datetime
    status: int
    bytes: int


class Visit(NamedTuple):
    """A row of transformed/visits; the hour is the only one there is."""

    hour: datetime
    host: str
    started_at: datetime
    ended_at: datetime
    requests: int
    errors: int
    bytes: int
    is_open: bool


def request_of(line: str) -> Request:
    host, _, _, day, offset, method, path, protocol, status, size = line.split(" ")
    assert (offset, method, path[0], protocol) == ("-0400]", '"GET', "/", 'HTTP/1.0"'), line
    at = datetime.strptime(day, "[%d/%b/%Y:%H:%M:%S").replace(tzinfo=UTC) + timedelta(hours=4)
    return Request(host, at, int(status), 0 if size == "-" else int(size))


def counted_again(lines: Iterable[str]) -> tuple[list[Request], dict[str, str]]:
    """The good requests, and the lines that the checks refuse, with the reason."""
    good, refused = [], {}
    for line in lines:
        request = request_of(line)
        if not set(request.host) <= LETTERS:
            refused[line] = "host: str_matches('^[A-Za-z0-9.-]+$')"
        elif request.status == 200 and request.bytes == 0:
            refused[line] = "pages have a body"
        else:
            good.append(request)
    return good, refused


def visits_of(requests: Iterable[Request]) -> list[Visit]:
    by_host: defaultdict[str, list[Request]] = defaultdict(list)
    for request in requests:
        by_host[request.host].append(request)
    visits = []
    for host, own in by_host.items():
        own.sort(key=lambda request: request.at)
        starts = [n for n in range(len(own)) if n == 0 or own[n].at - own[n - 1].at >= timedelta(minutes=5)]
        for start, end in zip(starts, [*starts[1:], len(own)], strict=True):
            part = own[start:end]
            errors = sum(request.status >= 400 for request in part)
            sent = sum(request.bytes for request in part)
            visits.append(Visit(HOUR, host, part[0].at, part[-1].at, len(part), errors, sent, False))
    return visits


def backfill(home: Path, *arguments: str) -> Any:
    """What the command reports; it must end with 0."""
    settings = {**environment(home), "BACKFILL_PIPELINES": json.dumps([nasa.__name__])}
    command = [sys.executable, "-m", "backfill_platform.cli", *arguments, "--output", "json"]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def test_the_warehouse_has_what_plain_python_counts(tmp_path: Path) -> None:
    with gzip.open(nasa.LOG_FILE, "rt", encoding="latin-1") as file:
        lines = file.read().splitlines()
    requests, refused = counted_again(lines)
    visits = visits_of(requests)
    assert (len(lines), len(set(lines)), len(refused)) == (1_000, 1_000, 12)
    assert len(visits) > len({visit.host for visit in visits}), "no host comes back, so the gap is not tested"

    report = backfill(tmp_path, "run", "nasa", *RANGE, "--reason", "first load")
    verified = backfill(tmp_path, "verify", "nasa")

    landed = {hour["hour"][11:13]: hour for hour in report["hours"] if hour["asset"] == "raw/requests"}
    assert {hour: (facts["rows_read"], facts["rows"], facts["quarantined"]) for hour, facts in landed.items()} == {
        "04": (1_000, len(requests), len(refused)),
        "05": (0, 0, 0),
    }
    assert {(hour["table"], hour["hour"][11:13], hour["equal"]) for hour in verified} == {
        (table, hour, True) for table in ("transformed/visits", "aggregated/visits_hourly") for hour in ("04", "05")
    }

    rejects = open_lake(tmp_path).read(quarantine_of(nasa.pipeline.raw.table), ("payload", "reason"), "hour IS NOT NULL")
    assert sorted((row["payload"], row["reason"]) for row in rejects.to_pylist()) == sorted(refused.items())

    hourly = [sum(column) for column in zip(*[(v.requests, 1, v.errors, v.bytes) for v in visits], strict=True)]
    with embedded.start(tmp_path / "warehouse") as server, closing(Warehouse(server.url)) as warehouse:
        columns = ", ".join(Visit._fields)
        assert sorted(warehouse.rows(f"SELECT {columns} FROM transformed.visits FINAL", doing="counting")) == sorted(visits)
        columns = "hour, requests, visits, errors, bytes, hosts"
        assert warehouse.rows(f"SELECT {columns} FROM aggregated.visits_hourly FINAL", doing="counting") == [
            (HOUR, *hourly, len({visit.host for visit in visits}))
        ]
