"""An S3-compatible object store (moto's server) on a free loopback port, in a process of its own."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backfill_platform.devstack.processes import free_port
from backfill_platform_tests.fixtures_warehouse import wait_for_port

ROOT = Path(__file__).parent.parent
S3_CLIENT = ROOT / ".s3a" / "libs"  # of Spark; scripts/need-s3a fetches it
START_SECONDS = 60
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}


@dataclass(frozen=True)
class Bucket:
    """A new bucket of the store at `endpoint`."""

    name: str
    endpoint: str

    def client(self) -> Any:
        import boto3  # type: ignore[import-untyped, unused-ignore]

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )

    def keys(self, prefix: str = "") -> list[str]:
        """The names of all objects that begin with the prefix."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """The endpoint of the store."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    try:
        wait_for_port(process, port, START_SECONDS)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def bucket(object_store: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket; this process may read and write it."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    made = Bucket(f"lake-{uuid.uuid4().hex[:12]}", object_store)
    made.client().create_bucket(Bucket=made.name)
    return made


@pytest.fixture(scope="session")
def spark_s3_client() -> str:
    """The class path of Spark's S3 client."""
    if not S3_CLIENT.is_dir():
        reason = S3_CLIENT.with_name("why-not")
        pytest.skip(reason.read_text().strip() if reason.exists() else "run scripts/need-s3a for Spark's S3 client")
    return f"{S3_CLIENT}{os.sep}*"
