"""Byte format of the bookie protocol: requests and responses of `quire.wire.bookie` as frames over one TCP stream.

    offset size  field
         0    4  length          L of what follows (u32, big-endian like all here), at most BOOKIE_FRAME_BYTES_MAX
         4    4  head size       H: bytes 12 .. 12+H are the head; the blocks follow
         8    4  crc             CRC32C over bytes 0 .. 8 and the head; the blocks have their own checksums
        12    1  version         1
        13    1  kind            format of the rest of the head; 0x80 is set in responses
        14    1  flags           bits 0 and 1: see the kinds
        15    1  status          of an answer, else 0
        16    8  request id      chosen by the client, repeated in the response
        24       the rest of the head:

    a request    u64 incarnation, u8 length and UTF-8 of the bookie's UUID, then
      1 add          u32 count, u32 length of each block      flags: bit 0 recovery, bit 1 priority; then the blocks
      2 read         u64 ledger, u64 first entry, u32 bytes   flags: bit 0 fence
      3 write LAC    u64 ledger, i64 LAC
      4 delete       u64 ledger, i64 version
      5 find time    u64 ledger, i64 time in ms
      6 ledger info  u64 ledger
      7 find hole    u64 ledger, u64 first entry, u64 last entry
      8 list ledgers u64 first ledger, u32 maximum number
    an answer
      0x81 to add    u32 count, u8 status of each block
      0x82 to read   i64 LAC, u16 length and UTF-8 of the detail, u32 count, u32 length of each block, then the blocks
      0x83 to write LAC, delete, find time and find hole: i64 entry, u16 length and UTF-8 of the detail
      0x86 to info   i64 last entry, i64 LAC, u64 bytes        flags: bit 0 fenced, bit 1 flushed
      0x88 to list   u32 count, u64 each ledger; u32 count, u64 each deleted ledger

Responses arrive in any order. A frame is valid if its crc matches, its kind is known, and sizes and counts add up to
exactly its length; any other frame raises `BookieFrameError` and closes the connection. The crc exists because a
flipped bit in a status could be a false "no such entry". Blocks are sent unchanged: encoding returns a list of buffers
for `writelines` and copies none of them; decoding copies each block once, out of the read buffer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct, pack, unpack_from
from struct import error as StructError
from typing import Any, Final, NamedTuple

from quire.runtime.errors import ProtocolError
from quire.runtime.limits import BLOCK_BYTES_HARD_MAX, BOOKIE_FRAME_BYTES_MAX, MIB
from quire.wire.block import Buffer
from quire.wire.bookie import (
    AddRequest,
    BookieId,
    DeleteRequest,
    FindHoleRequest,
    FindTimeRequest,
    LedgerInfo,
    LedgerInfoRequest,
    LedgerList,
    ListLedgersRequest,
    ReadRequest,
    ReadResponse,
    Request,
    SimpleResponse,
    Status,
    WriteLacRequest,
)
from quire.wire.checksum import crc32c
from quire.wire.frame_buffer import FrameBuffer

VERSION: Final = 1

_PREFIX: Final = Struct(">III")
_SIZES: Final = Struct(">II")
_HEAD: Final = Struct(">BBBBQ")
_LEDGER: Final = Struct(">Q")
_READ: Final = Struct(">QQI")
_LEDGER_AND_NUMBER: Final = Struct(">Qq")
_LEDGER_AND_RANGE: Final = Struct(">QQQ")
_LEDGER_AND_COUNT: Final = Struct(">QI")
_INFO: Final = Struct(">qqQ")
_INCARNATION: Final = Struct(">QB")
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_I64: Final = Struct(">q")

_ADD, _READ_KIND, _WRITE_LAC, _DELETE, _FIND_TIME, _INFO_KIND, _FIND_HOLE, _LIST = range(1, 9)
_ADD_ANSWER, _READ_ANSWER, _SIMPLE_ANSWER, _INFO_ANSWER, _LIST_ANSWER = 0x81, 0x82, 0x83, 0x86, 0x88

BUFFER_BYTES_MAX: Final = 4 * MIB
"""Maximum size of a connection's read buffer. Most requests fit, so the buffer is not reallocated for each."""

DETAIL_BYTES_MAX: Final = 1_000
UUID_BYTES_MAX: Final = 64


class BookieFrameError(ProtocolError):
    """Raised if a bookie or its client sent bytes that are not a frame of this protocol."""


@dataclass(slots=True)
class AddResponse:
    """One status per block, in the request's order."""

    statuses: Sequence[Status]


AnyRequest = AddRequest | Request[Any]
Response = AddResponse | ReadResponse | SimpleResponse | LedgerInfo | LedgerList


class BookieFrame(NamedTuple):
    """Request or response, with the id that connects the two."""

    request_id: int
    body: AnyRequest | Response


# -- Encoding ------------------------------------------------------------------------------------------


def encode(request_id: int, body: AnyRequest | Response) -> list[Buffer]:
    """Encode `body` as a frame: buffers to write in order. Blocks are not copied."""
    match body:
        case AddRequest():
            rest = _bookie(body.bookie) + _lengths(body.blocks)
            return _frame(request_id, _ADD, body.recovery | body.priority << 1, 0, rest, body.blocks)
        case ReadRequest():
            rest = _bookie(body.bookie) + _READ.pack(body.ledger_id, body.first_entry, body.bytes_max)
            return _frame(request_id, _READ_KIND, body.fence, 0, rest)
        case WriteLacRequest():
            return _frame(request_id, _WRITE_LAC, 0, 0, _about(body.bookie, body.ledger_id, body.lac))
        case DeleteRequest():
            return _frame(request_id, _DELETE, 0, 0, _about(body.bookie, body.ledger_id, body.version))
        case FindTimeRequest():
            return _frame(request_id, _FIND_TIME, 0, 0, _about(body.bookie, body.ledger_id, body.time_ms))
        case LedgerInfoRequest():
            return _frame(request_id, _INFO_KIND, 0, 0, _bookie(body.bookie) + _LEDGER.pack(body.ledger_id))
        case FindHoleRequest():
            rest = _LEDGER_AND_RANGE.pack(body.ledger_id, body.first_entry, body.last_entry)
            return _frame(request_id, _FIND_HOLE, 0, 0, _bookie(body.bookie) + rest)
        case ListLedgersRequest():
            rest = _LEDGER_AND_COUNT.pack(body.first_ledger, body.count_max)
            return _frame(request_id, _LIST, 0, 0, _bookie(body.bookie) + rest)
        case AddResponse():
            return _frame(
                request_id, _ADD_ANSWER, 0, 0, pack(">I", len(body.statuses)) + bytes(body.statuses)
            )
        case ReadResponse():
            rest = pack(">q", body.lac) + _detail(body.detail) + _lengths(body.blocks)
            return _frame(request_id, _READ_ANSWER, 0, body.status, rest, body.blocks)
        case SimpleResponse():
            rest = pack(">q", body.entry) + _detail(body.detail)
            return _frame(request_id, _SIMPLE_ANSWER, 0, body.status, rest)
        case LedgerInfo():
            flags = body.fenced | body.flushed << 1
            rest = _INFO.pack(body.last_entry, body.lac, body.bytes)
            return _frame(request_id, _INFO_ANSWER, flags, body.status, rest)
        case LedgerList():
            rest = _ids(body.ledgers) + _ids(body.deleted)
            return _frame(request_id, _LIST_ANSWER, 0, body.status, rest)
    raise AssertionError(f"cannot encode {body!r}")


def _frame(
    request_id: int, kind: int, flags: int, status: int, rest: bytes, blocks: Sequence[Buffer] = ()
) -> list[Buffer]:
    head = _HEAD.pack(VERSION, kind, flags, status, request_id) + rest
    length = 8 + len(head) + sum(map(len, blocks))
    assert length <= BOOKIE_FRAME_BYTES_MAX - 4
    crc = crc32c(head, crc32c(_SIZES.pack(length, len(head))))
    return [_PREFIX.pack(length, len(head), crc) + head, *blocks]


def _bookie(bookie: BookieId) -> bytes:
    uuid = bookie.uuid.encode()
    assert len(uuid) <= UUID_BYTES_MAX
    return pack(">QB", bookie.incarnation, len(uuid)) + uuid


def _about(bookie: BookieId, ledger_id: int, number: int) -> bytes:
    return _bookie(bookie) + _LEDGER_AND_NUMBER.pack(ledger_id, number)


def _lengths(blocks: Sequence[Buffer]) -> bytes:
    return pack(f">I{len(blocks)}I", len(blocks), *map(len, blocks))


def _ids(ledgers: Sequence[int]) -> bytes:
    return pack(f">I{len(ledgers)}Q", len(ledgers), *ledgers)


def _detail(text: str) -> bytes:
    raw = text.encode()[:DETAIL_BYTES_MAX].decode(errors="ignore").encode()
    return pack(">H", len(raw)) + raw


# -- Decoding ------------------------------------------------------------------------------------------


# Statuses on the wire: UNREACHABLE is never sent.
_STATUS_OF: Final[dict[int, Status]] = {int(s): s for s in Status if s is not Status.UNREACHABLE}


class _Reader:
    """Reader of the rest of a frame's head, from front to back, and of the blocks after it."""

    __slots__ = ("_at", "_head", "_tail", "flags", "status")

    def __init__(self, head: bytes, tail: memoryview, flags: int, status: int) -> None:
        self._head = head
        self._tail = tail
        self._at = _HEAD.size
        self.flags = flags
        self.status = _STATUS_OF[status]

    def take(self, layout: Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self._head, self._at)
        self._at += layout.size
        return values

    def bookie(self) -> BookieId:
        incarnation, size = self.take(_INCARNATION)
        return BookieId(self._text(size), incarnation)

    def detail(self) -> str:
        return self._text(self.take(_U16)[0])

    def _text(self, size: int) -> str:
        end = self._at + size
        if end > len(self._head):
            raise ValueError("a text is truncated")
        raw = self._head[self._at : end]
        self._at = end
        return raw.decode()

    def statuses(self) -> list[Status]:
        count = self.take(_U32)[0]
        raw = self._head[self._at :]
        if len(raw) != count:
            raise ValueError(f"{len(raw)} statuses instead of {count}")
        self._at += count
        return list(map(_STATUS_OF.__getitem__, raw))

    def blocks(self) -> list[Buffer]:
        count = self.take(_U32)[0]
        if 4 * count != len(self._head) - self._at:
            raise ValueError(f"{count} blocks do not match the size of the frame's head")
        lengths = unpack_from(f">{count}I", self._head, self._at)
        self._at += 4 * count
        blocks: list[Buffer] = []
        tail, begin = self._tail, 0
        for length in lengths:
            if length > BLOCK_BYTES_HARD_MAX or begin + length > len(tail):
                raise ValueError(f"invalid block length of {length} bytes")
            blocks.append(tail[begin : begin + length].tobytes())
            begin += length
        self._tail = tail[begin:]
        return blocks

    def ids(self) -> list[int]:
        count = self.take(_U32)[0]
        ids = unpack_from(f">{count}Q", self._head, self._at)
        self._at += 8 * count
        return list(ids)

    def finish(self) -> None:
        if self._at != len(self._head) or self._tail:
            raise ValueError("unexpected bytes at the end")


def _read_add(r: _Reader) -> AddRequest:
    return AddRequest(r.bookie(), r.blocks(), recovery=r.flags & 1 == 1, priority=r.flags & 2 == 2)


def _read_read(r: _Reader) -> ReadRequest:
    bookie = r.bookie()
    ledger_id, first_entry, bytes_max = r.take(_READ)
    return ReadRequest(bookie, ledger_id, first_entry, bytes_max, fence=r.flags & 1 == 1)


def _read_add_answer(r: _Reader) -> AddResponse:
    return AddResponse(r.statuses())


def _read_read_answer(r: _Reader) -> ReadResponse:
    lac = r.take(_I64)[0]
    return ReadResponse(r.status, lac, detail=r.detail(), blocks=r.blocks())


def _read_simple_answer(r: _Reader) -> SimpleResponse:
    return SimpleResponse(r.status, r.take(_I64)[0], r.detail())


def _read_info_answer(r: _Reader) -> LedgerInfo:
    last_entry, lac, size = r.take(_INFO)
    return LedgerInfo(r.status, last_entry, lac, r.flags & 1 == 1, r.flags & 2 == 2, size)


def _read_list_answer(r: _Reader) -> LedgerList:
    return LedgerList(r.status, r.ids(), r.ids())


_READERS: Final[dict[int, Callable[[_Reader], AnyRequest | Response]]] = {
    _ADD: _read_add,
    _READ_KIND: _read_read,
    _WRITE_LAC: lambda r: WriteLacRequest(r.bookie(), *r.take(_LEDGER_AND_NUMBER)),
    _DELETE: lambda r: DeleteRequest(r.bookie(), *r.take(_LEDGER_AND_NUMBER)),
    _FIND_TIME: lambda r: FindTimeRequest(r.bookie(), *r.take(_LEDGER_AND_NUMBER)),
    _INFO_KIND: lambda r: LedgerInfoRequest(r.bookie(), *r.take(_LEDGER)),
    _FIND_HOLE: lambda r: FindHoleRequest(r.bookie(), *r.take(_LEDGER_AND_RANGE)),
    _LIST: lambda r: ListLedgersRequest(r.bookie(), *r.take(_LEDGER_AND_COUNT)),
    _ADD_ANSWER: _read_add_answer,
    _READ_ANSWER: _read_read_answer,
    _SIMPLE_ANSWER: _read_simple_answer,
    _INFO_ANSWER: _read_info_answer,
    _LIST_ANSWER: _read_list_answer,
}


def decode(frame: memoryview) -> BookieFrame:
    """Decode `frame`, which must be exactly one frame. Raises `BookieFrameError`."""
    if len(frame) < _PREFIX.size + _HEAD.size:
        raise BookieFrameError(f"a frame of {len(frame)} bytes is truncated")
    length, head_size, crc = _PREFIX.unpack_from(frame)
    head_end = _PREFIX.size + head_size
    if length != len(frame) - 4 or not _HEAD.size <= head_size <= len(frame) - _PREFIX.size:
        raise BookieFrameError(f"a head of {head_size} bytes in a frame of {length}")
    head = frame[_PREFIX.size : head_end].tobytes()
    if crc32c(head, crc32c(frame[: _SIZES.size])) != crc:
        raise BookieFrameError("a frame's head does not match its checksum")
    version, kind, flags, status, request_id = _HEAD.unpack_from(head)
    if version != VERSION or kind not in _READERS:
        raise BookieFrameError(f"unsupported frame: version {version}, kind {kind:#x}")
    try:
        reader = _Reader(head, frame[head_end:], flags, status)
        body = _READERS[kind](reader)
        reader.finish()
    except (ValueError, KeyError, StructError) as error:
        raise BookieFrameError(f"cannot decode a frame of kind {kind:#x}: {error}") from None
    return BookieFrame(request_id, body)


class BookieFrameCutter(FrameBuffer[BookieFrame]):
    """Cutter of one connection's bytes into requests or responses; see `FrameBuffer`."""

    __slots__ = ("_frame_bytes_max",)

    def __init__(self, frame_bytes_max: int = BOOKIE_FRAME_BYTES_MAX) -> None:
        super().__init__(BUFFER_BYTES_MAX)
        self._frame_bytes_max = frame_bytes_max

    def _cut(self) -> list[BookieFrame]:
        frames: list[BookieFrame] = []
        while self._end - self._start >= 4:
            length = _U32.unpack_from(self._buffer, self._start)[0]
            if length > self._frame_bytes_max - 4:
                raise BookieFrameError(
                    f"a frame of {length} bytes exceeds the maximum of {self._frame_bytes_max - 4}"
                )
            frame_end = self._start + 4 + length
            if frame_end > self._end:
                break
            frames.append(decode(self._view[self._start : frame_end]))
            self._start = frame_end
        return frames
