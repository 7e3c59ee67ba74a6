"""A consumer for one repair: it handles the messages that a topic has when it starts, and then ends.

It is a static member of a consumer group with its name, so a second one with the same name takes over and the first one stops.
Where the handler sends messages onward, they and the offsets are committed in one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tenacity import Retrying, retry_if_exception, retry_if_result, stop_after_delay, wait_fixed, wait_random_exponential

from backfill_platform.adapters.kafka.batches import milliseconds_of, next_count
from backfill_platform.adapters.kafka.cluster import PROMPT, TIMEOUT_SECONDS, Cluster, Log, kafka_errors, may_pass, translated
from backfill_platform.errors import KafkaUnavailable, TakenOver

_BATCH = 5_000
_SESSION_MS = 10_000
# The only error that is fatal to a consumer is that of a static member that was replaced.
_FENCED = {
    KafkaError._FATAL,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.UNKNOWN_MEMBER_ID,
}


def _passes(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and may_pass(error.args[0])


# The coordinator of the group or of its transactions may have just died: another broker takes over within seconds.
_patiently = Retrying(
    retry=retry_if_exception(_passes),
    stop=stop_after_delay(TIMEOUT_SECONDS),
    wait=wait_random_exponential(multiplier=0.1, max=2),
    reraise=True,
)


@dataclass(frozen=True)
class Message:
    """A message of a topic. `time` is its timestamp, UTC; 1970 for a message without one."""

    topic: str
    partition: int
    offset: int
    time: datetime
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Outgoing:
    """A message that a handler sends onward."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


Handler = Callable[[Sequence[Message]], Iterable[Outgoing]]
Keep = Callable[[Sequence[Message]], None]


@dataclass(frozen=True)
class Drained:
    """How many messages this drain alone has handled and sent onward."""

    handled: int
    sent: int


def consume_to_end(
    cluster: Cluster,
    topic: str,
    name: str,
    handler: Handler,
    keep: Keep,
    *,
    tell: Callable[[int, int], None],
    silence_seconds: float = 60.0,
) -> Drained:
    """Handle the messages that `topic` has now and that no drain of this name has committed, then end.

    `keep` is called for every batch after the handler and before the offsets are committed; after a crash it may get a batch
    a second time and must tolerate that. `tell` is called with the number of messages that are done, and of all.
    Raises TakenOver when another drain of the name has started, KafkaUnavailable when the brokers do not answer for
    `silence_seconds`.
    """
    logs = cluster.logs(topic)
    handled = sent = 0
    while True:
        consumer = Consumer(
            {
                **PROMPT,
                **cluster.config,
                "group.id": _group(name),
                "group.instance.id": name,
                "session.timeout.ms": str(_SESSION_MS),
                "heartbeat.interval.ms": "1000",
                "max.poll.interval.ms": "600000",
                "enable.auto.commit": "false",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": "true",
            }
        )
        producer = _Onward(cluster, consumer, name)
        work = _Drain(consumer, producer, topic, logs, handler, keep, tell)
        try:
            consumer.subscribe([topic])
            work.run(silence_seconds)
            return Drained(handled + work.handled, sent + work.sent)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() not in _FENCED:
                raise translated(reason, f"draining {topic}") from error
            if _is_alive(cluster, name):
                raise TakenOver(f"another drain named {name} has started and goes on where this one ended") from error
            handled, sent = handled + work.handled, sent + work.sent
        finally:
            producer.close()
            with suppress(RuntimeError):
                consumer.close()


def _is_alive(cluster: Cluster, name: str) -> bool:
    """Whether another live process is a member with our name.

    A coordinator that dies while we join may leave a membership behind that excludes us as well. It gets no heartbeat, so it
    ends with the session time-out. The same holds for a drain that took over and has ended: it leaves nothing to do.
    """
    wait = Retrying(
        retry=retry_if_result(bool),
        stop=stop_after_delay(1.5 * _SESSION_MS / 1000),
        wait=wait_fixed(0.5),
        retry_error_callback=lambda state: True,
    )
    return wait(cluster.has_member, _group(name), name)


def _group(name: str) -> str:
    return f"backfill-drain-{name}"


class _Onward:
    """Commits offsets: in one transaction with the messages that were sent, or by the consumer where none were."""

    def __init__(self, cluster: Cluster, consumer: Consumer, name: str) -> None:
        self._cluster, self._consumer, self._name = cluster, consumer, name
        self._producer: Producer | None = None
        self._open = False

    def send(self, messages: Iterable[Outgoing]) -> int:
        count = 0
        for message in messages:
            producer = self._begun()
            while True:
                try:
                    producer.produce(message.topic, message.value, message.key, headers=list(message.headers))
                    break
                except BufferError:
                    producer.poll(0.1)
            count += 1
        return count

    def _begun(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    "linger.ms": "10",
                    "compression.type": "lz4",
                    "log_level": "2",
                    **self._cluster.config,
                    "transactional.id": f"backfill-drain-{self._name}",
                }
            )
            _patiently(self._producer.init_transactions, TIMEOUT_SECONDS)
        if not self._open:
            self._producer.begin_transaction()
            self._open = True
        return self._producer

    def commit(self, offsets: list[TopicPartition]) -> None:
        if self._open and self._producer is not None:
            group = self._consumer.consumer_group_metadata()
            _patiently(self._producer.send_offsets_to_transaction, offsets, group, TIMEOUT_SECONDS)
            _patiently(self._producer.commit_transaction, TIMEOUT_SECONDS)
            self._open = False
        else:
            _patiently(self._consumer.commit, offsets=offsets, asynchronous=False)

    def close(self) -> None:
        if self._open and self._producer is not None:
            with suppress(KafkaException):
                self._producer.abort_transaction(5)


class _Drain:
    def __init__(
        self,
        consumer: Consumer,
        producer: _Onward,
        topic: str,
        logs: Mapping[int, Log],
        handler: Handler,
        keep: Keep,
        tell: Callable[[int, int], None],
    ) -> None:
        self._consumer, self._producer, self._topic = consumer, producer, topic
        self._handler, self._keep, self._tell = handler, keep, tell
        self._starts = {partition: log.start for partition, log in logs.items()}
        self._ends = {partition: log.stable for partition, log in logs.items()}
        self._reached = dict.fromkeys(logs, -1)
        self.handled = self.sent = 0

    def run(self, silence_seconds: float) -> None:
        last_answer = time.monotonic()
        count = next_count((), _BATCH)
        committed_known = False
        while True:
            if not committed_known and self._consumer.assignment():
                self._learn_committed()
                committed_known = True
            if committed_known and all(self._reached[partition] >= end for partition, end in self._ends.items()):
                return
            polled = self._consumer.consume(count, 0.5)
            count = next_count(polled, _BATCH)
            if polled:
                last_answer = time.monotonic()
                self._handle(polled)
            elif time.monotonic() - last_answer > silence_seconds:
                raise KafkaUnavailable(
                    f"draining {self._topic}: no answer for {silence_seconds:.0f} s; start it again, it continues from here"
                )

    def _learn_committed(self) -> None:
        """Read where earlier drains of the name ended, and which partitions have nothing to read."""
        places = [TopicPartition(self._topic, partition) for partition in self._ends]
        with kafka_errors(f"asking how far {self._topic} is drained"):
            for place in self._consumer.committed(places, timeout=TIMEOUT_SECONDS):
                self._reached[place.partition] = max(
                    self._reached[place.partition], place.offset, self._starts[place.partition]
                )

    def _handle(self, polled: Sequence[Any]) -> None:
        messages, reached = [], {}
        for message_or_event in polled:
            error = message_or_event.error()
            if error is None:
                partition, offset = message_or_event.partition(), message_or_event.offset()
                if offset < self._ends.get(partition, 0):
                    messages.append(_message(message_or_event))
                    reached[partition] = offset + 1
                else:
                    reached[partition] = self._ends.get(partition, 0)
            elif error.code() == KafkaError._PARTITION_EOF:
                # Markers of transactions may lie between the last message and the end.
                reached[message_or_event.partition()] = max(
                    reached.get(message_or_event.partition(), 0), message_or_event.offset()
                )
            elif error.fatal() or error.code() in _FENCED or not (error.retriable() or error.code() < 0):
                raise KafkaException(error)
        sent = 0
        if messages:
            sent = self._producer.send(self._handler(messages))
            self._keep(messages)
        for partition, offset in reached.items():
            self._reached[partition] = max(self._reached.get(partition, -1), offset)
        if messages:
            self._producer.commit([TopicPartition(self._topic, partition, offset) for partition, offset in reached.items()])
            self.sent, self.handled = self.sent + sent, self.handled + len(messages)
            done = sum(min(at, self._ends[p]) - self._starts[p] for p, at in self._reached.items() if at > self._starts[p])
            self._tell(done, sum(end - self._starts[p] for p, end in self._ends.items()))


def _message(message: Any) -> Message:
    return Message(
        message.topic(),
        message.partition(),
        message.offset(),
        datetime.fromtimestamp((milliseconds_of(message) or 0) / 1000, UTC),
        message.key(),
        message.value(),
        dict(message.headers() or ()),
    )
