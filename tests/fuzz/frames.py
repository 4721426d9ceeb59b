"""What a Pulsar client sends: frames, commands, entries and the messages in them."""

from __future__ import annotations

from operator import itemgetter
from struct import Struct
from typing import Any

from quire.runtime.errors import ProtocolError
from quire.wire import bookie_codec, commands, message, sticky_key
from quire.wire import pulsar_pb2 as pb
from quire.wire.bookie_codec import BookieFrameCutter
from quire.wire.checksum import crc32c
from quire.wire.commands import Command
from quire.wire.frame import ENTRY_MAGIC, Delivery, FrameCutter, Send, SendRun
from quire.wire.frame_buffer import READ_BUFFER_BYTES_MAX

FRAME_BYTES_MAX = 1 << 20
_U32 = Struct(">I")
_OPENING = Struct(">HI")


def frames(data: bytes) -> None:
    """The client's side of a connection, whole and in pieces."""
    if len(data) < 2:
        return
    raw = _sealed(data[2:]) if data[0] & 1 else data[2:]
    whole, error = _cut(FrameCutter(FRAME_BYTES_MAX), raw, len(raw) or 1)
    pieces, piecewise_error = _cut(FrameCutter(FRAME_BYTES_MAX), raw, 1 + data[1])
    assert (error is None) == (piecewise_error is None), (error, piecewise_error)
    if error is None:
        assert _flat(whole) == _flat(pieces)
    for cut in whole:
        _again(cut)
        for entry in _entries(cut):
            _look_inside(entry)


def bookie_frames(data: bytes) -> None:
    """The broker's side of a bookie's connection, and the other way round."""
    if len(data) < 2:
        return
    raw = _sealed_bookie_frames(data[2:]) if data[0] & 1 else data[2:]
    whole, error = _cut(BookieFrameCutter(FRAME_BYTES_MAX), raw, len(raw) or 1)
    pieces, piecewise_error = _cut(BookieFrameCutter(FRAME_BYTES_MAX), raw, 1 + data[1])
    assert (error is None) == (piecewise_error is None), (error, piecewise_error)
    if error is None:
        assert list(map(_plain, whole)) == list(map(_plain, pieces))
    for frame in whole:
        written = b"".join(map(bytes, bookie_codec.encode(frame.request_id, frame.body)))
        assert _plain(bookie_codec.decode(memoryview(written))) == _plain(frame)


def _cut(cutter: Any, raw: bytes, piece_bytes: int) -> tuple[list[Any], ProtocolError | None]:
    """What comes out before an error, and the error."""
    cuts: list[Any] = []
    for start in range(0, len(raw), piece_bytes):
        try:
            cuts += cutter.feed(raw[start : start + piece_bytes])
        except ProtocolError as error:
            return cuts, error
        room = max(READ_BUFFER_BYTES_MAX, bookie_codec.BUFFER_BYTES_MAX, 4 * len(raw))
        assert cutter.buffer_bytes <= room, "a frame that claims to be large gets its memory before its bytes"
    assert cutter.pending_bytes <= len(raw)
    return cuts, None


def _flat(cuts: list[Any]) -> list[Any]:
    """Without what depends on how the bytes came: the borders of runs, and the order of different producers' runs that
    follow one another."""
    flat: list[Any] = []
    sends: list[Any] = []
    for cut in cuts:
        if isinstance(cut, SendRun):
            counts = cut.counts or [1] * len(cut)
            ids = cut.sequence_ids()
            sends += zip([cut.producer_id] * len(cut), cut.heads, cut.entries, counts, ids, strict=True)
            continue
        flat += sorted(sends, key=itemgetter(0))
        sends = []
        if isinstance(cut, Command):
            flat.append((cut.kind, cut.body.SerializeToString(deterministic=True)))
        elif isinstance(cut, Delivery):
            flat.append((cut.entry, cut.checksum_ok))
        else:
            flat.append(cut)
    return flat + sorted(sends, key=itemgetter(0))


def _entries(cut: Any) -> list[bytes]:
    if isinstance(cut, SendRun):
        return cut.entries
    return [cut.entry] if isinstance(cut, Send | Delivery) else []


def _again(cut: Any) -> None:
    """A command that was read can be written, and is read as the same."""
    if isinstance(cut, Command):
        envelope = pb.BaseCommand(type=cut.kind)
        getattr(envelope, commands._FIELD_OF_KIND[cut.kind]).MergeFrom(cut.body)
        again = FrameCutter().feed(commands.frame(envelope))
        if cut.kind not in (pb.BaseCommand.SEND, pb.BaseCommand.MESSAGE):
            assert len(again) == 1 and _flat(again) == _flat([cut])


def _look_inside(entry: bytes) -> None:
    sticky_key.key_at(memoryview(entry), 0)
    try:
        messages = message.decode(entry)
    except message.Undecodable:
        return
    for each in messages:
        assert each.payload is None or isinstance(each.payload, bytes)
        assert each.key is None or isinstance(each.key, str)
        assert all(isinstance(text, str) for pair in each.properties.items() for text in pair)


def _sealed(raw: bytes) -> bytes:
    """The frames with right checksums in their entries."""
    made = bytearray(raw)
    at = 0
    while at + 8 <= len(made):
        end = at + 4 + _U32.unpack_from(made, at)[0]
        entry = at + 8 + _U32.unpack_from(made, at + 4)[0]
        if end > len(made) or end <= at:
            break
        if entry + 10 <= end and _OPENING.unpack_from(made, entry)[0] == ENTRY_MAGIC:
            _OPENING.pack_into(made, entry, ENTRY_MAGIC, crc32c(bytes(made[entry + 6 : end])))
        at = end
    return bytes(made)


def _sealed_bookie_frames(raw: bytes) -> bytes:
    made = bytearray(raw)
    at, prefix = 0, bookie_codec._PREFIX.size
    while at + prefix <= len(made):
        length, head_size, _ = bookie_codec._PREFIX.unpack_from(made, at)
        head_end = at + prefix + head_size
        if at + 4 + length > len(made) or head_end > len(made):
            break
        sizes = bytes(made[at : at + bookie_codec._SIZES.size])
        crc = crc32c(bytes(made[at + prefix : head_end]), crc32c(sizes))
        bookie_codec._PREFIX.pack_into(made, at, length, head_size, crc)
        at += 4 + length
    return bytes(made)


def _plain(value: Any) -> Any:
    """A frame as something that compares by contents."""
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if hasattr(value, "__slots__") and not isinstance(value, int | str | bytes):
        return [type(value).__name__, *(_plain(getattr(value, name)) for name in value.__slots__)]
    return value
