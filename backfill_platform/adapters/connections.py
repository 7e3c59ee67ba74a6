"""The one place that opens the lake, the warehouse and the Kafka cluster of the settings."""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from pydantic import SecretStr
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.embedded_endpoint import running_url
from backfill_platform.adapters.clickhouse.publishing.staging import Loading
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.kafka.cluster import Cluster, no_cluster
from backfill_platform.adapters.records.connections import no_connections
from backfill_platform.adapters.spark.session import has_s3_client, session_options
from backfill_platform.domain.notification import redact
from backfill_platform.domain.object_store import is_object
from backfill_platform.domain.uris import without_password
from backfill_platform.errors import SettingsError, WarehouseUnavailable
from backfill_platform.settings import Settings


class Connections:
    """Opens what the settings name, each time it is asked; holds nothing open itself."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.patch_days = settings.patch_days
        self.lake_days = settings.lake_days
        embedded = settings.clickhouse_url is None
        usual = "pull" if embedded and not is_object(settings.lake_root) else "push"
        asked = usual if settings.loading == "auto" else settings.loading
        self.loading = Loading(asked)
        self.replayed = settings.source == "backfill"

    def lake(self) -> Lake:
        """The lake, its catalog's folder made where it is a local file.

        Raises SettingsError when the catalog's URI is none, or its folder cannot be written, and when a warehouse is to
        read object storage itself.
        """
        if self.loading is Loading.PULL and is_object(self._settings.lake_root):
            raise SettingsError(
                "BACKFILL_LOADING: a warehouse cannot read object storage yet; use push, or leave the setting out"
            )
        try:
            catalog = make_url(self._settings.lake_catalog)
            if catalog.get_backend_name() == "sqlite" and catalog.database:
                Path(catalog.database).parent.mkdir(parents=True, exist_ok=True)
            return Lake(self._settings.lake_catalog, self._settings.lake_root, self._settings.object_store.catalog_properties)
        except (SQLAlchemyError, OSError, ImportError, ValueError) as error:
            # What was raised may quote the URI, and Dagster shows it beside our own words.
            text = f"the lake's catalog {without_password(self._settings.lake_catalog)} cannot be opened: "
            raise SettingsError(text + _without_password_of(self._settings.lake_catalog, error)) from None

    def spark_options(self) -> dict[str, str]:
        """The options of a Spark session. Raises SettingsError where Spark could not read the lake's object storage."""
        settings = self._settings
        return session_options(
            master=settings.spark_master,
            remote=settings.spark_remote,
            driver_memory=settings.spark_driver_memory,
            more=self.installed_spark_options(),
        )

    def installed_spark_options(self) -> dict[str, str]:
        """What the settings say to a JVM of Spark that is started here. Raises SettingsError as `spark_options`."""
        more = {**self._settings.object_store.spark_options, **self._settings.spark_options}
        if is_object(self._settings.lake_root) and self._settings.spark_remote is None and not has_s3_client(more):
            raise SettingsError(
                "BACKFILL_LAKE_URI: Spark needs Hadoop's S3 client to read s3://; fetch it with `mvn -f deploy/s3a/pom.xml "
                "dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=/opt/s3a`, and set "
                'BACKFILL_SPARK_OPTIONS=\'{"spark.driver.extraClassPath": "/opt/s3a/*"}\''
            )
        return more

    def cluster(self) -> Cluster:
        """The Kafka cluster and its schema registry. Raises PreconditionError when the settings name none."""
        if not self._settings.kafka:
            return no_cluster()
        return Cluster(_revealed(self._settings.kafka), _revealed(self._settings.schema_registry))

    def named(self, name: str) -> dict[str, str]:
        """The properties of a connection that a source names. Raises SettingsError when the settings have none of the name."""
        if name not in self._settings.connections:
            no_connections(name)
        return _revealed(self._settings.connections[name])

    def warehouse(self) -> Warehouse:
        """A client of the warehouse. Raises WarehouseUnavailable with what to do when nothing answers."""
        given = self._settings.clickhouse_url
        if given is not None:
            return Warehouse(given.get_secret_value())
        url = running_url(self._settings.warehouse_dir)
        if url is None:
            raise WarehouseUnavailable(
                f"no embedded warehouse is running on {self._settings.warehouse_dir}: start it with `backfill up`, or "
                "name a server in BACKFILL_CLICKHOUSE_URL"
            )
        return Warehouse(url)


def _without_password_of(uri: str, error: Exception) -> str:
    """The first line of an error without anything that may be the password in the URI."""
    secret = uri.partition("://")[2].rpartition("@")[0]
    password = secret.partition(":")[2]
    # Where it has characters of URIs, parsers cut it at these.
    parts = {part for part in re.split(r"[/?#@:]", password) if len(part) > 2}
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return redact(first, {uri, secret, password, unquote(password), *parts})


def _revealed(secrets: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in secrets.items()}
