"""The ids of an ACK or a REDELIVER that has very many, kept as bytes and parsed some at a time.

Parsed, an id with an ack set takes ten times what it takes in the command, and a megabyte of them is worked through
for seconds. So what is kept meanwhile is the command as it is written: its ids are one run of fields of the same
number, since fields are written in the order of their numbers.
"""

from collections.abc import Sequence
from typing import Final

from quire.wire import pulsar_pb2 as pb
from quire.wire import varint

_BYTES: Final = 2
"""The wire type of a field with a length."""

CommandWithIds = pb.CommandAck | pb.CommandRedeliverUnacknowledgedMessages


class PackedIds:
    """`byte_count` is what it keeps."""

    __slots__ = ("_at", "_field", "_kind", "_raw", "_tag", "byte_count")

    def __init__(self, command: CommandWithIds) -> None:
        self._kind = type(command)
        self._field = "message_id" if isinstance(command, pb.CommandAck) else "message_ids"
        self._tag = self._kind.DESCRIPTOR.fields_by_name[self._field].number << 3 | _BYTES
        self._raw = command.SerializeToString()
        self._at = self._start()
        self.byte_count = len(self._raw)

    def _start(self) -> int:
        """Before the ids stand numbers only."""
        at = 0
        while at < len(self._raw) and self._raw[at] & 7 != _BYTES:
            at = varint.decode(self._raw, at + 1)[1]
        return at

    def has_more(self) -> bool:
        """Not all were taken."""
        return self._at < len(self._raw) and self._raw[self._at] == self._tag

    def take(self, count: int) -> Sequence[pb.MessageIdData]:
        """The next ones, `count` at most."""
        start = at = self._at
        while count and at < len(self._raw) and self._raw[at] == self._tag:
            size, at = varint.decode(self._raw, at + 1)
            at, count = at + size, count - 1
        self._at = at
        ids: Sequence[pb.MessageIdData] = getattr(self._kind.FromString(self._raw[start:at]), self._field)
        return ids
