"""Whether a new schema goes with an old one, as a strategy asks. A core.

A schema of another kind fits only where anything does. Kinds without a definition are the same by their kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from quire.serving.policy.strategy import Strategy
from quire.serving.schema import avro
from quire.serving.schema.definition import AVRO_KINDS, Definition, key_and_value, parsed, root_message


def refusal(new: Definition, old: Definition, strategy: Strategy) -> str | None:
    """Why `new` does not go with `old`; None when it does. Both were validated."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return None
    if new.kind != old.kind:
        return f"it is {new.kind}, and not {old.kind}"
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        return f"strategy {strategy} allows no other one"
    if strategy.asks_backward and (why := unreadable(new, old)):
        return f"it cannot read what was written before: {why}"
    if strategy.asks_forward and (why := unreadable(old, new)):
        return f"what it writes cannot be read by consumers of the earlier one: {why}"
    return None


def unreadable(reader: Definition, writer: Definition) -> str | None:
    """Why messages written by `writer` cannot be read by `reader`, of the same kind."""
    if reader.kind in AVRO_KINDS:
        try:
            return avro.unreadable(parsed(reader), parsed(writer))
        except avro.AvroError as error:
            return str(error)
    if reader.kind == "PROTOBUF_NATIVE":
        to_read, written = root_message(reader), root_message(writer)
        return None if to_read == written else f"message {written} is not {to_read}"
    if reader.kind == "KEY_VALUE":
        return next(filter(None, _unreadable_parts(reader, writer)), None)
    return None


def _unreadable_parts(reader: Definition, writer: Definition) -> Iterator[str | None]:
    parts = zip(("key", "value"), key_and_value(reader), key_and_value(writer), strict=True)
    for which, to_read, written in parts:
        if to_read.kind != written.kind:
            yield f"its {which} is {written.kind}, and not {to_read.kind}"
        elif why := unreadable(to_read, written):
            yield f"its {which}: {why}"
