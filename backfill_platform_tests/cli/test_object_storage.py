"""The command line with its lake in object storage: everything but the warehouse and the catalog is in a bucket."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_platform_tests.fixtures_object_store import Bucket

HOURS = ("--from", "1998-05-01T00", "--to", "1998-05-01T02")


class CommandLine:
    def __init__(self, home: Path, bucket: Bucket, class_path: str) -> None:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "DAGSTER_"))}
        self.environment = {
            **ours,
            "BACKFILL_HOME": str(home),
            "BACKFILL_S3_ENDPOINT_URL": bucket.endpoint,
            "BACKFILL_LAKE_URI": f"s3://{bucket.name}/tables",
            "BACKFILL_SPARK_OPTIONS": json.dumps({"spark.driver.extraClassPath": class_path}),
        }

    def __call__(self, *arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "backfill_platform.cli", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.mark.whole
def test_hours_are_landed_published_and_repaired_with_the_lake_in_a_bucket(
    tmp_path: Path, bucket: Bucket, spark_s3_client: str
) -> None:
    backfill = CommandLine(tmp_path / "home", bucket, spark_s3_client)
    backfill("run", "clickstream", *HOURS)
    data = bucket.keys("tables/data/transformed/sessions/")
    assert len(data) == 2
    assert not list((tmp_path / "home" / "lake").rglob("*.parquet")), "nothing of the lake is beside the bucket"
    bucket.client().delete_object(Bucket=bucket.name, Key=data[0])
    assert "sessions" in backfill("gaps", "clickstream", *HOURS, code=1)
    assert "repair finished" in backfill("run", "clickstream", *HOURS)
    assert "no gaps in 2 hours" in backfill("gaps", "clickstream", *HOURS)


def test_a_spark_without_an_s3_client_is_refused_with_what_to_do(tmp_path: Path, bucket: Bucket) -> None:
    backfill = CommandLine(tmp_path / "home", bucket, "")
    backfill.environment["BACKFILL_SPARK_OPTIONS"] = "{}"
    told = backfill("run", "clickstream", *HOURS, code=2)
    assert "deploy/s3a/pom.xml" in told
    assert "Traceback" not in told
    assert bucket.keys() == []
