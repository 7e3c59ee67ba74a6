"""Messages out of the payloads of quarantine rows: what `TopicReader.payload` has written, read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MESSAGE = (
    "topic string, partition int, offset bigint, time timestamp, key string, headers string, payload string, poison string"
)


def messages_of(rejects: DataFrame) -> DataFrame:
    """The rejected messages of a topic of text, with all that `TopicReader.lines` gives of them, and `payload` besides."""
    message = F.from_json("payload", _MESSAGE)
    value = F.unbase64(message["payload"])
    undecodable = F.coalesce(~F.is_valid_utf8(value.cast("string")), F.lit(False))
    return rejects.select(
        F.when(~undecodable, value.cast("string")).alias("line"),
        undecodable.alias("undecodable"),
        F.col("hour").alias("file_hour"),
        message["poison"].alias("poison"),
        *(message[name].alias(f"kafka_{name}") for name in ("topic", "partition", "offset", "time")),
        F.unbase64(message["key"]).alias("kafka_key"),
        message["headers"].alias("kafka_headers"),
        value.alias("kafka_payload"),
        "payload",
    )
