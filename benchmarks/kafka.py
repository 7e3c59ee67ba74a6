"""Landing a topic and replaying it, beside bare loops of the same client: `python -m benchmarks.kafka [--messages N]`.

One broker (Apache Kafka's own, as in the tests) shares the machine with everything. Messages have 300 bytes. Turn by turn in
one run: a bare consumer loop that takes key, value, offset and timestamp of every message, and landing to the lake; a bare
producer loop, idempotent and with acknowledgements of all, and a replay from the lake. Nothing is reported before the counts
of the topic, the lake and the replay agree.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.replay_selection import Selection
from backfill_platform.adapters.spark.session import session_options, use_this_interpreter
from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import Landing
from backfill_platform.domain.uris import local_uri
from backfill_platform.topics.replay import Replay, ReplayEngines, replay_hours
from backfill_platform_tests.fixtures_kafka import Broker, free_ports
from backfill_platform_tests.pipelines.messages import T0, pipeline_over
from benchmarks.repairs import repair, services

RESULTS = Path(__file__).parent / "results-kafka.md"
PARTITIONS = 4
BYTES = 300
TURNS = 3
SAME = "bare producer of the same messages, with their headers"
BUSY = "bare consumer with the setting of ours, `fetch.queue.backoff.ms=5`"
TARGETS = {"land": (100_000, 0.7), "replay": (60_000, 0.7)}


def payloads(count: int) -> list[bytes]:
    """JSON events of 300 bytes over two hours."""
    found = []
    for number in range(count):
        moment = T0 + timedelta(seconds=7200 * number / count)
        text = json.dumps({"at": moment.isoformat(), "user": f"user-{number % 5000}", "number": number, "pad": ""})
        found.append(text.replace('"pad": ""', f'"pad": "{"x" * (BYTES - len(text))}"').encode())
    return found


def bare_produce(broker: Broker, topic: str, values: list[bytes], *, headers: bool = False) -> float:
    """Messages per second of a producer loop with the settings of a replay; with the headers of a replay if asked for."""
    producer = Producer(
        {
            **broker.config,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 200_000,
            "enable.idempotence": True,
            "acks": "all",
        }
    )
    start = int(T0.timestamp() * 1000)
    began = time.perf_counter()
    for number, value in enumerate(values):
        stamp = start + 7_200_000 * number // len(values)
        more: list[tuple[str, bytes]] = []
        if headers:
            more = [
                ("backfill-repair", b"replay-1"),
                ("backfill-hour", b"2026-03-01T10"),
                ("backfill-position", b"%d" % number),
                ("backfill-origin", b"%s/%d/%d" % (topic.encode(), number % PARTITIONS, number // PARTITIONS)),
            ]
        while True:
            try:
                producer.produce(topic, value, b"user-%d" % (number % 5000), number % PARTITIONS, timestamp=stamp, headers=more)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    return len(values) / (time.perf_counter() - began)


def bare_consume(broker: Broker, topic: str, count: int, **more: str) -> float:
    """Messages per second of a consumer loop that looks at every message; `more` are settings, with `_` for `.`."""
    settings = {name.replace("_", "."): value for name, value in more.items()}
    consumer = Consumer(
        {**broker.config, "group.id": "bare", "enable.auto.commit": False, "isolation.level": "read_committed", **settings}
    )
    began = time.perf_counter()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    seen = 0
    while seen < count:
        for message in consumer.consume(10_000, 1.0):
            _ = (message.value(), message.key(), message.offset(), message.timestamp())
            seen += 1
    taken = time.perf_counter() - began
    consumer.close()
    return count / taken


class Bench:
    def __init__(self, folder: Path, spark: SparkSession, warehouse: Warehouse, broker: Broker, count: int) -> None:
        self.folder, self.spark, self.warehouse, self.broker, self.count = folder, spark, warehouse, broker, count
        self.cluster = Cluster(broker.config)
        self.topic = broker.topic(partitions=PARTITIONS)
        self.pipeline = replace(pipeline_over(self.topic, 2), name="bench")
        (folder / "lake").mkdir()
        self.lake = Lake(f"sqlite:///{folder}/lake/catalog.db", local_uri(folder / "lake"))

    def land(self, turn: int) -> float:
        raw = self.pipeline.raw.table
        hours = HourRange(T0, T0 + 2 * HOUR)
        engines = services(self.lake, self.spark, self.warehouse, lambda: self.cluster)
        began = time.perf_counter()
        list(repair(self.pipeline, engines, hours, [raw.path], f"land-{turn}", Landing.REPLACE))
        taken = time.perf_counter() - began
        assert sum(self.lake.rows_by_hour(raw).values()) == self.count
        return self.count / taken

    def replay(self, turn: int) -> tuple[float, float]:
        """Messages per second of sending, and of selecting and sending."""
        name = f"replay-{turn}"
        sent: list[float] = []
        asked = Replay(name, (self.pipeline,), HourRange(T0, T0 + 2 * HOUR), topics={"bench": f"bench.{turn}"})
        began = time.perf_counter()
        counts = replay_hours(
            asked,
            ReplayEngines(lambda: self.spark, self.lake, self.cluster, Ledger(self.warehouse), lambda: datetime.now(UTC)),
            every=(self.pipeline,),
            say=lambda text: sent.append(time.perf_counter()),
            tell=lambda progress: None,
        )
        ended = time.perf_counter()
        assert sum(one.acknowledged for one in counts) == self.count
        assert sum(log.end for log in self.cluster.logs(f"bench.{turn}").values()) == self.count
        Selection(self.lake.root_uri, name, "bench").discard_rows()
        return self.count / (ended - sent[-1]), self.count / (ended - began)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--messages", type=int, default=1_000_000, help="how many; results are kept for a million or more")
    count = arguments.parse_args().messages
    use_this_interpreter()
    builder = SparkSession.builder
    for key, value in session_options(master="local[2]", remote=None, driver_memory="2g").items():
        builder = builder.config(key, value)
    folder = Path(tempfile.mkdtemp(prefix="bench-kafka-"))
    broker = Broker(folder, *free_ports(2))
    figures: dict[str, list[float]] = {}
    try:
        broker.prepare()
        broker.start()
        spark = builder.getOrCreate()
        with embedded.start(folder / "warehouse") as server, closing(Warehouse(server.url)) as warehouse:
            bench = Bench(folder, spark, warehouse, broker, count)
            values = payloads(count)
            bare_produce(broker, bench.topic, values)
            bench.land(0)  # warms Spark and its workers
            for turn in range(1, TURNS + 1):
                once = {
                    "bare consumer": bare_consume(broker, bench.topic, count),
                    BUSY: bare_consume(broker, bench.topic, count, fetch_queue_backoff_ms="5"),
                    "land": bench.land(turn),
                    "bare producer": bare_produce(broker, broker.topic(partitions=PARTITIONS), values),
                    SAME: bare_produce(broker, broker.topic(partitions=PARTITIONS), values, headers=True),
                }
                once["replay"], once["replay with selecting"] = bench.replay(turn)
                for name, rate in once.items():
                    figures.setdefault(name, []).append(rate)
                sys.stderr.write(f"{ {name: round(rate) for name, rate in once.items()} }\n")
        spark.stop()
    finally:
        broker.stop()
        shutil.rmtree(folder, ignore_errors=True)
    text = report(figures, count)
    sys.stdout.write(text)
    if count >= 1_000_000:
        RESULTS.write_text(text)


def report(figures: dict[str, list[float]], count: int) -> str:
    """The results as Markdown."""
    lines = [
        "# Kafka: land and replay",
        "",
        f"{count:,} messages of {BYTES} bytes, {PARTITIONS} partitions, one broker on the same {os.cpu_count()} cores; medians "
        f"of {TURNS} turns (least to most). `python -m benchmarks.kafka`, {datetime.now(UTC):%Y-%m-%d}, {platform.system()}, "
        f"confluent-kafka {version('confluent-kafka')}, pyspark {version('pyspark')}.",
        "",
        "| | messages/s | beside the bare loop |",
        "|---|---|---|",
    ]
    bare = {"land": "bare consumer", "replay": SAME, "replay with selecting": SAME}
    for name, rates in figures.items():
        middle = statistics.median(rates)
        ratio = ""
        if name in bare:
            ratios = [ours / theirs for ours, theirs in zip(rates, figures[bare[name]], strict=True)]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            if name == "land":
                busy = statistics.median(ours / theirs for ours, theirs in zip(rates, figures[BUSY], strict=True))
                ratio += f"; {busy:.2f} beside the one with our setting"
        lines.append(f"| {name} | {middle:,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) | {ratio} |")
    lines += [""]
    lines += [f"Target of {name}: {rate:,} messages/s and {ratio} of the bare loop." for name, (rate, ratio) in TARGETS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
