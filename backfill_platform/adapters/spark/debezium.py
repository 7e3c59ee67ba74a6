"""Change data capture: Debezium's envelopes as rows, each a change of one entity, for `newest`.

The forms of the envelope are those of Debezium's documentation ("Change events", connectors for PostgreSQL and MySQL): JSON
with and without a schema, or Avro that a registry decodes. `op` is `c` (create), `u` (update), `d` (delete) or `r` (read by a
snapshot).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TOMBSTONE = "tombstone"
CHANGES = ("c", "u", "d", "r", TOMBSTONE)  # what the column `op` can hold; anything else belongs in quarantine


def debezium_changes(messages: DataFrame, row: str) -> DataFrame:
    """The messages with the columns of `row` (as DDL: `customer_id bigint, name string`), `op`, `deleted` and `changed_at`.

    The columns are those after the change; of a delete those before it, as far as the database tells them, and else those of
    the message's key. `changed_at` is when the database made the change, UTC, to the millisecond; of a snapshot's row, when it
    was read. A message without a payload is a tombstone: it comes after a delete, tells Kafka to forget the key, and changes
    nothing; its `op` is `tombstone`, and its time that of the message. What is no envelope gets NULL in all of these.

    With a schema in each message, or without, makes no difference. Values are in the form in which the connector writes them:
    declare a time as the bigint that it is, and a decimal as string (`decimal.handling.mode=string`). A field that a message
    does not have, as before a column was added, is NULL.
    """
    names = cast("StructType", StructType.fromDDL(row)).names
    envelope = f"before struct<{row}>, after struct<{row}>, op string, ts_ms bigint, source struct<ts_ms: bigint>"
    read = F.from_json("line", f"payload struct<{envelope}>, {envelope}")

    def part(name: str) -> Column:
        return F.coalesce(read["payload"][name], read[name])

    given = set(messages.columns)
    is_tombstone, key = F.lit(False), F.lit(None).cast(f"struct<{row}>")
    if {"kafka_payload", "kafka_key"} <= given:
        is_tombstone = F.col("kafka_payload").isNull()
        told = F.from_json(F.col("kafka_key").cast("string"), f"payload struct<{row}>, {row}")
        key = F.when(told["payload"].isNotNull(), told["payload"]).otherwise(
            F.struct(*(told[name].alias(name) for name in names))
        )
    op = F.when(is_tombstone, F.lit(TOMBSTONE)).otherwise(part("op"))
    gone = op.isin("d", TOMBSTONE)
    made_at = F.timestamp_millis(F.coalesce(part("source")["ts_ms"], part("ts_ms")))
    time = F.when(is_tombstone, F.col("kafka_time")).otherwise(made_at) if "kafka_time" in given else made_at
    return messages.select(
        "*",
        op.alias("op"),
        time.alias("changed_at"),
        gone.alias("deleted"),
        *(
            F.when(gone, F.coalesce(part("before")[name], key[name])).otherwise(part("after")[name]).alias(name)
            for name in names
        ),
    )
