import sys
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.session import FEW_ROWS, OPTIONS, connect_server_command, session_options, sized_for
from backfill_platform.orchestration.resources import build_resources
from backfill_platform.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_python_workers_run_this_interpreter(spark: "SparkSession") -> None:
    interpreter = F.udf(lambda _: sys.executable)
    assert spark.range(1).select(interpreter("id").alias("found")).collect()[0]["found"] == sys.executable


def test_a_session_reads_and_writes_utc_whatever_the_machine_is_set_to(spark: "SparkSession") -> None:
    assert (
        spark.sql("SELECT date_format(timestamp_seconds(0), 'yyyy-MM-dd HH:mm') AS t").collect()[0]["t"] == "1970-01-01 00:00"
    )


def test_few_rows_are_computed_in_few_tasks_and_the_session_is_as_before(spark: "SparkSession") -> None:
    def tasks() -> int:
        moved = spark.range(10_000).repartition(F.col("id") % 100)
        return moved.select(F.spark_partition_id().alias("task")).distinct().count()

    names = ("spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions")
    before, usual = [spark.conf.get(name) for name in names], tasks()
    with sized_for(spark, FEW_ROWS):
        assert tasks() == 2
    assert usual == 1, "adaptive execution puts small partitions together"
    assert [spark.conf.get(name) for name in names] == before
    with sized_for(spark, FEW_ROWS + 1):
        assert tasks() == usual
    with pytest.raises(ValueError, match="as a job fails"), sized_for(spark, 1):
        raise ValueError("as a job fails")
    assert [spark.conf.get(name) for name in names] == before


def test_a_connect_session_takes_the_options_of_its_server() -> None:
    remote = session_options(master="local[*]", remote="sc://h:1", driver_memory="1g")
    assert remote == {**OPTIONS, "spark.remote": "sc://h:1"}
    assert remote["spark.sql.session.timeZone"] == "UTC"
    command = connect_server_command(port=15002, master="local[2]", driver_memory="1g")
    confs = {command[n + 1] for n, part in enumerate(command) if part == "--conf"}
    assert {f"{key}={value}" for key, value in OPTIONS.items()} <= confs
    assert "spark.connect.grpc.binding.address=127.0.0.1" in confs
    private = connect_server_command(port=15002, master="local[2]", driver_memory="1g", private=True)
    assert set(private) - set(command) == {"spark.hadoop.fs.permissions.umask-mode=077"}


def test_an_object_store_is_a_resource_only_where_the_settings_name_one() -> None:
    assert "s3" not in build_resources(Settings())
    s3 = build_resources(Settings(s3_endpoint_url="http://127.0.0.1:9000", s3_region="eu-west-1"))["s3"]
    assert (s3.endpoint_url, s3.region_name) == ("http://127.0.0.1:9000", "eu-west-1")
