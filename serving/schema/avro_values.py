"""Values in Avro's bytes, for people to look at: by a definition that `avro.parse` took. A core.

Whoever writes to a topic chooses both the definition and the bytes, and a handful of bytes can stand for a thousand
million nulls. So what is read is counted, `ITEMS_MAX` and `DEPTH_MAX` at most, which libraries for Avro cannot do.
Logical types are shown as what they are stored as: a time is a number.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Any, Final

from quire.serving.schema.avro import AvroType

ITEMS_MAX: Final = 20_000
"""Values within a value: some milliseconds."""

DEPTH_MAX: Final = 100
VARINT_BYTES_MAX: Final = 10

_FLOAT: Final = Struct("<f")
_DOUBLE: Final = Struct("<d")


class NoValue(ValueError):
    """The bytes are no value of the definition, or more than is looked at; says why."""


def read(definition: AvroType, payload: bytes) -> Any:
    """What `payload` holds: dicts, lists, texts, numbers; bytes as bytes. Raises `NoValue`."""
    reader = _Reader(payload)
    try:
        value = reader.value(definition, 0)
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise NoValue(f"the bytes do not fit the Avro schema: {error}") from None
    if reader.at != len(payload):
        raise NoValue(f"the bytes do not fit the Avro schema: {len(payload) - reader.at} are left over")
    return value


class _Reader:
    """`at` is where in `data` the next value begins."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._items = 0
        self.at = 0

    def value(self, kind: AvroType, depth: int) -> Any:
        self._items += 1
        if self._items > ITEMS_MAX or depth > DEPTH_MAX:
            raise NoValue(f"it has more than {ITEMS_MAX} values, or is more than {DEPTH_MAX} deep")
        match kind.kind:
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
            case "string":
                return self._take(self._number()).decode()
            case "fixed":
                return self._take(kind.size)
            case "enum":
                return kind.symbols[self._place(kind.symbols)]
            case "union":
                return self.value(kind.branches[self._place(kind.branches)], depth + 1)
            case "record":
                return {one.name: self.value(one.type, depth + 1) for one in kind.fields}
            case "array":
                assert kind.items is not None
                return [self.value(kind.items, depth + 1) for _ in self._blocks()]
        assert kind.items is not None, kind.kind
        return {self._text(): self.value(kind.items, depth + 1) for _ in self._blocks()}

    def _blocks(self) -> Any:
        """One turn for each item of an array or a map."""
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
            raise NoValue(f"the bytes do not fit the Avro schema: it has no choice {number}")
        return number

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self.at:
            raise NoValue(f"the bytes do not fit the Avro schema: {size} bytes are not there")
        self.at += size
        return self._data[self.at - size : self.at]

    def _number(self) -> int:
        """Zigzag, in groups of seven bits, the least first."""
        found = 0
        for group in range(VARINT_BYTES_MAX):
            byte = self._data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << (7 * group)
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
        raise NoValue("the bytes do not fit the Avro schema: a number is too long")
