"""Commands without payload out of a stream of bytes, for connections that carry only questions and answers.

The data path has its own cutter (`quire.wire.frame`); here a connection sends a few commands in its life, and what
matters is that the bytes after one that was cut can be had back, to be passed on as they are.
"""

from __future__ import annotations

from struct import Struct

from quire.runtime.errors import ProtocolError
from quire.runtime.limits import HANDSHAKE_BYTES_MAX, MIB
from quire.wire.commands import Command, parse

_SIZES = Struct(">II")
ANSWER_BYTES_MAX = 5 * MIB
"""Lists of a namespace's topics are the longest there are."""

QUESTION_BYTES_MAX = HANDSHAKE_BYTES_MAX
"""A client's CONNECT, with its credentials, and the questions that it asks."""


class CommandCutter:
    """Bytes in, commands out. Raises `ProtocolError` for what is no frame without payload."""

    def __init__(self, command_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._command_bytes_max = command_bytes_max

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Command | None:
        """The next whole command, or None until more comes."""
        if len(self._buffer) < _SIZES.size:
            return None
        total, size = _SIZES.unpack_from(self._buffer)
        if size + 4 != total or size > self._command_bytes_max:
            raise ProtocolError("only commands without payload may be sent here; connect to a broker first")
        if len(self._buffer) < total + 4:
            return None
        raw = bytes(self._buffer[_SIZES.size : total + 4])
        del self._buffer[: total + 4]
        return parse(raw)

    def take_rest(self) -> bytes:
        """All that was fed and not cut."""
        rest, self._buffer = bytes(self._buffer), bytearray()
        return rest
