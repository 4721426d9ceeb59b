"""Limits on names and properties that clients send and that the broker keeps in memory.

The number of ids in an ACK or a REDELIVER is bounded by the size of a command, and a topic's name by `TopicName`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import PROPERTIES_BYTES_MAX, PROPERTIES_FREE_BYTES
from quire.serving.names import check_name
from quire.serving.session.connection import Connection
from quire.wire import pulsar_pb2 as pb


def refused_names(names: Mapping[str, str]) -> str:
    """Return why the first invalid name is rejected; an empty string if all are valid.

    `names` maps a description, such as "the producer name", to the name.
    """
    try:
        for what, name in names.items():
            check_name(what, name)
    except ConfigurationError as error:
        return str(error)
    return ""


def refused_properties(
    what: str, properties: Iterable[pb.KeyValue], connection: Connection | None = None
) -> str:
    """Return why the broker cannot keep these properties; an empty string if it can.

    If `connection` is given, the memory budget of its owner must have enough free bytes.
    """
    if sum(item.ByteSize() for item in properties) > PROPERTIES_BYTES_MAX:
        return f"{what} exceed the limit of {PROPERTIES_BYTES_MAX} bytes"
    weight = counted_bytes(properties)
    if connection is not None and not _has_room(connection, weight):
        return f"{what} exceed the broker's memory budget; up to {PROPERTIES_FREE_BYTES} bytes are always accepted"
    return ""


def _has_room(connection: Connection, byte_count: int) -> bool:
    return connection.context.kept.has_room(connection.peer.owner, byte_count)


def counted_bytes(properties: Iterable[pb.KeyValue]) -> int:
    """Return the bytes of a producer's or consumer's properties that count in `Services.kept`."""
    return max(0, sum(item.ByteSize() for item in properties) - PROPERTIES_FREE_BYTES)
