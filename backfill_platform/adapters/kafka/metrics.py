"""Prometheus metrics of a replay, served while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from backfill_platform.adapters.kafka.sender import Progress
from backfill_platform.errors import UsageError


@contextmanager
def served(port: int, replay: str) -> Iterator[Callable[[Progress], None]]:
    """Serve the metrics at `/metrics` of the port, on the loopback address; yields the function that updates them.

    Every metric has the label `replay`. Raises UsageError when the port is taken.
    """
    registry = CollectorRegistry()

    def figure(name: str, meaning: str) -> Gauge:
        return Gauge(f"backfill_replay_{name}", meaning, ("replay",), registry=registry).labels(replay)

    selected = figure("messages_selected", "Messages that the replay has to send")
    acknowledged = figure("messages_acknowledged", "Messages that the brokers have acknowledged, in all attempts")
    sent = figure("sent_bytes", "Bytes of keys and payloads sent by this attempt")
    pace = figure("messages_per_second", "Messages acknowledged per second since this attempt began")
    left = figure("remaining_seconds", "Seconds to its end at this pace; NaN before there is one")
    paused = figure("paused", "1 while it waits for its consumers or for a person")
    watermark = figure("watermark_timestamp_seconds", "Event time that all its topics have reached, since 1970; NaN before")
    for unknown in (left, watermark):
        unknown.set(float("nan"))

    def tell(progress: Progress) -> None:
        selected.set(progress.total)
        acknowledged.set(progress.acknowledged)
        sent.set(progress.bytes)
        pace.set(progress.per_second)
        left.set(float("nan") if progress.seconds_left is None else progress.seconds_left)
        paused.set(bool(progress.paused))
        # At the end there is no watermark: the metric keeps its last value.
        if progress.watermark is not None:
            watermark.set(progress.watermark / 1e6)

    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise UsageError(
            f"metrics cannot be served on port {port} ({error.strerror}); choose another --metrics-port"
        ) from error
    try:
        yield tell
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
