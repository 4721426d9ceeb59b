"""Decoder of Avro data for display, by a schema that `wire.avro.parse` accepted. Performs no I/O.

Schema and data are untrusted: a few bytes can encode a billion nulls. So the decoder enforces `ITEMS_MAX` and
`DEPTH_MAX`; Avro libraries offer no such limits. Logical types are shown as stored: a timestamp is a number.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Any, Final

from quire.wire.avro import Array, AvroType, Enum, Fixed, Map, Primitive, Record, Union

ITEMS_MAX: Final = 20_000
"""Maximum number of values in one message, including nested ones; decoding them takes a few milliseconds."""

DEPTH_MAX: Final = 100
VARINT_BYTES_MAX: Final = 10

_FLOAT: Final = Struct("<f")
_DOUBLE: Final = Struct("<d")


class NoValue(ValueError):
    """Error for data that do not match the schema or exceed a limit; its text is the reason."""


def read(definition: AvroType, payload: bytes) -> Any:
    """Decode `payload` to dicts, lists, strings, numbers and bytes. Raises `NoValue`."""
    reader = _Reader(payload)
    try:
        value = reader.value(definition, 0)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise NoValue(f"the value does not match the Avro schema: {error}") from None
    if reader.at != len(payload):
        raise NoValue(f"the value does not match the Avro schema: {len(payload) - reader.at} extra bytes")
    return value


class _Reader:
    """Reader of consecutive values; `at` is the offset in `data` of the next one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._items = 0
        self.at = 0

    def value(self, kind: AvroType, depth: int) -> Any:
        self._items += 1
        if self._items > ITEMS_MAX or depth > DEPTH_MAX:
            raise NoValue(
                f"the value has more than {ITEMS_MAX} parts, or is nested more than {DEPTH_MAX} deep"
            )
        match kind:
            case Primitive():
                return self._primitive(kind.kind)
            case Fixed():
                return self._take(kind.size)
            case Enum():
                return kind.symbols[self._place(kind.symbols)]
            case Union():
                return self.value(kind.branches[self._place(kind.branches)], depth + 1)
            case Record():
                return {one.name: self.value(one.type, depth + 1) for one in kind.fields}
            case Array():
                return [self.value(kind.items, depth + 1) for _ in self._blocks()]
            case Map():
                return {self._text(): self.value(kind.values, depth + 1) for _ in self._blocks()}

    def _primitive(self, kind: str) -> Any:
        match kind:
            case "null":
                return None
            case "boolean":
                return self._take(1) != b"\0"
            case "int" | "long":
                return self._number()
            case "float":
                return _FLOAT.unpack(self._take(4))[0]
            case "double":
                return _DOUBLE.unpack(self._take(8))[0]
            case "bytes":
                return self._take(self._number())
        return self._text()

    def _blocks(self) -> Any:
        """Yield once for each item of an array or a map."""
        while count := self._number():
            if count < 0:
                count = -count
                self._number()  # the block's size
            for _ in range(count):
                yield None

    def _text(self) -> str:
        return self._take(self._number()).decode()

    def _place(self, choices: Any) -> int:
        number = self._number()
        if not 0 <= number < len(choices):
            raise NoValue(f"the value does not match the Avro schema: there is no symbol or branch {number}")
        return number

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self.at:
            raise NoValue(
                f"the value does not match the Avro schema: {size} bytes are expected, but fewer remain"
            )
        self.at += size
        return self._data[self.at - size : self.at]

    def _number(self) -> int:
        """Decode a zigzag-encoded number, in groups of seven bits, least significant first."""
        found = 0
        for group in range(VARINT_BYTES_MAX):
            byte = self._data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << (7 * group)
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
        raise NoValue("the value does not match the Avro schema: a number is too long")
