"""Ids of an ACK or REDELIVER with very many ids, kept as bytes and parsed in portions.

A parsed id with an ack set needs ten times its encoded size, and processing a megabyte of ids takes seconds. So the
command stays encoded until then. Its ids are contiguous, because fields are encoded in the order of their numbers.
"""

from collections.abc import Sequence
from typing import Final

from quire.wire import pulsar_pb2 as pb
from quire.wire import varint

_BYTES: Final = 2
"""Protobuf wire type of a field with a length."""

CommandWithIds = pb.CommandAck | pb.CommandRedeliverUnacknowledgedMessages


class PackedIds:
    """Encoded ids of one command; `byte_count` is the size of the encoded command."""

    __slots__ = ("_at", "_field", "_kind", "_raw", "_tag", "byte_count")

    def __init__(self, command: CommandWithIds) -> None:
        self._kind = type(command)
        self._field = "message_id" if isinstance(command, pb.CommandAck) else "message_ids"
        self._tag = self._kind.DESCRIPTOR.fields_by_name[self._field].number << 3 | _BYTES
        self._raw = command.SerializeToString()
        self._at = self._start()
        self.byte_count = len(self._raw)

    def _start(self) -> int:
        """Return the offset of the first id; only numeric fields precede the ids."""
        at = 0
        while at < len(self._raw) and self._raw[at] & 7 != _BYTES:
            at = varint.decode(self._raw, at + 1)[1]
        return at

    def has_more(self) -> bool:
        """Return whether ids are left."""
        return self._at < len(self._raw) and self._raw[self._at] == self._tag

    def take(self, count: int) -> Sequence[pb.MessageIdData]:
        """Return the next ids, at most `count`."""
        start = at = self._at
        while count and at < len(self._raw) and self._raw[at] == self._tag:
            size, at = varint.decode(self._raw, at + 1)
            at, count = at + size, count - 1
        self._at = at
        ids: Sequence[pb.MessageIdData] = getattr(self._kind.FromString(self._raw[start:at]), self._field)
        return ids
