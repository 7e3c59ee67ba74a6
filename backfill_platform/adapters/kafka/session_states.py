"""State topics: compacted by key, so that whoever reads one from its start has the newest state of each key."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, Producer

from backfill_platform.adapters.kafka.cluster import TIMEOUT_SECONDS, Cluster, translated
from backfill_platform.errors import KafkaUnavailable

_PARTITIONS = 4


@dataclass(frozen=True)
class State:
    """What is known of a key, as a value for JSON."""

    key: str
    value: dict[str, Any]


def send_states(cluster: Cluster, topic: str, states: Sequence[State]) -> None:
    """Send the states, and return when the brokers have all of them; the topic is made where it is missing.

    Raises KafkaUnavailable or PreconditionError.
    """
    if topic not in cluster.topics():
        cluster.create_topic(topic, _PARTITIONS, {"cleanup.policy": "compact"})
    errors: list[KafkaError] = []

    def told(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"linger.ms": "10", "log_level": "2", **cluster.config, "enable.idempotence": "true"})
    for state in states:
        while True:
            try:
                producer.produce(topic, json.dumps(state.value).encode(), state.key.encode(), on_delivery=told)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(TIMEOUT_SECONDS)
    if errors:
        raise translated(errors[0], f"sending states to {topic}")
    if left:
        raise KafkaUnavailable(f"{left} states of {topic} were not acknowledged in time; hand over again")
