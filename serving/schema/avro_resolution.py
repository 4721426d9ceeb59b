"""Avro schema resolution: decides whether data written with one schema can be read with another. Performs no I/O.

    writer is a union      the reader can read every branch
    reader is a union      some branch can read the writer's type
    records                each field of the reader has a default, or the writer has a readable field of that name or
                           alias
    enums                  same name; the reader has every symbol of the writer, or a default
    fixed                  same name, same size
    arrays, maps           the reader can read the writer's items or values
    primitive types        same type, or a promotion: int → long → float → double, string ↔ bytes

Names of records are ignored, as by the Java library's reader, on which Pulsar's check is based: a class may move to
another package, and its name may differ between languages. Names of enums and fixed types are compared without their
namespaces.

The result is a greatest fixed point. Each pair (reader's type, writer's type) that is reached becomes a node of a
graph. A node depends on all of its parts or, for a union, on any of them. Nodes that are unreadable by themselves fail
first, and failures propagate to the nodes that depend on them. So recursive types need no special case, each pair is
examined once, and the depth of a schema does not cause recursion. The reason of a failure contains its path from the
root. Work is bounded (`PAIRS_MAX`), because a schema may be hostile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from quire.wire.avro import Array, AvroError, AvroType, Enum, Fixed, Map, Record, Union, last, shown

PROMOTED_FROM: Final = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}

PAIRS_MAX: Final = 100_000
"""Maximum number of dependencies between pairs of types in one comparison, which takes a tenth of a second."""


class _Need(NamedTuple):
    """Conditions to read one type as another: none, a failure (`why`), or that all or any `parts` are readable.

    A part is (label for the path, the reader's type, the writer's type).
    """

    why: str = ""
    parts: tuple[tuple[str, AvroType, AvroType], ...] = ()
    any_of: bool = False


class _Pair:
    __slots__ = ("because", "dependants", "has_failed", "need", "open")

    def __init__(self, need: _Need) -> None:
        self.need = need
        self.open = len(need.parts)
        """Number of parts that have not failed; used if `need.any_of`."""
        self.dependants: list[tuple[_Pair, str]] = []
        self.has_failed = False
        self.because: tuple[str, _Pair] | None = None


def unreadable(reader: AvroType, writer: AvroType) -> str | None:
    """Return the path and the reason why data of `writer` cannot be read as `reader`; None if they can be read.

    Raises `AvroError` if the comparison is too large.
    """
    root, failed = _expand(reader, writer)
    while failed:
        pair = failed.pop()
        for dependant, label in pair.dependants:
            dependant.open -= 1
            if not dependant.has_failed and not (dependant.need.any_of and dependant.open):
                dependant.has_failed = True
                dependant.because = (label, pair)
                failed.append(dependant)
    return _explain(root) if root.has_failed else None


def _expand(reader: AvroType, writer: AvroType) -> tuple[_Pair, list[_Pair]]:
    """Build the graph of pairs on which the result depends; return its root, and the pairs that fail immediately."""
    pairs: dict[tuple[int, int], _Pair] = {}
    root = pairs[id(reader), id(writer)] = _Pair(_need(reader, writer))
    waiting, failed, links = [root], [], len(root.need.parts)
    while waiting:
        pair = waiting.pop()
        if pair.need.why:
            pair.has_failed = True
            failed.append(pair)
        for label, its_reader, its_writer in pair.need.parts:
            key = (id(its_reader), id(its_writer))
            part = pairs.get(key)
            if part is None:
                part = pairs[key] = _Pair(_need(its_reader, its_writer))
                waiting.append(part)
                links += len(part.need.parts)
                if links > PAIRS_MAX:
                    raise AvroError("the two definitions are too large to compare")
            part.dependants.append((pair, label))
    return root, failed


def _need(reader: AvroType, writer: AvroType) -> _Need:
    if isinstance(writer, Union):
        return _Need(parts=tuple(("", reader, one) for one in writer.branches))
    if isinstance(reader, Union):
        return _Need(parts=tuple(("", one, writer) for one in reader.branches), any_of=True)
    match reader, writer:
        case Record(), Record():
            return _record_need(reader, writer)
        case (Array(items=to_read), Array(items=written)) | (Map(values=to_read), Map(values=written)):
            return _Need(parts=(("[]", to_read, written),))
        case Enum(), Enum():
            return _Need(why=_other_name(reader, writer) or _unknown_symbol(reader, writer))
        case Fixed(), Fixed():
            return _Need(why=_other_name(reader, writer) or _other_size(reader, writer))
    if reader.kind == writer.kind or writer.kind in PROMOTED_FROM.get(reader.kind, ()):
        return _Need()
    return _Need(why=f"{shown(writer)} cannot be read as {shown(reader)}")


def _record_need(reader: Record, writer: Record) -> _Need:
    written = {one.name: one for one in writer.fields}
    parts = []
    for one in reader.fields:
        found = next((written[name] for name in (one.name, *one.aliases) if name in written), None)
        if found is not None:
            parts.append((f".{one.name}", one.type, found.type))
        elif not one.has_default:
            return _Need(why=f"field {one.name!r} is not written, and has no default")
    return _Need(parts=tuple(parts))


def _other_name(reader: Enum | Fixed, writer: Enum | Fixed) -> str:
    if writer.name == reader.name or writer.name in map(last, reader.aliases):
        return ""
    return f"{shown(writer)} cannot be read as {shown(reader)}: the names differ"


def _unknown_symbol(reader: Enum, writer: Enum) -> str:
    unknown = sorted(set(writer.symbols) - set(reader.symbols))
    if not unknown or reader.default is not None:
        return ""
    return f"symbol {unknown[0]!r} of {shown(writer)} is not known to the reader"


def _other_size(reader: Fixed, writer: Fixed) -> str:
    if writer.size == reader.size:
        return ""
    return f"{shown(writer)} has {writer.size} bytes, and {reader.size} are to be read"


def _explain(root: _Pair) -> str:
    """Return the path from the root to the failure, and the reason.

    The path is finite, because a failure depends only on earlier failures.
    """
    steps = list(_steps(root))
    at = "".join(label for label, _ in steps)
    why = steps[-1][1]
    return f"{at.removeprefix('.')}: {why}" if at else why


def _steps(pair: _Pair) -> Iterator[tuple[str, str]]:
    label = ""
    while True:
        if pair.need.any_of:
            _, _, writer = pair.need.parts[0]
            branches = ", ".join(shown(reader) for _, reader, _ in pair.need.parts[:10])
            yield label, f"{shown(writer)} cannot be read as any of {branches}"
            return
        yield label, pair.need.why
        if pair.because is None:
            return
        label, pair = pair.because
