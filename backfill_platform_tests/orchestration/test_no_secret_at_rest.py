"""Nothing that a run leaves behind holds a secret of the settings: the whole home is searched, with Spark's event logs in it.

With a topic as the source, whose settings travel to Spark's tasks, and with a run that fails, whose errors are kept.
"""

import json
import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform_tests.fixtures_kafka import Broker
from backfill_platform_tests.fixtures_stack import COMMAND, ROOT, environment
from backfill_platform_tests.pipelines.messages import Visit, send

pytestmark = pytest.mark.slow

SECRETS = {
    "kafka": "s3cret-of-kafka",
    "registry": "s3cret-of-the-registry",
    "recipient": "s3cret-of-a-recipient",
    "store": "s3cret-of-the-object-store",
    "reason": "s3cret-in-a-reason",  # a control: this one is kept, so the search does find what is there
}
MODULE = """
from backfill_platform_tests.pipelines.messages import pipeline_over
from dataclasses import replace
pipeline = replace(pipeline_over({topic!r}, 2, suffix="kept"), recipients=("team",))
"""
HOURS = ("--from", "2026-03-01T10", "--to", "2026-03-01T12")


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> tuple[Path, dict[str, str], str]:
    """A home after a run that works and one that fails; the secrets; and what the commands have printed."""
    folder = tmp_path_factory.mktemp("secrets")
    home, modules, spark = folder / "home", folder / "modules", folder / "spark"
    for made in (modules, spark, home / "events"):
        made.mkdir(parents=True)
    topic = broker.topic(partitions=2)
    send(broker.producer(), topic, [Visit(f"user-{number % 3}", 60 * number, number) for number in range(100)])
    (modules / "kept_visits.py").write_text(MODULE.format(topic=topic))
    (spark / "spark-defaults.conf").write_text(f"spark.eventLog.enabled true\nspark.eventLog.dir file://{home}/events\n")
    printed = []
    with embedded.start(folder / "warehouse") as server:
        secrets = {**SECRETS, "warehouse": (folder / "warehouse" / "secret").read_text()}
        settings = {
            **environment(home, ["kept_visits"]),
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(modules))),
            "SPARK_CONF_DIR": str(spark),
            "AWS_SECRET_ACCESS_KEY": secrets["store"],
            "BACKFILL_CLICKHOUSE_URL": server.url,
            "BACKFILL_KAFKA": json.dumps({**broker.config, "sasl.username": "ada", "sasl.password": secrets["kafka"]}),
            "BACKFILL_SCHEMA_REGISTRY": json.dumps(
                {"url": "http://127.0.0.1:1", "basic.auth.user.info": f"ada:{secrets['registry']}"}
            ),
            "BACKFILL_RECIPIENTS": json.dumps({"team": {"urls": [f"json://ada:{secrets['recipient']}@127.0.0.1:1/"]}}),
        }
        wrong = {**broker.config, "security.protocol": "nonsense", "sasl.password": secrets["kafka"]}
        other_password = server.url.replace(secrets["warehouse"], SECRETS["kafka"])
        land = ("run", "visits_kept", *HOURS, "--select", "raw/visits_kept")
        cases = [
            (0, settings, ("run", "visits_kept", *HOURS, "--reason", secrets["reason"])),
            (0, settings, ("check", "visits_kept", *HOURS)),
            (0, settings, ("replay", "visits_kept", *HOURS, "--name", "again")),
            (1, {**settings, "BACKFILL_CLICKHOUSE_URL": other_password}, ("gaps", "visits_kept")),
            (1, {**settings, "BACKFILL_KAFKA": json.dumps(wrong)}, land),
        ]
        for code, of_case, arguments in cases:
            done = subprocess.run(
                [COMMAND, *arguments], cwd=ROOT, env=of_case, capture_output=True, text=True, timeout=800, check=False
            )
            assert done.returncode == code, (arguments, done.stdout, done.stderr)
            printed.append(done.stdout + done.stderr)
    return home, secrets, "\n".join(printed)


def holders(home: Path, secret: str) -> list[str]:
    """The files below the home with the secret in them; what Parquet packs is unpacked."""
    found = []
    for path in home.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == ".parquet":
                content += str(pq.read_table(path).to_pylist()).encode()
            if secret.encode() in content or secret.encode("utf-16-le") in content:
                found.append(str(path.relative_to(home)))
    return found


def test_no_secret_of_the_settings_is_left_behind(left_behind: tuple[Path, dict[str, str], str]) -> None:
    home, secrets, _ = left_behind
    assert any((home / "events").iterdir()), "Spark has written event logs"
    assert any(path.suffix == ".parquet" for path in home.rglob("*"))
    found = {name: holders(home, secret) for name, secret in secrets.items()}
    kept = found.pop("reason")
    assert any(path.endswith("runs.db") for path in kept), "the search finds what is there"
    assert found == {name: [] for name in found}


def test_no_secret_of_the_settings_is_printed(left_behind: tuple[Path, dict[str, str], str]) -> None:
    _, secrets, printed = left_behind
    assert "visits_kept" in printed
    assert [name for name, secret in secrets.items() if name != "reason" and secret in printed] == []
