"""Offsets of a Kafka topic: which of them an ingestion hour is made of, and what does not fit together.

An hour of a partition is the half-open range of offsets `[first with a timestamp in or after the hour, first with one in or
after the next hour)`. These ranges follow each other without a gap, also where timestamps are out of order, so every message
is in exactly one hour. Producers that set old timestamps can still add to an hour that has ended: then the next hour begins at
a later offset than the end that was recorded for this one, which `holes` finds.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from backfill_platform.domain.hours import HOUR


@dataclass(frozen=True, order=True)
class Span:
    """The offsets `[start, end)` of one partition; empty where both are equal."""

    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


Spans = tuple[Span, ...]


def encode(spans: Spans) -> str:
    """The text of the ledger: a JSON object of `[start, end]` by partition."""
    return json.dumps({str(span.partition): [span.start, span.end] for span in sorted(spans)}, separators=(",", ":"))


def decode(text: str) -> Spans:
    """The spans of a text that `encode` has written; none of an empty one."""
    return tuple(sorted(Span(int(partition), *ends) for partition, ends in json.loads(text or "{}").items()))


def holes(landed: Mapping[datetime, Spans]) -> dict[datetime, Spans]:
    """For each hour the offsets that lie between it and the hour after it, and were landed with neither of them."""
    holes_by_hour = {}
    for hour, spans in landed.items():
        starts = {span.partition: span.start for span in landed.get(hour + HOUR, ())}
        between = tuple(
            Span(span.partition, span.end, starts[span.partition])
            for span in spans
            if starts.get(span.partition, span.end) > span.end
        )
        if between:
            holes_by_hour[hour] = between
    return holes_by_hour
