"""Sending the selected messages to backfill topics: in the order of event time, all topics together, and paced.

Every message carries its position in the selection. The topic itself is the record of progress: after a crash, the next
attempt reads how far each partition got and sends the rest, so a restart sends nothing twice.

A client may still send a message twice when a broker dies before it answers: brokers forget a sender by the time of its
messages (Kafka's ProducerStateManager, `producer.id.expiration.ms`, a day), and those of a replay are old. They only remember a
sender for longer while its transaction is open.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from backfill_platform.adapters.kafka.cluster import TIMEOUT_SECONDS, Cluster, kafka_errors, translated
from backfill_platform.adapters.kafka.replay_selection import Manifest, Selection
from backfill_platform.adapters.kafka.rows import headers_of
from backfill_platform.domain.pacing import Budget, Limits, watermark
from backfill_platform.errors import KafkaUnavailable

REPLAY_HEADER = "backfill-repair"
POSITION_HEADER = "backfill-position"
ORIGIN_HEADER = "backfill-origin"
MARGIN_HEADER = "backfill-margin"
HOUR_HEADER = "backfill-hour"
_PORTION = 1_000
_LOOK_SECONDS = 1.0
_COMMIT_SECONDS = 1.0
_TAIL = 2_000


@dataclass(frozen=True)
class Progress:
    """The progress of a replay: messages acknowledged, of all; `watermark` is the event time (µs) that all sources reached.

    `before` of the acknowledged messages were sent by earlier attempts. `seconds` is how long this attempt runs.
    """

    acknowledged: int
    total: int
    bytes: int
    watermark: int | None
    seconds: float
    paused: str = ""
    before: int = 0

    @property
    def per_second(self) -> float:
        """Messages acknowledged per second since the start of the attempt."""
        return (self.acknowledged - self.before) / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the end at the pace so far; None before there is one."""
        return (self.total - self.acknowledged) / self.per_second if self.per_second else None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {timedelta(seconds=round(self.seconds_left))} left"
        pause = f"; paused: {self.paused}" if self.paused else ""
        return f"{self.acknowledged:,} of {self.total:,} messages, {self.per_second:,.0f} per second{left}{pause}"


@dataclass(frozen=True)
class Options:
    """How to send.

    `max_misalignment` is the most event time (µs) by which a message may be ahead of one that is not acknowledged yet, in any
    topic or partition: it also bounds the disorder that consumers see.

    With `lag_group`, sending pauses while that consumer group is more than `max_lag` messages behind on a topic.
    """

    max_misalignment: int = 300_000_000
    limits: Limits = field(default_factory=Limits)
    lag_group: str = ""
    max_lag: int = 100_000
    transactional: bool = False


@dataclass
class _Portion:
    """Messages of one hour that were sent together, and how many of them are not acknowledged yet."""

    lane: Lane
    first: int
    hour: str
    size: int = 0
    left: int = 0

    def acknowledged(self, error: KafkaError | None, message: Any) -> None:
        # Called for every message, so it must stay this short.
        if error is not None:
            self.lane.errors.append(error)
        else:
            self.left -= 1


@dataclass
class Lane:
    """One pipeline's messages that are sent to its topic; `done` has the last position already sent in each partition."""

    selection: Selection
    manifest: Manifest
    done: Mapping[int, int]
    errors: list[KafkaError] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    sent: deque[_Portion] = field(default_factory=deque)
    _whole: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._batches = self.selection.batches(self.manifest)
        self._columns: dict[str, list[Any]] = {}
        self._start, self._at, self._size = 0, 0, 0
        self._fill()

    def _fill(self) -> None:
        """Go to the next message that is to be sent."""
        while True:
            while self._at < self._size:
                if self._start + self._at > self.done.get(self._columns["partition"][self._at], -1):
                    return
                self.skipped[self._columns["hour"][self._at]] += 1
                self._at += 1
            batch = next(self._batches, None)
            if batch is None:
                self._size = self._at = 0
                return
            self._start, self._columns = batch
            self._at, self._size = 0, len(self._columns["moment"])

    @property
    def next_moment(self) -> int | None:
        """The event time of the next message to send, None at the end."""
        return self._columns["moment"][self._at] if self._at < self._size else None

    @property
    def oldest(self) -> int | None:
        """The smallest event time that is not acknowledged yet, None when all is."""
        while self.sent and not self.sent[0].left:
            portion = self.sent.popleft()
            self._whole[portion.hour] += portion.size
        return self.sent[0].first if self.sent else self.next_moment

    def acknowledged(self) -> Counter[str]:
        """How many messages of each hour the brokers have acknowledged to this attempt."""
        counts = Counter(self._whole)
        for portion in self.sent:
            counts[portion.hour] += portion.size - portion.left
        return counts

    def send(self, producer: Producer, most: int, available_until: int) -> tuple[int, int]:
        """Send at most `most` messages of one hour, up to an event time (µs); returns their number and their bytes."""
        columns, begin = self._columns, self._at
        moments, hours = columns["moment"], columns["hour"]
        hour = hours[begin]
        end, last = begin, min(self._size, begin + most)
        while end < last and moments[end] <= available_until and hours[end] == hour:
            end += 1
        portion = _Portion(self, moments[begin], hour)
        self.sent.append(portion)
        sent_bytes, on_delivery, done = 0, portion.acknowledged, self.done
        topic, produce = self.manifest.topic, producer.produce
        same = [(REPLAY_HEADER, self.manifest.replay.encode()), (HOUR_HEADER, hour.encode())]
        names = ("partition", "key", "value", "stamp", "headers", "origin", "margin")
        rows = zip(*(columns[name][begin:end] for name in names), strict=True)
        for position, (partition, key, value, stamp, text, origin, margin) in enumerate(rows, self._start + begin):
            if done and position <= done.get(partition, -1):
                self.skipped[hour] += 1
                continue
            headers = [*same, (POSITION_HEADER, b"%d" % position)]
            if text:
                headers = headers_of(text) + headers
            if origin:
                headers.append((ORIGIN_HEADER, origin))
            if margin:
                headers.append((MARGIN_HEADER, b"1"))
            portion.size += 1
            portion.left += 1
            sent_bytes += len(value or b"") + len(key or b"")
            while True:
                try:
                    produce(topic, value, key, partition, on_delivery=on_delivery, timestamp=stamp, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.05)
                    if self.errors:
                        break
        self._at = end
        self._fill()
        return portion.size, sent_bytes


def send(
    cluster: Cluster,
    lanes: Sequence[Lane],
    options: Options,
    *,
    tell: Callable[[Progress], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Send all lanes to their end; the lanes count what was acknowledged.

    Raises KafkaUnavailable or PreconditionError when a message cannot be delivered; acknowledged messages stay, and sending
    again continues after them.
    """
    producer = Producer(
        {
            "linger.ms": "20",
            "batch.size": "1000000",
            "compression.type": "lz4",
            "queue.buffering.max.messages": "200000",
            "queue.buffering.max.kbytes": "262144",
            "log_level": "2",
            **cluster.config,
            "enable.idempotence": "true",
            "acks": "all",
            **({"transactional.id": f"backfill-{lanes[0].manifest.replay}"} if options.transactional else {}),
        }
    )
    _Sending(cluster, producer, lanes, options, tell, clock).run()


class _Sending:
    def __init__(
        self,
        cluster: Cluster,
        producer: Producer,
        lanes: Sequence[Lane],
        options: Options,
        tell: Callable[[Progress], None],
        clock: Callable[[], float],
    ) -> None:
        self._cluster, self._producer, self._lanes, self._options = cluster, producer, lanes, options
        self._tell, self._clock = tell, clock
        self._began = self._looked = self._committed = clock()
        self._limits = options.limits
        self._messages, self._bytes = Budget(self._limits.messages, self._began), Budget(self._limits.bytes, self._began)
        self._paused, self._sent_bytes, self._lagging = "", 0, False
        self._total = sum(lane.manifest.rows for lane in lanes)

    def run(self) -> None:
        with _transactions(self._producer, self._options.transactional):
            while (reached := watermark(lane.oldest for lane in self._lanes)) is not None:
                self._check_errors()
                self._look(reached)
                if not self._send_some(reached):
                    self._commit()
                    self._producer.poll(0.01)
        self._check_errors()
        self._tell(self._progress(None))

    def _send_some(self, reached: int) -> bool:
        """Send a portion of the lane that is furthest behind; False when nothing can be sent now."""
        ready = [(moment, n) for n, lane in enumerate(self._lanes) if (moment := lane.next_moment) is not None]
        available_until = reached + self._options.max_misalignment
        if not ready or min(ready)[0] > available_until or self._paused:
            return False
        now = self._clock()
        if (wait := max(self._messages.wait(now), self._bytes.wait(now))) > 0:
            self._producer.poll(min(wait, 0.05))
            return True
        lane = self._lanes[min(ready)[1]]
        most = _PORTION if self._messages.rate is None else max(1, min(_PORTION, int(self._messages.rate / 20)))
        count, size = lane.send(self._producer, most, available_until)
        self._messages.spend(count)
        self._bytes.spend(size)
        self._sent_bytes += size
        self._producer.poll(0)
        if self._options.transactional and self._clock() - self._committed > _COMMIT_SECONDS:
            self._commit()
        return True

    def _look(self, reached: int) -> None:
        """Once a second: report the progress, read the limits, check the lag of consumers."""
        now = self._clock()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        self._limits = self._lanes[0].selection.limits() or self._options.limits
        self._messages.change(self._limits.messages, now)
        self._bytes.change(self._limits.bytes, now)
        self._paused = "on request" if self._limits.paused else self._lag()
        self._tell(self._progress(reached))

    def _lag(self) -> str:
        group = self._options.lag_group
        if not group:
            return ""
        lag = max(self._cluster.lag(lane.manifest.topic, group) for lane in self._lanes)
        # Wait until half of it is consumed, so that sending does not start and stop with every message.
        self._lagging = lag > (self._options.max_lag // 2 if self._lagging else self._options.max_lag)
        return f"{group} is {lag:,} messages behind" if self._lagging else ""

    def _progress(self, reached: int | None) -> Progress:
        before = sum(lane.skipped.total() for lane in self._lanes)
        done = sum(lane.acknowledged().total() for lane in self._lanes) + before
        return Progress(done, self._total, self._sent_bytes, reached, self._clock() - self._began, self._paused, before)

    def _check_errors(self) -> None:
        for lane in self._lanes:
            if lane.errors:
                raise translated(lane.errors[0], f"sending to {lane.manifest.topic}")

    def _commit(self) -> None:
        if self._options.transactional and self._clock() - self._committed > _COMMIT_SECONDS / 4:
            with kafka_errors("committing"):
                self._producer.commit_transaction(TIMEOUT_SECONDS)
                self._producer.begin_transaction()
            self._committed = self._clock()


@contextmanager
def _transactions(producer: Producer, on: bool) -> Iterator[None]:
    """Commit the last transaction at the end of the block; without transactions, flush all messages."""
    if not on:
        yield
        if producer.flush(TIMEOUT_SECONDS):
            raise KafkaUnavailable(
                "not all messages were acknowledged in time; send again, it continues where this attempt ended"
            )
        return
    with kafka_errors("beginning a transaction"):
        producer.init_transactions(TIMEOUT_SECONDS)
        producer.begin_transaction()
    try:
        yield
    except BaseException:
        with suppress(KafkaException):  # the next attempt aborts it, too
            producer.abort_transaction(TIMEOUT_SECONDS)
        raise
    with kafka_errors("committing the last transaction"):
        producer.commit_transaction(TIMEOUT_SECONDS)


def positions(cluster: Cluster, manifest: Manifest, *, fenced: bool = False) -> dict[int, int]:
    """The last position of the replay in each partition of its topic; partitions without one are absent.

    With `fenced`, an open transaction of a dead process is aborted first.
    """
    if fenced:
        name = f"backfill-{manifest.replay}"
        with kafka_errors("taking over the transactions of the replay"):
            Producer({**cluster.config, "transactional.id": name, "log_level": 2}).init_transactions(TIMEOUT_SECONDS)
    begins = {int(partition): offset for partition, offset in manifest.begins.items()}
    last_positions: dict[int, int] = {}
    for partition, log in cluster.logs(manifest.topic).items():
        begin = max(begins.get(partition, 0), log.start)
        end, size = log.stable, _TAIL
        while begin < end and partition not in last_positions:
            start = max(begin, end - size)
            for headers in _headers(cluster, manifest.topic, partition, start, end):
                if headers.get(REPLAY_HEADER) == manifest.replay.encode():
                    last_positions[partition] = max(last_positions.get(partition, -1), int(headers[POSITION_HEADER]))
            end, size = start, size * 4
    return last_positions


def _headers(cluster: Cluster, topic: str, partition: int, start: int, end: int) -> Iterator[dict[str, bytes]]:
    """The headers of the committed messages of `[start, end)`."""
    consumer = Consumer(
        {
            **cluster.config,
            "group.id": "backfill-looks",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 2,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, 1.0):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return
                if error is not None and not error.retriable():
                    raise KafkaException(error)
                if error is None:
                    if message.offset() >= end:
                        return
                    yield dict(message.headers() or ())
                    if message.offset() == end - 1:
                        return
        raise KafkaUnavailable(f"reading how far {topic} got takes longer than {TIMEOUT_SECONDS:.0f} s; try again")
    finally:
        consumer.close()
