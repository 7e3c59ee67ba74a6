"""State topics: compacted by key, so that a consumer that reads one from its start gets the newest state of each key."""

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
    """The state of a key, as a value for JSON."""

    key: str
    value: dict[str, Any]


def send_states(cluster: Cluster, topic: str, states: Sequence[State]) -> None:
    """Send the states, and wait until the brokers have all of them; a missing topic is created.

    Raises KafkaUnavailable or PreconditionError.
    """
    if topic not in cluster.topics():
        cluster.create_topic(topic, _PARTITIONS, {"cleanup.policy": "compact"})
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer({"linger.ms": "10", "log_level": "2", **cluster.config, "enable.idempotence": "true"})
    for state in states:
        while True:
            try:
                producer.produce(topic, json.dumps(state.value).encode(), state.key.encode(), on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.1)
    unacknowledged = producer.flush(TIMEOUT_SECONDS)
    if errors:
        raise translated(errors[0], f"sending states to {topic}")
    if unacknowledged:
        raise KafkaUnavailable(f"{unacknowledged} states of {topic} were not acknowledged in time; hand over again")
