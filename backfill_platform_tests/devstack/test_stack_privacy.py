"""What a running `backfill up` gives to others on the same machine: nothing."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_platform_tests.fixtures_stack import ROOT, Stack, processes_of
from backfill_platform_tests.fixtures_warehouse import wait_until

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by Linux's /proc"),
]

COUNT = """
import sys
from pyspark.sql import SparkSession
print(SparkSession.builder.remote(sys.argv[1]).getOrCreate().range(7).count())
"""


def test_only_its_owner_may_look_into_the_home(stack: Stack) -> None:
    before = set(stack.home.rglob("*"))  # other tests run commands in this home, with their own umask
    # An hour that no other test lands: landed again as it is, it would make no files.
    backfill = stack.launch_backfill(("raw/clickstream",), "1998-05-01-19:00", "1998-05-01-19:00")
    wait_until(lambda: stack.backfill_status(backfill) == "COMPLETED_SUCCESS", 180)
    assert stat.S_IMODE(stack.home.stat().st_mode) == 0o700
    secrets = {path for path in before if path.name in {"services.json", "endpoint.json", "secret", "runs.db", "webserver.log"}}
    assert len(secrets) == 5
    made = [path for path in secrets | (set(stack.home.rglob("*")) - before) if not path.is_symlink()]
    assert {".parquet", ".avro"} <= {path.suffix for path in made}
    open_to_others = [str(path) for path in made if path.lstat().st_mode & 0o077 and not stat.S_ISSOCK(path.lstat().st_mode)]
    assert open_to_others == []


def test_no_secret_is_seen_in_the_list_of_processes(stack: Stack) -> None:
    token = json.loads((stack.home / "services.json").read_text())["spark_token"]
    secret = (stack.home / "warehouse" / "secret").read_text()
    assert len(token) > 30
    commands = processes_of(stack.home)
    assert len(commands) > 5
    assert [command for command in commands.values() if token in command or secret in command] == []


def test_everything_listens_on_the_loopback_address_only(stack: Stack) -> None:
    ours = {
        os.readlink(link)
        for pid in processes_of(stack.home)
        for link in Path(f"/proc/{pid}/fd").glob("*")
        if link.is_symlink() and os.readlink(link).startswith("socket:")
    }
    listening = [
        fields[1]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in ours
    ]
    assert len(listening) >= 3
    loopback = ("0100007F:", "0000000000000000FFFF00000100007F:", "00000000000000000000000001000000:")
    assert [place for place in listening if not place.startswith(loopback)] == []


@pytest.mark.parametrize("token", [None, "wrong"])
def test_spark_connect_answers_nobody_without_the_token(stack: Stack, token: str | None) -> None:
    assert count_by_spark(stack, token).returncode != 0
    assert "UNAUTHENTICATED" in count_by_spark(stack, token).stderr
    right = count_by_spark(stack, json.loads((stack.home / "services.json").read_text())["spark_token"])
    assert right.stdout == "7\n", right.stderr


def count_by_spark(stack: Stack, token: str | None) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_AUTHENTICATE_TOKEN"}
    if token is not None:
        environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = token
    return subprocess.run(
        [sys.executable, "-c", COUNT, stack.spark_remote],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
