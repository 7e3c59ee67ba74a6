"""The columns that the raw table of a topic has in addition to the pipeline's own: extend this schema."""

import pyspark.sql.types as T
from pandera.pyspark import DataFrameModel, Field


class KafkaMessage(DataFrameModel):
    """A message of a topic: position, time and all its bytes, so that it can be sent again unchanged."""

    kafka_topic: T.StringType = Field(description="the topic it was read from")
    kafka_partition: T.IntegerType = Field(ge=0, description="its partition")
    kafka_offset: T.LongType = Field(ge=0, description="its offset in the partition")
    kafka_time: T.TimestampType = Field(nullable=True, description="its timestamp, UTC, by producer or broker")
    kafka_key: T.BinaryType = Field(nullable=True, description="its key")
    kafka_headers: T.StringType = Field(nullable=True, description="its headers: JSON list of [name, value in base64]")
    kafka_payload: T.BinaryType = Field(nullable=True, description="its payload as it came; none marks a deletion")
