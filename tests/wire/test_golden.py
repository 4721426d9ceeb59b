"""Golden bytes: what the wire's formats look like, byte for byte, in tests/data/wire.txt.

A change here is a change of format. What we build is rewritten by `QUIRE_REWRITE_GOLDEN=1 pytest
tests/wire/test_golden.py` and reviewed as a diff; the cases named `stock ...` were recorded from the stock C++
client 4.2 and are never rewritten.
"""

import pytest

from quire.wire import block, commands, entry_frames, message
from quire.wire import pulsar_pb2 as pb
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
from quire.wire.bookie_codec import AddResponse, AnyRequest, BookieFrameCutter, Response, encode
from quire.wire.commands import Command
from quire.wire.frame import FrameCutter, SendRun
from quire.wire.message import OutgoingMessage
from tests import golden

FILE = "wire.txt"

ENTRY = message.encode_one(
    OutgoingMessage(b"hello", "key", {"a": "b"}, 5), "producer", 300, 1_700_000_000_000
)
BATCH = message.encode_batch([OutgoingMessage(b"one", "k"), OutgoingMessage(None)], "producer", 7, 1_000)
BLOCK = bytes(block.cut(9, 128, 127, 1_700_000_000_000, 4_000, [ENTRY, BATCH], [1, 2]))
BOOKIE = BookieId("5f0c0a5e-0000-4000-8000-000000000001", 3)
BODIES: dict[str, AnyRequest | Response] = {
    "add": AddRequest(BOOKIE, [BLOCK], recovery=True),
    "add of priority": AddRequest(BOOKIE, [BLOCK], priority=True),
    "read": ReadRequest(BOOKIE, 9, 128, 65_536, fence=True),
    "write lac": WriteLacRequest(BOOKIE, 9, 129),
    "delete": DeleteRequest(BOOKIE, 9, 4),
    "find time": FindTimeRequest(BOOKIE, 9, 1_700_000_000_000),
    "find hole": FindHoleRequest(BOOKIE, 9, 128, 1_000),
    "ledger info": LedgerInfoRequest(BOOKIE, 9),
    "list ledgers": ListLedgersRequest(BOOKIE, 9, 1_000),
    "add answer": AddResponse([Status.OK, Status.FENCED]),
    "read answer": ReadResponse(Status.OK, 127, [BLOCK], "detail"),
    "simple answer": SimpleResponse(Status.IO_ERROR, -1, "file and offset"),
    "ledger info answer": LedgerInfo(Status.OK, 129, 127, fenced=True, flushed=False, bytes=len(BLOCK)),
    "list answer": LedgerList(Status.OK, [9, 11, 9 | 1 << 62], [11]),
}
HEADS = [b"\x08\x01\x10\x05", b"\x08\xac\x02\x10\x80\x80\x01"]

BUILT: dict[str, bytes] = {
    "frame connected": commands.connected("Quire", 21, 5 << 20),
    "frame pong": commands.PONG,
    "frame send": b"".join(commands.send(1, 300, 1, ENTRY)),
    "frame send batch": b"".join(commands.send(300, 7, 2, BATCH, 8)),
    "frame receipts": b"".join(entry_frames.receipt_run(entry_frames.ledger_field(9), 127, HEADS)),
    "frame message": b"".join(entry_frames.message_headers(2, 9, 1, 128, [len(ENTRY)], 3)) + ENTRY,
    "entry one": ENTRY,
    "entry batch": BATCH,
    "block": BLOCK,
    "block of one": bytes(block.cut(9, 130, 129, 1_700_000_000_000, 4_003, [ENTRY])),
    **{f"bookie {name}": b"".join(encode(0x0102030405060708, body)) for name, body in BODIES.items()},
}


if golden.REWRITE:
    golden.save(
        FILE, {name: raw for name, raw in golden.load(FILE).items() if name.startswith("stock")} | BUILT
    )
GOLDEN = golden.load(FILE)


def test_the_file_holds_exactly_these_cases() -> None:
    assert {name for name in GOLDEN if not name.startswith("stock")} == set(BUILT)


@pytest.mark.parametrize("name", BUILT)
def test_what_we_build_has_not_changed(name: str) -> None:
    assert BUILT[name] == GOLDEN[name]


@pytest.mark.parametrize("name", BODIES)
def test_bookie_frames_read_back(name: str) -> None:
    (frame,) = BookieFrameCutter().feed(GOLDEN[f"bookie {name}"])
    assert frame == (0x0102030405060708, BODIES[name])


def test_blocks_and_entries_read_back() -> None:
    header = block.verify(GOLDEN["block"])
    assert (header.ledger_id, header.first_entry, header.lac, header.first_index) == (9, 128, 127, 4_000)
    first, second = block.entries(GOLDEN["block"], header)
    (one,) = message.decode(first)
    assert (one.payload, one.key, one.properties, one.sequence_id) == (b"hello", "key", {"a": "b"}, 300)
    assert [m.payload for m in message.decode(second)] == [b"one", None]


def test_the_stock_clients_connect() -> None:
    (connect,) = FrameCutter().feed(GOLDEN["stock connect"])
    assert isinstance(connect, Command) and isinstance(connect.body, pb.CommandConnect)
    assert connect.body.client_version == "Pulsar-CPP-v4.2.0"
    assert connect.body.protocol_version == 20
    assert connect.body.feature_flags.supports_auth_refresh


def test_the_stock_clients_send() -> None:
    cutter = FrameCutter()
    (run,) = cutter.feed(GOLDEN["stock send"])
    assert isinstance(run, SendRun)
    assert cutter.fast_sends == 1
    (one,) = message.decode(run.entries[0])
    assert (one.payload, one.key, one.properties) == (b"hello stock", "key", {"a": "b"})


@pytest.mark.parametrize("codec", ["lz4", "zlib", "zstd", "snappy"])
def test_the_stock_clients_batches(codec: str) -> None:
    cutter = FrameCutter()
    (run,) = cutter.feed(GOLDEN[f"stock send batch {codec}"])
    assert isinstance(run, SendRun)
    assert (cutter.fast_sends, run.counts) == (1, [3])
    assert [m.payload for m in message.decode(run.entries[0])] == [b"batched %d" % i for i in range(3)]
