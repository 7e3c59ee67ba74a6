"""Real Apache Kafka brokers (KRaft; one node, or three that copy each other) on free loopback ports, started for the tests.

Its libraries are fetched by scripts/need-kafka; without them the tests are skipped, loudly and with the reason.
"""

import socket
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform_tests.fixtures_warehouse import wait_until

ROOT = Path(__file__).parent.parent
LIBRARIES = ROOT / ".kafka" / "libs"
START_SECONDS = 120
_PROPERTIES = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{told}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={folder}/data
auto.create.topics.enable=false
num.partitions=2
offsets.topic.num.partitions=2
offsets.topic.replication.factor={copies}
default.replication.factor={copies}
min.insync.replicas={in_step}
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_step}
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
log.retention.check.interval.ms=500
log.cleaner.backoff.ms=200
log.initial.task.delay.ms=100
"""


@dataclass
class Broker:
    """One broker with its folder; it can be killed and started again on the same port and data.

    `voters` are all nodes of its cluster; without them it is alone. `told` is the port it advertises to clients, by default its
    own.
    """

    folder: Path
    port: int
    controller: int
    node: int = 1
    voters: tuple[str, ...] = ()
    told: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def voter(self) -> str:
        return f"{self.node}@127.0.0.1:{self.controller}"

    @property
    def config(self) -> dict[str, str]:
        return {"bootstrap.servers": self.address}

    def prepare(self) -> None:
        voters = self.voters or (self.voter,)
        text = _PROPERTIES.format(
            broker=self.port,
            told=self.told or self.port,
            controller=self.controller,
            folder=self.folder,
            node=self.node,
            voters=",".join(voters),
            copies=len(voters),
            in_step=len(voters) // 2 + 1,
        )
        (self.folder / "server.properties").write_text(text)
        identity = ("-t", "kQ3hN0b0S5mG5nX7G0yOqA")
        subprocess.run(
            self._java("kafka.tools.StorageTool", "format", *identity, "-c", str(self.folder / "server.properties")),
            check=True,
            capture_output=True,
        )

    def start(self) -> None:
        self.launch()
        wait_until(self.answers, START_SECONDS)

    def launch(self) -> None:
        """Start it without waiting until it answers."""
        log = (self.folder / "broker.log").open("ab")
        with closing(log):
            command = self._java("kafka.Kafka", str(self.folder / "server.properties"))
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
            self.kill()

    def _java(self, *arguments: str) -> Sequence[str]:
        options = ("-Xmx384m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        return ("java", *options, "-cp", f"{LIBRARIES}/*", *arguments)

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the broker has ended: {(self.folder / 'broker.log').read_text()[-2000:]}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return bool(_admin(self.address).list_topics(timeout=10).brokers)
        return False

    def topic(self, *, partitions: int = 2, name: str = "", **config: str) -> str:
        """A new topic; settings with `_` for `.`."""
        name = name or f"events-{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = _admin(self.address)  # a variable until the answer arrives: its requests end when it is collected
        admin.create_topics([NewTopic(name, partitions, -1, config=settings)])[name].result(30)
        return name

    def producer(self, **config: Any) -> Producer:
        return Producer({**self.config, "linger.ms": 5, "log_level": 2, **config})


def _admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": 0})


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@contextmanager
def running_broker(folder: Path, *, told: int = 0) -> Iterator[Broker]:
    """A broker of a new folder, for the block. Skips the test where there are no libraries."""
    _need_libraries()
    port, controller = free_ports(2)
    made = Broker(folder, port, controller, told=told)
    made.prepare()
    try:
        made.start()
        yield made
    finally:
        made.stop()


@contextmanager
def running_brokers(folder: Path, count: int) -> Iterator[tuple[Broker, ...]]:
    """A cluster of brokers that all have every partition, for the block. Skips the test where there are no libraries."""
    _need_libraries()
    ports = free_ports(2 * count)
    made = []
    for number in range(count):
        (folder / str(number)).mkdir()
        made.append(Broker(folder / str(number), ports[2 * number], ports[2 * number + 1], number + 1))
    voters = tuple(broker.voter for broker in made)
    try:
        for broker in made:
            broker.voters = voters
            broker.prepare()
            broker.launch()
        for broker in made:
            wait_until(broker.answers, START_SECONDS)
        yield tuple(made)
    finally:
        for broker in made:
            broker.stop()


def _need_libraries() -> None:
    if not LIBRARIES.is_dir():
        why = ROOT / ".kafka" / "why-not"
        pytest.skip(why.read_text().strip() if why.exists() else "no Kafka broker: run scripts/need-kafka")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that tests share; each makes topics of its own."""
    with running_broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def topics(broker: Broker) -> Iterator[Cluster]:
    """A client of the shared broker."""
    with closing(Cluster(broker.config)) as cluster:
        yield cluster
