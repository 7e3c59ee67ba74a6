"""Payloads of messages, decoded to the text that a pipeline's parser reads.

Text and plain JSON are text already, and Spark decodes them. Avro, Protobuf and JSON with a schema are decoded by Confluent's
deserializers, in the tasks that read the messages, and given to the parser as JSON text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

Decode = Callable[[bytes], str]


@dataclass(frozen=True)
class Text:
    """UTF-8 text, such as JSON without a registry: the parser gets it unchanged."""

    def decoder(self, topic: str, registry: Mapping[str, str]) -> Decode | None:
        """None: Spark decodes it."""
        return None


@dataclass(frozen=True)
class Avro:
    """Avro in Confluent's wire format: a schema id of the registry goes before the value."""

    def decoder(self, topic: str, registry: Mapping[str, str]) -> Decode | None:
        """From bytes to JSON text. Raises whatever the bytes make the deserializer raise."""
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        return _as_json(AvroDeserializer(_client(registry)), topic)


@dataclass(frozen=True)
class JsonSchema:
    """JSON in Confluent's wire format, checked against its schema in the registry."""

    def decoder(self, topic: str, registry: Mapping[str, str]) -> Decode | None:
        """From bytes to JSON text. Raises whatever the bytes make the deserializer raise."""
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        return _as_json(JSONDeserializer(None, schema_registry_client=_client(registry)), topic)


@dataclass(frozen=True)
class Protobuf:
    """Protobuf in Confluent's wire format; `message` is the generated class.

    Spark's workers must be able to import it. Messages that use Google's own types cannot be decoded against the registry.
    """

    message: Any

    def decoder(self, topic: str, registry: Mapping[str, str]) -> Decode | None:
        """From bytes to JSON text. Raises whatever the bytes make the deserializer raise."""
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
        from google.protobuf.json_format import MessageToDict

        decode = ProtobufDeserializer(self.message, {"use.deprecated.format": False}, _client(registry))

        def fields(value: bytes, context: Any) -> Any:
            message = decode(value, context)
            # A field with the value 0 is not on the wire, but belongs to the message.
            values = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
            return _with_numbers(values, message.DESCRIPTOR)

        return _as_json(fields, topic)


Payload = Text | Avro | JsonSchema | Protobuf


def _client(registry: Mapping[str, str]) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient(dict(registry))


def _as_json(decode: Callable[[bytes, Any], Any], topic: str) -> Decode:
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext(topic, MessageField.VALUE)

    def text(value: bytes) -> str:
        return json.dumps(decode(value, context), default=_plain, separators=(",", ":"))

    return text


def _with_numbers(value: Any, declared: Any) -> Any:
    """Turn 64-bit numbers, which Protobuf's JSON writes as text because of JavaScript, back into numbers."""
    if not isinstance(value, dict) or declared.GetOptions().map_entry:
        return value
    for field in declared.fields:
        item = value.get(field.name)
        if item is None:
            continue
        if field.message_type is not None:
            many = isinstance(item, list)
            inside = [_with_numbers(element, field.message_type) for element in (item if many else [item])]
            value[field.name] = inside if many else inside[0]
        elif field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            value[field.name] = [int(element) for element in item] if isinstance(item, list) else int(item)
    return value


def _plain(value: object) -> object:
    """Values that JSON has no type for: times as ISO 8601, decimals as text to stay exact, bytes in base64."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
