"""Compatibility of a new schema with an old one, according to a strategy. Performs no I/O.

Schemas of different types are compatible only with ALWAYS_COMPATIBLE. Schemas of a type without a definition are equal.
"""

from __future__ import annotations

from collections.abc import Iterator

from quire.serving.policy.strategy import Strategy
from quire.serving.schema import avro_resolution
from quire.serving.schema.definition import AVRO_KINDS, Definition, key_and_value, parsed, root_message
from quire.wire.avro import AvroError


def refusal(new: Definition, old: Definition, strategy: Strategy) -> str | None:
    """Return the reason why `new` is incompatible with `old`; None if it is compatible. Both have passed `validate`."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return None
    if new.kind != old.kind:
        return f"its type is {new.kind}, not {old.kind}"
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        return f"strategy {strategy} allows no new schema"
    if strategy.asks_backward and (why := unreadable(new, old)):
        return f"it cannot read existing messages: {why}"
    if strategy.asks_forward and (why := unreadable(old, new)):
        return f"its messages cannot be read with the earlier schema: {why}"
    return None


def unreadable(reader: Definition, writer: Definition) -> str | None:
    """Return the reason why `reader` cannot read messages of `writer`, which has the same type; None if it can."""
    if reader.kind in AVRO_KINDS:
        try:
            return avro_resolution.unreadable(parsed(reader), parsed(writer))
        except AvroError as error:
            return str(error)
    if reader.kind == "PROTOBUF_NATIVE":
        to_read, written = root_message(reader), root_message(writer)
        return None if to_read == written else f"message type {written} is not {to_read}"
    if reader.kind == "KEY_VALUE":
        return next(filter(None, _unreadable_parts(reader, writer)), None)
    return None


def _unreadable_parts(reader: Definition, writer: Definition) -> Iterator[str | None]:
    parts = zip(("key", "value"), key_and_value(reader), key_and_value(writer), strict=True)
    for which, to_read, written in parts:
        if to_read.kind != written.kind:
            yield f"the type of its {which} is {written.kind}, not {to_read.kind}"
        elif why := unreadable(to_read, written):
            yield f"its {which}: {why}"
