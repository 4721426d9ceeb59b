"""The cutter: every cut of a stream gives the same commands, the fast tier is taken, damage has a name."""

from operator import itemgetter
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.runtime.errors import ProtocolError
from quire.runtime.limits import FRAME_BYTES_MAX
from quire.wire import commands, entry_frames, message, varint
from quire.wire import pulsar_pb2 as pb
from quire.wire.checksum import crc32c
from quire.wire.commands import Command
from quire.wire.frame import Delivery, FrameCutter, FrameError, Send, SendRun
from quire.wire.frame_buffer import READ_BUFFER_BYTES_MAX, READ_BUFFER_BYTES_MIN
from quire.wire.message import OutgoingMessage
from tests.frames import with_entry


def entry(payload: bytes) -> bytes:
    body = pack(">I", 0) + payload
    return b"\x0e\x01" + pack(">I", crc32c(body)) + body


def plain(producer: int, sequence: int, payload: bytes) -> bytes:
    return b"".join(commands.send(producer, sequence, 1, entry(payload)))


def flat(cuts: list[Any]) -> list[Any]:
    """The cuts without the borders of runs, and the order of different producers' runs that follow one another: both
    depend on how the stream was read.
    """
    result: list[Any] = []
    sends: list[Any] = []
    for cut in cuts:
        if isinstance(cut, SendRun):
            counts = cut.counts or [1] * len(cut)
            ids = cut.sequence_ids()
            sends += zip([cut.producer_id] * len(cut), cut.heads, cut.entries, counts, ids, strict=True)
            continue
        result += sorted(sends, key=itemgetter(0))
        sends = []
        if isinstance(cut, Delivery):
            result.append((cut.body.SerializeToString(), *cut[1:3], str(cut.broker_metadata)))
        elif isinstance(cut, Send):
            result.append(cut)
        else:
            result.append((cut.kind, cut.body.SerializeToString()))
    return result + sorted(sends, key=itemgetter(0))


def cut_in(stream: bytes, sizes: list[int]) -> list[Any]:
    """What comes out when the stream is read in pieces of `sizes`, over and over."""
    cutter = FrameCutter()
    cuts: list[Any] = []
    at = i = 0
    while at < len(stream):
        size = sizes[i % len(sizes)]
        cuts += cutter.feed(stream[at : at + size])
        at += size
        i += 1
    assert cutter.pending_bytes == 0
    return flat(cuts)


ids = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1))
payloads = st.binary(max_size=200)


@st.composite
def one_frame(draw: st.DrawFn) -> bytes:
    kind = draw(st.integers(0, 6))
    body = entry(draw(payloads))
    if kind <= 1:
        return b"".join(commands.send(draw(st.integers(0, 2)), draw(ids), 1, body))
    if kind == 2:
        return b"".join(commands.send(draw(ids), draw(ids), draw(st.integers(1, 1000)), body, draw(ids)))
    if kind == 3:
        return commands.flow(draw(ids), draw(st.integers(0, 1000)))
    if kind == 4:
        at = commands.message_id(draw(ids), draw(ids))
        prefix = entry_frames.broker_entry_metadata(5, [6])[0] if draw(st.booleans()) else b""
        return entry_frames.message_header(draw(ids), at, len(body), entry_metadata=prefix) + body
    if kind == 5:
        return commands.ack(draw(ids), [commands.message_id(draw(ids), draw(ids), ack_set=[-1, 3])])
    chunk = pb.CommandSend(producer_id=draw(ids), sequence_id=draw(ids), is_chunk=True)
    return with_entry(pb.BaseCommand(type=pb.BaseCommand.SEND, send=chunk), body)


streams = st.lists(one_frame(), min_size=1, max_size=30).map(b"".join)


@given(streams, st.lists(st.integers(1, 400), min_size=1, max_size=10))
def test_any_cut_of_a_stream_into_reads_gives_the_same_commands(stream: bytes, sizes: list[int]) -> None:
    assert cut_in(stream, sizes) == cut_in(stream, [len(stream)])


@settings(max_examples=300)
@given(streams, st.data())
def test_a_flipped_bit_is_refused_by_name_or_gives_a_valid_command(
    stream: bytes, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, 8 * len(stream) - 1))
    damaged = bytearray(stream)
    damaged[position // 8] ^= 1 << position % 8
    cutter = FrameCutter()
    try:
        flat(cutter.feed(damaged))
    except ProtocolError:
        pass
    assert cutter.buffer_bytes <= FRAME_BYTES_MAX


@given(st.binary(max_size=300))
def test_garbage_is_refused_by_name(garbage: bytes) -> None:
    cutter = FrameCutter()
    try:
        cutter.feed(garbage)
    except ProtocolError:
        pass
    assert cutter.buffer_bytes == READ_BUFFER_BYTES_MIN


@given(st.binary(max_size=60))
def test_a_garbage_command_is_refused_by_name(garbage: bytes) -> None:
    try:
        flat(FrameCutter().feed(pack(">II", len(garbage) + 4, len(garbage)) + garbage))
    except ProtocolError:
        pass


@pytest.mark.parametrize("producer_bytes", range(1, 6))
@pytest.mark.parametrize("sequence_bytes", range(1, 11))
def test_plain_sends_take_the_fast_tier(producer_bytes: int, sequence_bytes: int) -> None:
    producer, sequence = (1 << 7 * producer_bytes) - 1, min((1 << 7 * sequence_bytes) - 1, (1 << 64) - 1)
    cutter = FrameCutter()
    (run,) = cutter.feed(plain(producer, sequence - 1, b"payload") + plain(producer, sequence, b"payload"))
    assert isinstance(run, SendRun)
    assert run.producer_id == producer
    assert run.sequence_ids() == [(sequence - 1, sequence - 1), (sequence, sequence)]
    assert run.entries == [entry(b"payload")] * 2
    assert run.counts is None
    fast = 2 if producer_bytes + sequence_bytes <= 14 else 0
    assert (cutter.fast_sends, cutter.slow_sends) == (fast, 2 - fast)


def test_the_fast_tier_holds_over_every_growth_of_the_sequence_id() -> None:
    borders = [1 << 7 * n for n in range(1, 10)]
    sequences = [border + i for border in borders for i in (-1, 0, 1)]
    cutter = FrameCutter()
    (run,) = cutter.feed(b"".join(plain(300, s, b"x" * 20) for s in sequences))
    assert isinstance(run, SendRun)
    assert [low for low, _ in run.sequence_ids()] == sequences
    assert (cutter.fast_sends, cutter.slow_sends) == (len(sequences), 0)


def test_the_heads_of_a_run_become_its_receipts() -> None:
    (run,) = FrameCutter().feed(b"".join(plain(9, s, b"x" * 20) for s in range(100, 400)))
    assert isinstance(run, SendRun)
    receipts = entry_frames.receipt_run(entry_frames.ledger_field(7), 90, run.heads)
    for i, command in enumerate(FrameCutter().feed(b"".join(receipts))):
        body = command.body  # type: ignore[union-attr]
        assert isinstance(body, pb.CommandSendReceipt)
        assert (body.producer_id, body.sequence_id) == (9, 100 + i)
        assert (body.message_id.ledgerId, body.message_id.entryId) == (7, 90 + i)


def test_a_batch_counts_its_messages_and_joins_the_run() -> None:
    stream = (
        plain(1, 5, b"a" * 9) + b"".join(commands.send(1, 6, 10, entry(b"b"), 15)) + plain(1, 16, b"c" * 9)
    )
    cutter = FrameCutter()
    (run,) = cutter.feed(stream)
    assert isinstance(run, SendRun)
    assert run.counts == [1, 10, 1]
    assert run.sequence_ids() == [(5, 5), (6, 15), (16, 16)]
    assert (cutter.fast_sends, cutter.slow_sends) == (3, 0)


@pytest.mark.parametrize("producer", [1, 300, 70_000])
@pytest.mark.parametrize("sequence", [1, 300, 5_000_000, 1 << 41])
@pytest.mark.parametrize("count", [2, 127, 1_000])
@pytest.mark.parametrize("tells_highest", [False, True])
def test_batches_take_the_fast_tier_and_their_runs_survive_other_producers(
    producer: int, sequence: int, count: int, tells_highest: bool
) -> None:
    firsts = range(sequence, sequence + 3 * count, count)
    stream = b"".join(
        b"".join(commands.send(each, first, count, entry(b"b"), first + count - 1 if tells_highest else 0))
        for first in firsts
        for each in (producer, producer + 1)
    )
    cutter = FrameCutter()
    runs = cutter.feed(stream + plain(producer, 7, b"c" * 20))
    assert [len(run) for run in runs if isinstance(run, SendRun)] == [4, 3] and len(runs) == 2
    first_run = runs[0]
    assert isinstance(first_run, SendRun)
    assert first_run.counts == [count] * 3 + [1]
    assert first_run.sequence_ids() == [
        (first, first + count - 1 if tells_highest else first) for first in firsts
    ] + [(7, 7)]
    assert (cutter.fast_sends, cutter.slow_sends) == (7, 0)


def test_a_send_that_tells_anything_else_is_left_to_the_parser() -> None:
    body = pb.CommandSend(producer_id=1, sequence_id=2, num_messages=3, highest_sequence_id=4)
    usual = pb.BaseCommand(type=pb.BaseCommand.SEND, send=body).SerializeToString()
    repeated = b"\x08\x06\x32%c" % (len(usual) - 4 + 2) + usual[4:] + b"\x18\x05"
    cut_short = usual[:-1] + b"\x84"
    cutter = FrameCutter()
    one = entry(b"x" * 20)
    (run,) = cutter.feed(pack(">II", len(repeated) + 4 + len(one), len(repeated)) + repeated + one)
    assert isinstance(run, SendRun) and run.counts == [5] and cutter.slow_sends == 1
    with pytest.raises(commands.CommandError):
        cutter.feed(pack(">II", len(cut_short) + 4 + len(one), len(cut_short)) + cut_short + one)


def test_a_run_survives_sends_of_other_producers_and_ends_with_another_command() -> None:
    first, between, last = plain(1, 127, b"a" * 9), plain(2, 1, b"a" * 9), plain(1, 128, b"a" * 9)
    flow = commands.flow(1, 1)
    cuts = FrameCutter().feed(first + between + last + flow + first)
    runs = [(cut.producer_id, len(cut)) for cut in cuts if isinstance(cut, SendRun)]
    assert runs == [(1, 2), (2, 1), (1, 1)]
    assert isinstance(cuts[0], SendRun) and [low for low, _ in cuts[0].sequence_ids()] == [127, 128]
    assert not isinstance(cuts[2], SendRun)


def test_a_run_keeps_its_order_whatever_the_lengths_of_its_sequence_ids() -> None:
    stream = b"".join(
        plain(producer, sequence, b"a" * 9) for sequence in (5, 200, 7) for producer in (1, 300)
    )
    cuts = FrameCutter().feed(stream)
    orders = {
        cut.producer_id: [low for low, _ in cut.sequence_ids()] for cut in cuts if isinstance(cut, SendRun)
    }
    assert orders == {1: [5, 200, 7], 300: [5, 200, 7]} and len(cuts) == 2


@pytest.mark.parametrize("count", [1, 5])
def test_a_wrong_checksum_is_told_and_breaks_nothing(count: int) -> None:
    damaged = bytearray(entry(b"payload"))
    damaged[-1] ^= 1
    stream = (
        plain(1, 1, b"x" * 9) + b"".join(commands.send(1, 2, count, bytes(damaged))) + plain(1, 3, b"x" * 9)
    )
    first, bad, last = FrameCutter().feed(stream)
    assert isinstance(bad, Send)
    assert (bad.checksum_ok, bad.sequence_id, bad.message_count, bad.entry) == (False, 2, count, damaged)
    assert isinstance(first, SendRun) and isinstance(last, SendRun)


def test_chunks_transactions_and_markers_stand_alone() -> None:
    specials = [
        pb.CommandSend(producer_id=1, sequence_id=2, is_chunk=True),
        pb.CommandSend(producer_id=1, sequence_id=2, txnid_least_bits=7, txnid_most_bits=8),
        pb.CommandSend(producer_id=1, sequence_id=2, marker=True),
    ]
    envelopes = [pb.BaseCommand(type=pb.BaseCommand.SEND, send=body) for body in specials]
    stream = b"".join(with_entry(e, entry(b"x")) for e in envelopes)
    cutter = FrameCutter()
    chunk, in_txn, marker = cutter.feed(stream)
    assert isinstance(chunk, Send) and chunk.is_chunk
    assert isinstance(in_txn, Send) and in_txn.txn == (8, 7)
    assert isinstance(marker, Send) and marker.is_marker
    assert cutter.slow_sends == 3


def test_a_message_with_broker_metadata() -> None:
    body, prefix = entry(b"x"), entry_frames.broker_entry_metadata(123, [456])[0]
    header = entry_frames.message_header(3, commands.message_id(1, 2), len(body), 4, [-2], prefix)
    (delivery,) = FrameCutter().feed(header + body)
    assert isinstance(delivery, Delivery)
    assert delivery.entry == body and delivery.checksum_ok
    assert delivery.broker_metadata is not None
    assert (delivery.broker_metadata.broker_timestamp, delivery.broker_metadata.index) == (123, 456)
    assert delivery.body.redelivery_count == 4 and list(delivery.body.ack_set) == [-2]


def test_the_limit_holds_in_every_tier() -> None:
    for count in (1, 2):
        frame = b"".join(commands.send(1, 2, count, entry(bytes(500))))
        assert len(FrameCutter(len(frame)).feed(frame)) == 1
        with pytest.raises(FrameError):
            FrameCutter(len(frame) - 1).feed(frame)


FLOW = commands.flow(1, 1)


@pytest.mark.parametrize(
    "stream",
    [
        pack(">I", FRAME_BYTES_MAX - 3),
        pack(">I", 0xFFFFFFFF),
        pack(">I", 3),
        pack(">II", 4, 1),
        pack(">II", 8, 0xFFFFFFF0) + b"1234",
        pack(">I", len(FLOW)) + FLOW[4:] + b"tail",
        b"".join(commands.send(1, 2, 1, b"\x0e\x01tooshor")),
        b"".join(commands.send(1, 2, 1, b"\x0e\x03" + entry(b"no magic")[2:])),
        b"".join(commands.send(1, 2, 0, entry(b"no messages"))),
        b"".join(commands.send(1, 2, (1 << 64) - 1, entry(b"minus one message"))),
    ],
)
def test_what_is_no_frame_is_refused(stream: bytes) -> None:
    with pytest.raises(FrameError):
        FrameCutter().feed(stream)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x08\x63",
        b"\x08\x06",
        b"\x08\x06\x32\x02\x08\x01",
        b"\xff\xff",
        b"\x08\x02\x12\x03\x0a\x01\xff",
        b"\x08\x17\xba\x01\x05\x0a\x01\xff\x10\x01",
    ],
    ids=["empty", "unknown", "no body", "no sequence", "no protobuf", "text", "text of a lookup"],
)
def test_what_is_no_command_is_refused(raw: bytes) -> None:
    with pytest.raises(commands.CommandError):
        FrameCutter().feed(pack(">II", len(raw) + 4, len(raw)) + raw)


def test_a_large_frame_is_assembled_in_a_buffer_of_its_size() -> None:
    large = plain(1, 1, bytes(FRAME_BYTES_MAX - 100))
    cutter = FrameCutter()
    cuts: list[Any] = []
    for at in range(0, len(large), 65_536):
        cuts += cutter.feed(large[at : at + 65_536])
        assert cutter.buffer_bytes <= max(READ_BUFFER_BYTES_MAX, 2 * (at + 65_536), 4 * READ_BUFFER_BYTES_MIN)
        assert cutter.buffer_bytes <= len(large) or cutter.buffer_bytes <= READ_BUFFER_BYTES_MAX
    (run,) = cuts
    assert run.entries == [entry(bytes(FRAME_BYTES_MAX - 100))]
    assert cutter.buffer_bytes <= READ_BUFFER_BYTES_MAX
    cutter.rest()
    assert cutter.buffer_bytes == READ_BUFFER_BYTES_MIN


def test_a_claim_alone_allocates_nothing() -> None:
    cutter = FrameCutter()
    cutter.feed(pack(">II", FRAME_BYTES_MAX - 4, 10) + b"12")
    assert cutter.buffer_bytes == READ_BUFFER_BYTES_MIN
    assert len(cutter.get_buffer()) > 0


@given(st.integers(0, (1 << 64) - 1))
def test_varints_come_back(number: int) -> None:
    raw = varint.encode(number)
    assert varint.decode(b"x" + raw + b"y", 1) == (number, 1 + len(raw))


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_who_speaks_http_is_told_so(method: str) -> None:
    with pytest.raises(FrameError, match="the peer speaks HTTP"):
        FrameCutter().feed(f"{method} /admin/v2/clusters HTTP/1.1\r\n\r\n".encode())


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537])
@pytest.mark.parametrize("first", [0, 3, 4, 17, 65_530])
def test_frames_as_large_as_the_room_are_cut_wherever_they_are_parted(size: int, first: int) -> None:
    bare = len(b"".join(commands.send(1, 1, 1, message.encode_one(OutgoingMessage(payload=b""), "p", 1, 1))))
    entry = message.encode_one(OutgoingMessage(payload=b"x" * (size - bare)), "p", 1, 1)
    frame = b"".join(commands.send(1, 1, 1, entry))
    assert len(frame) == size
    for room in (65_536, 262_144):
        cutter = FrameCutter(size, room)
        found = [*cutter.feed((3 * frame)[:first]), *cutter.feed((3 * frame)[first:])]
        assert [bytes(each) for run in found for each in run.entries] == 3 * [entry]
    with pytest.raises(FrameError, match="a frame of"):
        FrameCutter(size - 1, 65_536).feed(frame)


def test_a_large_command_is_cut_alone_and_in_order() -> None:
    cutter = FrameCutter(commands_max=100, command_bytes_at_once=1000)
    large = commands.ack(1, [commands.message_id(1, at) for at in range(500)])
    send = plain(1, 0, b"")
    data = commands.PING + large + large + send + large + send + commands.PING
    portions = []
    for at in range(0, len(data), 5_000):
        room = cutter.get_buffer()
        part = data[at : at + 5_000]
        room[: len(part)] = part
        portions.append(cutter.received(len(part)))
        while cutter.is_behind:
            assert cutter.get_buffer(), "there is room to read to at any time"
            portions.append(cutter.received(0))
    kinds = [
        [type(cut.body).__name__ if isinstance(cut, Command) else "send" for cut in cuts] for cuts in portions
    ]
    ack, ping = "CommandAck", "CommandPing"
    assert [one for one in kinds if one] == [[ping], [ack], [ack, "send"], [ack, "send"], [ping]]
    assert cutter.pending_bytes == 0


def test_many_commands_are_cut_in_portions_and_in_order() -> None:
    cutter = FrameCutter(commands_max=10)
    asked = [commands.ask_topics(number, "t") for number in range(25)]
    acks = [commands.ack(1, [commands.message_id(1, at)]) for at in range(24)]
    data = (
        b"".join(asked[:20])
        + b"".join(acks)
        + b"".join(plain(1, n, b"") for n in range(100))
        + b"".join(asked[20:])
    )
    room = cutter.get_buffer()
    room[: len(data)] = data
    portions = [cutter.received(len(data))]
    while cutter.is_behind:
        assert cutter.get_buffer(), "there is room to read to at any time"
        portions.append(cutter.received(0))
    assert [sum(not isinstance(cut, SendRun) for cut in cuts) for cuts in portions] == [10, 10, 29]
    whole = FrameCutter().feed(data)
    assert flat([cut for cuts in portions for cut in cuts]) == flat(whole)
    assert cutter.pending_bytes == 0
