"""A Kafka cluster through confluent-kafka: the offsets and settings of its topics, and its errors as ours."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType
from tenacity import Retrying, retry, retry_if_exception_type, stop_after_delay, wait_random_exponential

from backfill_platform.domain.notification import redact
from backfill_platform.errors import KafkaUnavailable, PreconditionError

Result = TypeVar("Result")

TIMEOUT_SECONDS = 30.0
# Settings of consumers that read much. By default, one with a full queue waits for a second: a fifth of the speed.
PROMPT: Mapping[str, str] = {"fetch.wait.max.ms": "50", "fetch.queue.backoff.ms": "5", "log_level": "2"}
# A topic that was just created, or whose leader moves, has no leader for a moment.
_PATIENCE_SECONDS = 15.0
_patiently = retry(
    retry=retry_if_exception_type(KafkaUnavailable),
    stop=stop_after_delay(_PATIENCE_SECONDS),
    wait=wait_random_exponential(multiplier=0.05, max=1),
    reraise=True,
)
_MILLISECOND = timedelta(milliseconds=1)
_TRY_AGAIN = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._WAIT_COORD,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
}


@dataclass(frozen=True)
class Log:
    """The offsets of a partition: `[start, end)`; an open transaction may hold back those from `stable` on."""

    start: int
    stable: int
    end: int


@contextmanager
def kafka_errors(doing: str) -> Iterator[None]:
    """Translate what confluent-kafka raises in the block to KafkaUnavailable or PreconditionError."""
    try:
        yield
    except KafkaException as error:
        raise translated(error.args[0], doing) from error


def may_pass(error: KafkaError) -> bool:
    """Whether the error may be over in a moment, for example because a leader or a coordinator moves."""
    return bool(error.retriable()) or error.code() in _TRY_AGAIN


def translated(error: KafkaError, doing: str) -> KafkaUnavailable | PreconditionError:
    """Our error for one of Kafka's: KafkaUnavailable, which is transient, where the error may be over in a moment."""
    # librdkafka quotes values that it cannot use, and names whatever it did not understand.
    text = redact(f"{doing}: Kafka answered {error.name()}: {error.str()}")
    if may_pass(error):
        return KafkaUnavailable(f"{text}; check the brokers and BACKFILL_KAFKA, then try again")
    return PreconditionError(text)


class Cluster:
    """A cluster and its schema registry, by the settings of librdkafka and of Confluent's registry client.

    Opens a connection at the first call; `close` closes it.
    """

    def __init__(self, config: Mapping[str, str], registry: Mapping[str, str] | None = None) -> None:
        """`config` are librdkafka's settings, `bootstrap.servers` among them; its values may be secrets and are never shown."""
        self.config = dict(config)
        self.registry = dict(registry or {})

    @cached_property
    def admin(self) -> AdminClient:
        """The admin client."""
        return AdminClient({**self.config, "log_level": 2})

    @cached_property
    def _consumer(self) -> Consumer:
        return Consumer({**self.config, "group.id": "backfill-looks", "enable.auto.commit": False, "log_level": 2})

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        consumer = self.__dict__.pop("_consumer", None)
        if consumer is not None:
            consumer.close()

    @_patiently
    def topics(self) -> set[str]:
        """The names of all topics."""
        with kafka_errors("listing topics"):
            return set(self.admin.list_topics(timeout=TIMEOUT_SECONDS).topics)

    @_patiently
    def partitions(self, topic: str) -> tuple[int, ...]:
        """The partitions of a topic. Raises PreconditionError when there is no such topic."""
        with kafka_errors(f"looking for topic {topic}"):
            metadata = self.admin.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic]
        if metadata.error is not None:
            if metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise PreconditionError(f"the cluster has no topic {topic}")
            raise translated(metadata.error, f"looking for topic {topic}")
        return tuple(sorted(metadata.partitions))

    @_patiently
    def logs(self, topic: str) -> dict[int, Log]:
        """The offsets of each partition of a topic at this moment."""
        places = [TopicPartition(topic, partition) for partition in self.partitions(topic)]
        earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()
        # The start last, so that messages deleted between the answers are noticed.
        stable = self._offsets(places, latest, IsolationLevel.READ_COMMITTED)
        end = self._offsets(places, latest, IsolationLevel.READ_UNCOMMITTED)
        start = self._offsets(places, earliest, IsolationLevel.READ_UNCOMMITTED)
        return {partition: Log(start[partition], stable[partition], end[partition]) for partition in start}

    def _offsets(self, places: Collection[TopicPartition], spec: OffsetSpec, level: IsolationLevel) -> dict[int, int]:
        answers = self.admin.list_offsets(dict.fromkeys(places, spec), isolation_level=level, request_timeout=TIMEOUT_SECONDS)
        doing = "asking for the offsets of topics"
        return {place.partition: self._result(answer, doing).offset for place, answer in answers.items()}

    @_patiently
    def first_since(self, topic: str, moments: Collection[datetime]) -> dict[datetime, dict[int, int | None]]:
        """For each moment and partition, the first offset with a timestamp at or after it; None where there is none."""
        offsets = {}
        partitions = self.partitions(topic)
        for moment in sorted(moments):
            places = [TopicPartition(topic, partition, milliseconds(moment)) for partition in partitions]
            with kafka_errors(f"asking for the offsets of {topic} by time"):
                answers = self._consumer.offsets_for_times(places, timeout=TIMEOUT_SECONDS)
            for answer in answers:
                if answer.error is not None:
                    raise translated(answer.error, f"asking for the offsets of {topic} by time")
            offsets[moment] = {answer.partition: answer.offset if answer.offset >= 0 else None for answer in answers}
        return offsets

    @_patiently
    def topic_config(self, topic: str) -> dict[str, str]:
        """The settings of a topic."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answer = self._result(self.admin.describe_configs([resource])[resource], f"reading the settings of {topic}")
        return {name: entry.value for name, entry in answer.items()}

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str], *, replication: int = -1) -> bool:
        """Create a topic, and wait until the brokers report it. Returns False when it existed already.

        A replication of -1 is the cluster's default.
        """
        new = NewTopic(topic, partitions, replication, config=dict(config))
        try:
            self._result(self.admin.create_topics([new])[topic], f"creating topic {topic}")
        except PreconditionError:
            if topic in self.topics():
                return False
            raise
        wait_until_visible = Retrying(
            retry=retry_if_exception_type((KafkaUnavailable, PreconditionError)),
            stop=stop_after_delay(_PATIENCE_SECONDS),
            wait=wait_random_exponential(multiplier=0.05, max=1),
            reraise=True,
        )
        wait_until_visible(self.logs, topic)
        return True

    @_patiently
    def lag(self, topic: str, group: str) -> int:
        """How many messages of the topic a consumer group has not committed yet, over all partitions.

        A partition without a commit counts from the start of its log.
        """
        logs = self.logs(topic)
        request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition) for partition in logs])
        answers: Any = self._result(self.admin.list_consumer_group_offsets([request])[group], f"asking for the lag of {group}")
        committed = {place.partition: place.offset for place in answers.topic_partitions if place.offset >= 0}
        return sum(max(log.end - max(committed.get(partition, 0), log.start), 0) for partition, log in logs.items())

    @_patiently
    def has_member(self, group: str, instance: str) -> bool:
        """Whether a consumer group has a static member of this name."""
        description: Any = self._result(self.admin.describe_consumer_groups([group])[group], f"looking at the group {group}")
        return any(member.group_instance_id == instance for member in description.members)

    def _result(self, answer: Future[Result], doing: str) -> Result:
        with kafka_errors(doing):
            return answer.result(TIMEOUT_SECONDS)


def milliseconds(moment: datetime) -> int:
    """Kafka's timestamp of an aware moment: milliseconds since 1970."""
    return (moment - datetime.fromtimestamp(0, moment.tzinfo)) // _MILLISECOND


def no_cluster() -> Cluster:
    """Stands for the cluster of pipelines without topics. Raises PreconditionError."""
    raise PreconditionError('no Kafka cluster is named: set BACKFILL_KAFKA, such as \'{"bootstrap.servers": "broker:9092"}\'')


OpenCluster = Callable[[], Cluster]
