"""Where an object store is, as all of its clients are told; and what is refused before anything begins."""

import os
from pathlib import Path

import pytest

from backfill_platform.adapters.clickhouse.publishing.staging import Loading
from backfill_platform.adapters.connections import Connections
from backfill_platform.domain.object_store import ObjectStore
from backfill_platform.errors import SettingsError
from backfill_platform.settings import Settings, load_settings


def settings(tmp_path: Path, **given: object) -> Settings:
    return Settings(home=tmp_path, lake_uri="s3://lake/tables", **given)  # type: ignore[arg-type]


def test_all_clients_are_told_the_same() -> None:
    store = ObjectStore("http://minio:9000")
    assert store.environment["AWS_ENDPOINT_URL"] == store.catalog_properties["s3.endpoint"] == "http://minio:9000"
    assert store.environment["AWS_REGION"] == store.catalog_properties["s3.region"]
    options = store.spark_options
    assert options["spark.hadoop.fs.s3a.endpoint"] == options["spark.executorEnv.AWS_ENDPOINT_URL"] == "http://minio:9000"
    assert options["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "false"
    assert ObjectStore("https://minio").spark_options["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "true"


def test_without_an_endpoint_and_a_region_aws_variables_decide() -> None:
    assert ObjectStore().environment == ObjectStore().catalog_properties == {}
    assert not any("endpoint" in name for name in ObjectStore().spark_options)
    assert ObjectStore(region="eu-west-1").environment == {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-1"}


def test_reading_the_settings_tells_this_process_and_its_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "before")
    load_settings(home=tmp_path)
    assert os.environ["AWS_ENDPOINT_URL"] == "before"
    load_settings(home=tmp_path, s3_endpoint_url="http://minio:9000", s3_region="eu-west-1")
    assert os.environ["AWS_ENDPOINT_URL"] == "http://minio:9000"
    assert os.environ["AWS_REGION"] == os.environ["AWS_DEFAULT_REGION"] == "eu-west-1"


def test_an_endpoint_that_is_no_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="BACKFILL_S3_ENDPOINT_URL"):
        load_settings(home=tmp_path, s3_endpoint_url="minio:9000")


def test_rows_are_pushed_where_the_lake_is_in_a_bucket(tmp_path: Path) -> None:
    assert Connections(settings(tmp_path)).loading is Loading.PUSH
    assert Connections(Settings(home=tmp_path)).loading is Loading.PULL
    with pytest.raises(SettingsError, match="cannot read object storage"):
        Connections(settings(tmp_path, loading="pull")).lake()


def test_spark_needs_a_client_of_its_own_unless_it_is_a_server_of_somebody_else(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"deploy/s3a/pom\.xml"):
        Connections(settings(tmp_path)).spark_options()
    given = {"spark.driver.extraClassPath": "/opt/s3a/*", "spark.sql.shuffle.partitions": "3"}
    options = Connections(settings(tmp_path, spark_options=given)).spark_options()
    assert given.items() <= options.items()
    assert options["spark.hadoop.fs.s3.impl"].endswith("S3AFileSystem")
    assert (
        Connections(settings(tmp_path, spark_remote="sc://spark:15002")).spark_options()["spark.remote"] == "sc://spark:15002"
    )
    assert "spark.remote" not in Connections(Settings(home=tmp_path)).spark_options()
