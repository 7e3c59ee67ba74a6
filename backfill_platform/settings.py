"""Settings, and the only reader of the environment.

Every setting has a default that works on a fresh machine; production changes it by an environment variable with the prefix
`BACKFILL_`, such as `BACKFILL_CLICKHOUSE_URL`.
"""

import os
import secrets
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

from backfill_platform.domain.notification import NotificationKind, redact
from backfill_platform.domain.object_store import ObjectStore
from backfill_platform.domain.uris import local_uri
from backfill_platform.errors import SettingsError

SPARK_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # Spark's own name; its client and its server read it


class RecipientSettings(BaseModel):
    """How a recipient is reached, by one address or several, and of what it is told."""

    # Values are secrets: what is wrong is said without them.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    urls: tuple[SecretStr, ...] = Field(
        min_length=1, description="addresses as Apprise writes them, such as slack://..., mailtos://..., json://..."
    )
    events: tuple[NotificationKind, ...] = Field(
        (NotificationKind.WAITING, NotificationKind.FAILED, NotificationKind.FINISHED),
        min_length=1,
        description="of started, finished, waiting, failed",
    )

    @field_validator("urls")
    @classmethod
    def _are_urls(cls, urls: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if any("://" not in url.get_secret_value() for url in urls):
            raise ValueError("an address has a scheme, such as https://hooks.slack.com/services/... or mailtos://...")
        return urls


class Settings(BaseSettings):
    """Where things are. Paths are made absolute when read, so that a process may change its folder."""

    model_config = SettingsConfigDict(env_prefix="BACKFILL_", frozen=True, extra="forbid", hide_input_in_errors=True)

    home: Path = Field(Path(".backfill"), description="folder of all embedded state: lake, warehouse, Dagster")
    project: Path = Field(Path("."), description="folder with a workspace.yaml and dagster.yaml of your own, if you have any")
    pipelines: tuple[str, ...] = Field(
        (
            "backfill_platform.examples.clickstream",
            "backfill_platform.examples.payments",
            "backfill_platform.examples.playbacks",
        ),
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
    spark_remote: str | None = Field(
        None,
        description="a Spark Connect server, sc://host:port, instead of a session; its token: SPARK_CONNECT_AUTHENTICATE_TOKEN",
    )
    spark_driver_memory: str = Field("2g", description="heap of the Spark driver, as Java writes it")
    spark_options: dict[str, str] = Field(
        {},
        description="further options of Spark, for a session or server that is started here, as a JSON object, such as "
        '{"spark.driver.extraClassPath": "/opt/s3a/*"}; no secrets: Dagster shows them',
    )
    kafka: dict[str, SecretStr] = Field(
        {}, description='settings of librdkafka, as a JSON object: {"bootstrap.servers": "broker:9092"}'
    )
    schema_registry: dict[str, SecretStr] = Field(
        {}, description='settings of Confluent\'s registry client, as a JSON object: {"url": "http://registry:8081"}'
    )
    connections: dict[str, dict[str, SecretStr]] = Field(
        {},
        description="what sources connect to, by the names that pipelines use, as a JSON object: "
        '{"shop": {"url": "postgresql://..."}} for queries, {"lakehouse": {"type": "rest", "uri": "https://..."}} for tables',
    )
    source: Literal["live", "backfill"] = Field(
        "live", description="live: pipelines land their topics; backfill: the topics of their replays"
    )
    patch_days: int = Field(30, ge=1, description="for how many days a publish can be undone")
    lake_days: int = Field(
        2, ge=1, description="for how many days the lake keeps what was replaced; longer than any run or reader of it takes"
    )
    history_days: int = Field(
        90, ge=1, description="for how many days Dagster keeps the logs of runs, and what newer runs have replaced"
    )
    web_port: int = Field(3000, ge=0, le=65535, description="port of the Dagster UI on the loopback address; 0: a free one")
    web_url: str | None = Field(
        None,
        description="address of the Dagster UI for other people: for links in messages, and for the gate before it",
    )
    recipients: dict[str, RecipientSettings] = Field(
        {}, description="how the recipients of pipelines are reached, by name, as a JSON object"
    )
    s3_endpoint_url: str | None = Field(
        None, pattern="^https?://", description="endpoint of an S3-compatible object store, such as https://minio:9000"
    )
    s3_region: str | None = Field(None, description="region of the object store")

    @field_validator("home", "project")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        return path.expanduser().absolute()

    @field_validator("spark_remote")
    @classmethod
    def _has_no_token(cls, remote: str | None) -> str | None:
        if remote and ";token=" in remote.lower():
            raise ValueError(f"its token is set as {SPARK_TOKEN}, Spark's own variable: Dagster shows addresses to everybody")
        return remote

    def make_home(self) -> None:
        """Make the home, into which only its owner may look. Raises SettingsError when anybody else can."""
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            if self.home.stat().st_uid == os.getuid():
                self.home.chmod(0o700)
        except OSError as error:
            raise SettingsError(f"BACKFILL_HOME: {self.home} cannot be used: {error.strerror}") from error
        if self.home.stat().st_mode & 0o007:
            raise SettingsError(
                f"BACKFILL_HOME: {self.home} is somebody else's and open to everybody; use a folder of your own, or have its "
                "owner run: chmod o-rwx"
            )

    @property
    def object_store(self) -> ObjectStore:
        """Where `s3://` is."""
        return ObjectStore(self.s3_endpoint_url, self.s3_region)

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
    def spark_log(self) -> Path:
        """What the JVMs of Spark print that runs start for themselves."""
        return self.home / "spark.log"

    def project_file(self, name: str) -> Path:
        """The project's own `dagster.yaml` or `workspace.yaml`, else the one that comes with the package."""
        own = self.project / name
        return own if own.is_file() else Path(__file__).parent / "orchestration" / "project" / name

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

    Where they name an object store, Arrow and boto3 are told by their variables, in this process and its children. Raises
    SettingsError naming the variable and what is wrong with it.
    """
    try:
        settings = Settings(**given)  # type: ignore[arg-type]
        os.environ.update(settings.object_store.environment)
        return settings
    # Their chains hold what was given, which may be a secret; the texts do not.
    except ValidationError as error:
        problems = "; ".join(f"{_variable(e['loc'])}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors())
        raise SettingsError(f"settings: {redact(problems)}") from None
    except SourceError as error:
        raise SettingsError(f"settings: {_no_json(str(error))}") from None


def _variable(path: tuple[int | str, ...]) -> str:
    """The variable, and the place in it: `BACKFILL_RECIPIENTS web-team.events.0`."""
    name, *inside = map(str, path or ("settings",))
    return f"BACKFILL_{name.upper()} {'.'.join(inside)}".strip()


def _no_json(text: str) -> str:
    if '"recipients"' in text:
        example = '{"web-team": {"urls": ["slack://..."]}}'
        return f"BACKFILL_RECIPIENTS is a JSON object, such as '{example}'"
    if '"connections"' in text:
        return """BACKFILL_CONNECTIONS is a JSON object of objects of texts, such as '{"shop": {"url": "postgresql://..."}}'"""
    for name in ("kafka", "schema_registry", "spark_options"):
        if f'"{name}"' in text:
            return f"BACKFILL_{name.upper()} is a JSON object of texts"
    return f"{text}; BACKFILL_PIPELINES is a JSON list, such as '[\"my.module\"]'"


def use_spark_token(token: str) -> None:
    """Let Spark's client of this process and of its children bring the token: they read it from their environment."""
    os.environ[SPARK_TOKEN] = token


def own_spark_token() -> str:
    """The token that is set, else a new one, for a Spark Connect server that this process starts and for its clients."""
    return os.environ.setdefault(SPARK_TOKEN, secrets.token_urlsafe(32))


def child_environment(settings: Settings, **more: str) -> dict[str, str]:
    """The environment of a process that shall see the same settings and modules: ours, with the paths made absolute."""
    return {
        **os.environ,
        # Spark's Python workers look into neither the project nor the folder that they were started in.
        "PYTHONPATH": os.pathsep.join(filter(None, (str(settings.project), os.environ.get("PYTHONPATH")))),
        "BACKFILL_HOME": str(settings.home),
        "BACKFILL_PROJECT": str(settings.project),
        "DAGSTER_HOME": str(settings.dagster_home),
        **more,
    }
