"""Settings, and the only reader of the environment.

Every setting has a default that works on a fresh machine; production changes it by an environment variable with the prefix
`BACKFILL_`, such as `BACKFILL_CLICKHOUSE_URL`.
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

from backfill_platform.core.uris import local_uri
from backfill_platform.errors import SettingsError


class Settings(BaseSettings):
    """Where things are. Paths are made absolute when read, so that a process may change its folder."""

    model_config = SettingsConfigDict(env_prefix="BACKFILL_", frozen=True, extra="forbid")

    home: Path = Field(Path(".backfill"), description="folder of all embedded state: lake, warehouse, Dagster")
    project: Path = Field(Path("."), description="folder that holds workspace.yaml and dagster.yaml")
    pipelines: tuple[str, ...] = Field(
        ("backfill_platform.pipelines.clickstream",),
        description="modules with a `pipeline`, as a JSON list",
    )
    clickhouse_url: SecretStr | None = Field(
        None,
        description="URL of a ClickHouse server, such as http://user:secret@host:8123; "
        "without one the embedded warehouse is used",
    )
    loading: Literal["auto", "pull", "push"] = Field(
        "auto",
        description="pull: the warehouse reads the lake's files itself; push: they are sent to it; "
        "auto: pull with the embedded warehouse, push to a server",
    )
    lake_uri: str | None = Field(None, description="root of the lake's tables; default: file:// below home")
    lake_catalog_uri: str | None = Field(None, description="SQLAlchemy URI of the catalog; default: SQLite below home")
    spark_master: str = Field("local[*]", description="where a classic Spark session runs")
    spark_remote: str | None = Field(None, description="a Spark Connect server, sc://host:port, instead of a session")
    spark_driver_memory: str = Field("2g", description="heap of the Spark driver, as Java writes it")
    patch_days: int = Field(30, ge=1, description="for how many days a publish can be undone")
    web_port: int = Field(3000, ge=0, le=65535, description="port of the Dagster UI on the loopback address; 0: a free one")
    s3_endpoint_url: str | None = Field(None, description="endpoint of an S3-compatible object store")
    s3_region: str | None = Field(None, description="region of the object store")

    @field_validator("home", "project")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        return path.expanduser().absolute()

    @property
    def warehouse_dir(self) -> Path:
        """The folder of the embedded warehouse."""
        return self.home / "warehouse"

    @property
    def dagster_home(self) -> Path:
        """The folder of the Dagster instance."""
        return self.home / "dagster"

    @property
    def services_file(self) -> Path:
        """Where `backfill up` says what it has started."""
        return self.home / "services.json"

    @property
    def lake_root(self) -> str:
        """The root URI of the lake."""
        return self.lake_uri or local_uri(self.home / "lake")

    @property
    def lake_catalog(self) -> str:
        """The SQLAlchemy URI of the lake's catalog."""
        return self.lake_catalog_uri or f"sqlite:///{self.home / 'lake' / 'catalog.db'}"


def load_settings(**given: object) -> Settings:
    """The settings of this process: given values first, then the environment, then defaults.

    Raises SettingsError naming the variable and what is wrong with it.
    """
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        problems = "; ".join(f"BACKFILL_{'.'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors())
        raise SettingsError(f"settings: {problems}") from error
    except SourceError as error:
        raise SettingsError(f"settings: {error}; BACKFILL_PIPELINES is a JSON list, such as '[\"my.module\"]'") from error


def child_environment(settings: Settings, **more: str) -> dict[str, str]:
    """The environment of a process that shall see the same settings: ours, with the paths made absolute."""
    return {
        **os.environ,
        "BACKFILL_HOME": str(settings.home),
        "BACKFILL_PROJECT": str(settings.project),
        "DAGSTER_HOME": str(settings.dagster_home),
        **more,
    }
