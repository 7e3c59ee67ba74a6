"""Draining a topic for one repair: handle what it has, keep a receipt of every message, and compare the counts of all hops.

The three counts of an hour are rows selected and messages acknowledged, which the replay left in the ledger, and messages
persisted, which are the receipts. The drain fails where they disagree.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.state.ledger import Ledger, LedgerEntry
from backfill_platform.adapters.clickhouse.state.receipts import Receipt, Receipts
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.kafka.consumer import Drained, Handler, Message, consume_to_end
from backfill_platform.adapters.kafka.sender import HOUR_HEADER, REPLAY_HEADER
from backfill_platform.domain.hours import format_hour, hour_of, parse_hour
from backfill_platform.errors import CheckFailed, HourError, UsageError
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.topics.delivery_counts import DRAIN, DeliveryCounts, delivery_counts_of_drain

PERSIST = "persist"
_SHOWN = 5


@dataclass(frozen=True)
class Drain:
    """What is asked for: a drain goes on by its `name`. Without a `topic` it is that of the pipeline's replays."""

    name: str
    topic: str = ""
    handler: str = PERSIST
    reason: str = ""
    requester: str = ""
    code_version: str = ""


@dataclass(frozen=True)
class DrainReport:
    """What this drain did, and what all drains of its name have by hour."""

    drained: Drained
    hours: tuple[DeliveryCounts, ...]


def handler_of(pipeline: Pipeline, name: str) -> Handler:
    """The handler of that name; `persist` only keeps the messages. Raises UsageError with the names there are."""
    if name == PERSIST and PERSIST not in pipeline.handlers:
        return lambda messages: ()
    if name not in pipeline.handlers:
        have = ", ".join(sorted({PERSIST, *pipeline.handlers}))
        raise UsageError(f"pipeline {pipeline.name} has no handler '{name}'; it has {have}")
    return pipeline.handlers[name]


def drain_topic(
    asked: Drain,
    pipeline: Pipeline,
    cluster: Cluster,
    warehouse: Warehouse,
    *,
    clock: Callable[[], datetime],
    tell: Callable[[int, int], None],
    counted: Callable[[Sequence[datetime]], object] = lambda hours: None,
) -> DrainReport:
    """Handle all that the topic has now and no drain of this name has handled, and compare the counts.

    `tell` hears how many messages of how many are handled, `counted` which hours have counts in the ledger now.
    Raises CheckFailed where the counts of an hour disagree, and what `adapters.kafka.consumer` raises.
    """
    name, topic, handle = asked.name, asked.topic or pipeline.backfill_topic, handler_of(pipeline, asked.handler)
    receipts, ledger, started = Receipts(warehouse), Ledger(warehouse), clock()

    def keep(messages: Sequence[Message]) -> None:
        receipts.add([_receipt(name, message, payload=asked.handler == PERSIST) for message in messages])

    drained = consume_to_end(cluster, topic, name, handle, keep, tell=tell)
    hours = delivery_counts_of_drain(receipts, ledger, name, topic)
    ledger.append(
        LedgerEntry(
            repair_id=one.replay or name,
            attempt_id=name,
            pipeline=pipeline.name,
            target=f"kafka/{topic}",
            hour=one.hour,
            mode=DRAIN,
            status="done" if one.agree else "refused",
            rows_read=one.acknowledged,
            rows_kept=one.persisted or 0,
            reason=asked.reason,
            note=f"handler {asked.handler}",
            requester=asked.requester,
            code_version=asked.code_version,
            server_version=warehouse.server_version,
            schema_hash="",
            started_at=started,
            finished_at=clock(),
        )
        for one in hours
    )
    counted([one.hour for one in hours])
    if wrong := [one for one in hours if not one.agree]:
        told = "; ".join(f"{format_hour(one.hour)}: {one}" for one in wrong[:_SHOWN])
        advice = "Let the replay end, then drain again by the same name"
        if all(one.acknowledged is not None and (one.persisted or 0) > one.acknowledged for one in wrong):
            advice = "Messages came twice, as when a broker dies meanwhile. Replay them with --transactional to another topic"
        raise CheckFailed(f"{len(wrong)} hours of {topic} have other counts than their replay: {told}. {advice}")
    return DrainReport(drained, hours)


def _receipt(name: str, message: Message, *, payload: bool) -> Receipt:
    return Receipt(
        name,
        message.topic,
        message.partition,
        message.offset,
        (message.headers.get(REPLAY_HEADER) or b"").decode(errors="replace"),
        _hour(message),
        message.time,
        (message.key or b"") if payload else b"",
        (message.value or b"") if payload else b"",
    )


def _hour(message: Message) -> datetime:
    """The hour that a replay says, or that of its time where nobody says one, or something that is no hour."""
    said = message.headers.get(HOUR_HEADER)
    with suppress(HourError, UnicodeDecodeError):
        if said:
            return parse_hour(said.decode())
    return hour_of(message.time)
