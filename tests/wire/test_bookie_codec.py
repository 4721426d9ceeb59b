"""The bookie protocol's frames: they come back however they are cut, and damage has a name."""

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.runtime.limits import BOOKIE_FRAME_BYTES_MAX
from quire.wire import block
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
    SimpleResponse,
    Status,
    WriteLacRequest,
)
from quire.wire.bookie_codec import (
    AddResponse,
    BookieFrame,
    BookieFrameCutter,
    BookieFrameError,
    Request,
    Response,
    encode,
)
from quire.wire.frame_buffer import READ_BUFFER_BYTES_MIN

u64 = st.integers(0, (1 << 64) - 1)
i64 = st.integers(-1, (1 << 63) - 1)
bookies = st.builds(BookieId, uuid=st.uuids().map(str), incarnation=u64)
statuses = st.sampled_from([s for s in Status if s is not Status.UNREACHABLE])
blocks = st.lists(st.binary(max_size=300), max_size=5)
details = st.text(max_size=50)
bodies: st.SearchStrategy[Request | Response] = st.one_of(
    st.builds(AddRequest, bookies, blocks, st.booleans()),
    st.builds(ReadRequest, bookies, u64, u64, st.integers(0, (1 << 32) - 1), st.booleans()),
    st.builds(WriteLacRequest, bookies, u64, i64),
    st.builds(DeleteRequest, bookies, u64, i64),
    st.builds(FindTimeRequest, bookies, u64, i64),
    st.builds(LedgerInfoRequest, bookies, u64),
    st.builds(FindHoleRequest, bookies, u64, u64, u64),
    st.builds(ListLedgersRequest, bookies, u64, st.integers(0, (1 << 32) - 1)),
    st.builds(LedgerList, statuses, st.lists(u64, max_size=20), st.lists(u64, max_size=5)),
    st.builds(AddResponse, st.lists(statuses, max_size=20)),
    st.builds(ReadResponse, statuses, i64, blocks, details),
    st.builds(SimpleResponse, statuses, i64, details),
    st.builds(LedgerInfo, statuses, i64, i64, st.booleans(), st.booleans(), u64),
)
frames = st.builds(BookieFrame, u64, bodies)


def encoded(frame: BookieFrame) -> bytes:
    return b"".join(encode(*frame))


@given(st.lists(frames, max_size=8), st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_any_cut_of_a_stream_gives_the_same_frames(sent: list[BookieFrame], sizes: list[int]) -> None:
    stream = b"".join(map(encoded, sent))
    cutter = BookieFrameCutter()
    got: list[BookieFrame] = []
    at = i = 0
    while at < len(stream):
        got += cutter.feed(stream[at : at + sizes[i % len(sizes)]])
        at += sizes[i % len(sizes)]
        i += 1
    assert got == sent
    assert cutter.pending_bytes == 0


@settings(max_examples=300)
@given(frames, st.data())
def test_a_flipped_bit_outside_the_blocks_is_never_accepted(frame: BookieFrame, data: st.DataObject) -> None:
    head, *rest = encode(*frame)
    position = data.draw(st.integers(0, 8 * len(head) - 1))
    damaged = bytearray(head)
    damaged[position // 8] ^= 1 << position % 8
    cutter = BookieFrameCutter()
    try:
        assert cutter.feed(bytes(damaged) + b"".join(rest)) == []
    except BookieFrameError:
        pass
    assert cutter.buffer_bytes == READ_BUFFER_BYTES_MIN


@given(st.binary(max_size=200))
def test_garbage_is_refused_by_name(garbage: bytes) -> None:
    with pytest.raises(BookieFrameError):
        BookieFrameCutter().feed(pack(">I", len(garbage)) + garbage)


@given(st.binary(min_size=24, max_size=200), st.integers(0, 200), st.integers(1, 7), st.booleans())
def test_garbage_behind_a_right_checksum_is_refused_or_valid(
    rest: bytes, tail_size: int, kind: int, answer: bool
) -> None:
    head_size = max(12, len(rest) - tail_size)
    head = bytearray(rest[:head_size])
    head[0], head[1], head[3] = 1, kind | answer << 7, head[3] % 13
    sizes = pack(">II", 8 + len(rest), head_size)
    frame = sizes + pack(">I", block.crc32c(bytes(head), block.crc32c(sizes))) + head + rest[head_size:]
    try:
        (got,) = BookieFrameCutter().feed(frame)
    except BookieFrameError:
        return
    # Flags that a kind does not have are the only thing not kept.
    assert len(encoded(got)) == len(frame)


@pytest.mark.parametrize("length", [BOOKIE_FRAME_BYTES_MAX - 3, 0xFFFFFFFF])
def test_an_oversized_frame_is_refused_at_its_size(length: int) -> None:
    with pytest.raises(BookieFrameError):
        BookieFrameCutter().feed(pack(">I", length))


def test_an_unreachable_bookie_cannot_say_so() -> None:
    (frame,) = encode(1, AddResponse([Status.UNREACHABLE]))
    with pytest.raises(BookieFrameError):
        BookieFrameCutter().feed(frame)


def test_blocks_are_not_copied_by_encoding_and_stay_whole() -> None:
    cut = block.cut(7, 3, 2, 1_000, 50, [b"entry one", b"entry two"])
    buffers = encode(5, AddRequest(BookieId("b", 1), [cut, cut], is_sealed_here=True))
    assert buffers[1] is cut and buffers[2] is cut
    (frame,) = BookieFrameCutter().feed(b"".join(buffers))
    assert isinstance(frame.body, AddRequest) and not frame.body.is_sealed_here
    assert [block.verify(b).first_entry for b in frame.body.blocks] == [3, 3]


def test_a_long_detail_is_cut_at_a_character() -> None:
    (frame,) = BookieFrameCutter().feed(b"".join(encode(1, SimpleResponse(Status.IO_ERROR, -1, "é" * 2_000))))
    assert isinstance(frame.body, SimpleResponse)
    assert frame.body.detail == "é" * 500
