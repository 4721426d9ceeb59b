"""Frames that no part of Quire writes, though peers send them."""

from struct import pack

from quire.wire import commands
from quire.wire import pulsar_pb2 as pb


def with_entry(command: pb.BaseCommand, entry: bytes | memoryview) -> bytes:
    """`command` and the entry that belongs to it, from its 0x0e01 on."""
    raw = command.SerializeToString()
    return pack(">II", len(raw) + 4 + len(entry), len(raw)) + raw + entry


def ask_schema(request_id: int, topic: str, version: bytes | None = None) -> bytes:
    body = pb.CommandGetSchema(request_id=request_id, topic=topic, schema_version=version)
    return commands.frame(pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA, getSchema=body))


def bring_schema(request_id: int, topic: str, kind: int, definition: bytes) -> bytes:
    """GET_OR_CREATE_SCHEMA."""
    schema = pb.Schema(name="", type=kind, schema_data=definition)  # type: ignore[arg-type]
    body = pb.CommandGetOrCreateSchema(request_id=request_id, topic=topic, schema=schema)
    return commands.frame(pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA, getOrCreateSchema=body))
