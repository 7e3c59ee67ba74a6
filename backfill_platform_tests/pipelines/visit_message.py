"""The Protobuf message of a visit.

As protoc would generate it from `message Visit { string at = 1; string user = 2; int64 number = 3; }`.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _build() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="visit_of_tests.proto", package="tests", syntax="proto3")
    message = file.message_type.add(name="Visit")
    kinds = {"at": 9, "user": 9, "number": 3}  # string, string, int64
    for number, (name, kind) in enumerate(kinds.items(), 1):
        message.field.add(name=name, number=number, type=kind, label=1, json_name=name)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.Visit"))


VisitMessage = _build()
VisitMessage.__module__, VisitMessage.__qualname__, VisitMessage.__name__ = __name__, "VisitMessage", "VisitMessage"
