"""One application, live and backfill: the same commands follow a live topic, and the topic of a replay of it."""

import json
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from backfill_platform.adapters.connections import Connections
from backfill_platform.domain.hours import HOUR, format_hour
from backfill_platform.settings import Settings
from backfill_platform_tests.adapters.kafka.scrape import scraping
from backfill_platform_tests.fixtures_kafka import Broker, free_ports
from backfill_platform_tests.fixtures_stack import ROOT, environment
from backfill_platform_tests.pipelines.messages import T0, pipeline_over, send, sessions_of
from backfill_platform_tests.topics.test_land_topic import some_visits

pytestmark = pytest.mark.slow

HOURS = 4
REPLAYED = (T0 + HOUR, T0 + 2 * HOUR)
PIPELINE = """from backfill_platform_tests.pipelines.messages import pipeline_over

pipeline = pipeline_over("{topic}", {hours}, suffix="live")
"""
Session = tuple[str, datetime, datetime, int, int]


class App:
    """The command line on a home of its own."""

    def __init__(self, home: Path, broker: Broker, topic: str, **more: str) -> None:
        home.mkdir()
        (home / "live_topic_pipeline.py").write_text(PIPELINE.format(topic=topic, hours=HOURS))
        self.home = home
        self.environment = {
            **environment(home, ["live_topic_pipeline"]),
            "PYTHONPATH": f"{home}:{ROOT}",
            "BACKFILL_KAFKA": json.dumps(broker.config),
            **more,
        }

    def run(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "backfill_platform.cli", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def sessions(self) -> Counter[Session]:
        """The sessions of the lake."""
        (table,) = pipeline_over("any", HOURS, suffix="live").derived
        lake = Connections(Settings(home=self.home, project=ROOT)).lake()
        columns = ("user", "started_at", "ended_at", "visits", "numbers")
        node = next(one for one in pipeline_over("any", HOURS, suffix="live").nodes if one.table.name == table.name)
        rows = lake.read(node.table, columns, "visits > 0").to_pylist()
        return Counter(tuple(row[name] for name in columns) for row in rows)


def of_hours(sessions: Counter[Session], hours: tuple[datetime, ...]) -> Counter[Session]:
    return Counter({one: count for one, count in sessions.items() if any(hour <= one[1] < hour + HOUR for hour in hours)})


def test_the_replayed_topic_gives_the_sessions_of_the_live_one(tmp_path: Path, broker: Broker) -> None:
    topic, visits = broker.topic(partitions=3), some_visits(5, 400, HOURS)
    send(broker.producer(), topic, visits)
    live = App(tmp_path / "live", broker, topic)
    told = live.run("live", "visits_live", "--once")
    assert told.count(": landed; built") == HOURS
    wanted = Counter((user, start, *rest) for (user, start), rest in sessions_of(visits).items())
    assert live.sessions() == wanted

    # Two hours in the middle: their sessions are open at both edges.
    asked = ("--from", format_hour(REPLAYED[0]), "--to", format_hour(REPLAYED[-1] + HOUR))
    (port,) = free_ports(1)
    paced = ("--messages-per-second", "50", "--metrics-port", str(port))
    with scraping(port, "again") as found:
        live.run("replay", "visits_live", *asked, "--name", "again", *paced)
    assert 0 < found.result()["messages_acknowledged"] < found.result()["messages_selected"]
    assert live.run("drain", "visits_live", "--name", "count")
    backfill = App(tmp_path / "backfill", broker, topic, BACKFILL_SOURCE="backfill")
    backfill.run("live", "visits_live", "--once")
    read_ends = [one for one in of_hours(wanted, REPLAYED) if one[2] >= REPLAYED[-1] + HOUR]
    assert read_ends, "no session is open at the end of what was replayed"
    assert of_hours(backfill.sessions(), REPLAYED) == of_hours(wanted, REPLAYED)
    assert backfill.sessions() != wanted, "it has read the live topic"
