"""Parser of commands without payload, for connections that carry only requests and responses.

The data path has its own parser (`quire.wire.frame`). This one is for connections with few commands, and can return the
bytes after the last parsed command, to be forwarded unchanged.
"""

from __future__ import annotations

from struct import Struct

from quire.runtime.errors import ProtocolError
from quire.runtime.limits import HANDSHAKE_BYTES_MAX, MIB
from quire.wire.commands import Command, parse

_SIZES = Struct(">II")
ANSWER_BYTES_MAX = 5 * MIB
"""Maximum size of a response; lists of a namespace's topics are the longest."""

QUESTION_BYTES_MAX = HANDSHAKE_BYTES_MAX
"""Maximum size of a client's CONNECT, with its credentials, and of its requests."""


class CommandCutter:
    """Parser from bytes to commands. Raises `ProtocolError` for frames with a payload."""

    def __init__(self, command_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._command_bytes_max = command_bytes_max

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Command | None:
        """Return the next complete command, or None."""
        if len(self._buffer) < _SIZES.size:
            return None
        total, size = _SIZES.unpack_from(self._buffer)
        if size + 4 != total or size > self._command_bytes_max:
            raise ProtocolError(
                "only commands without payload are allowed on a lookup connection; "
                "connect to the topic's broker to send messages"
            )
        if len(self._buffer) < total + 4:
            return None
        raw = bytes(self._buffer[_SIZES.size : total + 4])
        del self._buffer[: total + 4]
        return parse(raw)

    def take_rest(self) -> bytes:
        """Return and remove all unparsed bytes."""
        rest, self._buffer = bytes(self._buffer), bytearray()
        return rest
