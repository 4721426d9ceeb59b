"""The targets by name, and what a search for each begins with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import OctKey

from quire.bookie import journal_core
from quire.bookie.entry_record import HEADER_BYTES as RECORD_HEADER_BYTES
from quire.bookie.entry_record import seal
from quire.bookie.journal_core import Control, ControlKind
from quire.metadata.records import (
    BookieRecord,
    Fragment,
    LedgerRecord,
    NamespaceRecord,
    Policies,
    TenantRecord,
    encode,
)
from quire.runtime.disk import PAGE_BYTES, pages_up
from quire.tiering.segment_object import SegmentBuilder
from quire.wire import block, bookie_codec, commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.bookie import AddRequest, BookieId, ReadRequest, ReadResponse, Status
from quire.wire.bookie_codec import AddResponse
from tests.frames import with_entry
from tests.fuzz.admin import admin, records
from tests.fuzz.blocks import HEADER, archive, blocks, entry_log, journal
from tests.fuzz.frames import bookie_frames, frames
from tests.fuzz.handshake import handshake
from tests.fuzz.security import SECRET, login

CORPUS = Path(__file__).with_name("corpus")

TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": frames,
    "bookie_frames": bookie_frames,
    "blocks": blocks,
    "journal": journal,
    "entry_log": entry_log,
    "archive": archive,
    "admin": admin,
    "records": records,
    "login": login,
    "handshake": handshake,
}


def corpus(name: str) -> dict[str, bytes]:
    """Inputs that are kept, by file name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).glob("*"))}


def seeds(name: str) -> list[bytes]:
    """Inputs that are as they should be."""
    return _SEEDS[name]()


def _block(first: int = 0, count: int = 3, ledger_id: int = 5) -> bytes:
    entries = [b"entry %d" % entry for entry in range(first, first + count)]
    return bytes(block.cut(ledger_id, first, first - 1, 1000 + first, first, entries))


def _frames() -> list[bytes]:
    one = message.encode_one(message.OutgoingMessage(b"payload", key="k", properties={"a": "b"}), "p", 1, 2)
    many = [message.OutgoingMessage(b"%d" % n, key="k") for n in range(3)]
    whole = [
        commands.PING,
        commands.connect("client", "", b"", ""),
        commands.ask_lookup(1, "persistent://public/default/t"),
        commands.flow(1, 1000),
        commands.seek(1, 2, publish_time_ms=5),
        commands.close_producer(1, 2),
    ]
    for entry in (one, *(message.encode_batch(many, "p", 1, 2, codec) for codec in (0, 1, 2, 3, 4))):
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id, command.send.num_messages = 3, 9, 3
        whole.append(with_entry(command, entry))
    return [bytes([mode, 7]) + each for mode in (0, 1) for each in (*whole, b"".join(whole))]


def _bookie_frames() -> list[bytes]:
    bookie = BookieId("a-bookie", 1)
    bodies: tuple[bookie_codec.AnyRequest | bookie_codec.Response, ...] = (
        AddRequest(bookie, [_block(), _block(3)]),
        ReadRequest(bookie, 5, 0, 1000, fence=True),
        ReadResponse(Status.OK, 2, [_block()]),
        ReadResponse(Status.IO_ERROR, detail="a file"),
        AddResponse([Status.OK, Status.FENCED]),
    )
    return [
        b"\1\7" + b"".join(map(bytes, bookie_codec.encode(number, body)))
        for number, body in enumerate(bodies)
    ]


def _blocks() -> list[bytes]:
    return [b"\0" + _block(), b"\1" + _block(count=1) + _block(1), b"\1" + _block()]


def _journal() -> list[bytes]:
    controls = [
        Control(ControlKind.FENCE, 5),
        Control(ControlKind.LAC, 5, 2),
        Control(ControlKind.TOMBSTONE, 5, 1),
    ]
    body = _block() + b"".join(map(journal_core.encode_control, controls))
    made = b""
    for number in (7, 8):
        length = journal_core.GROUP_HEADER_BYTES + len(body)
        group = journal_core._GROUP.pack(journal_core.GROUP_MAGIC, 0, length, 0, HEADER.epoch, number) + body
        made += group + bytes(pages_up(length) - length)
    return [b"\1" + made, b"\0" + journal_core.encode_segment_header(HEADER), b"\0" + made]


def _entry_log() -> list[bytes]:
    made = b""
    for number in range(2):
        record = bytearray(PAGE_BYTES)
        payload = _block(3 * number) + _block(0, 1, ledger_id=6 + number)
        record[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + len(payload)] = payload
        seal(memoryview(record), RECORD_HEADER_BYTES + len(payload), 1, number, (1, 0))
        made += bytes(record)
    return [b"\0" + made, b"\1" + made, b"\1" + made[:PAGE_BYTES] + bytes(PAGE_BYTES) + made[PAGE_BYTES:]]


def _archive() -> list[bytes]:
    builder = SegmentBuilder(5)
    body = b"".join(_block(3 * number) for number in range(4))
    for number in range(4):
        builder.add(_block(3 * number))
    _, tail = builder.finish()
    return [b"\0" + body + tail, b"\1" + body + tail]


def _admin() -> list[bytes]:
    return [
        b'{"retentionTimeInMinutes": 10, "retentionSizeInMB": -1}',
        b'{"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}',
        b'{"limit": 10, "limitSize": 20, "limitTime": 30, "policy": "producer_exception"}',
        b'{"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 6}',
        b'{"active": true, "tickTime": 1000, "maxDeliveryDelayInMillis": 5}',
        b'{"allowAutoTopicCreation": false}',
        b'{"adminRoles": ["a"], "allowedClusters": ["b", 1, null]}',
        b'{"ledgerId": 1, "entryId": 18446744073709551615}',
        b"true",
        b"3600",
        b'"12"',
        b'"earliest"',
        b'"\\ud800"',
        b'{"adminRoles": ["\\udfff"]}',
        b"[1e400, NaN]",
    ]


def _records() -> list[bytes]:
    made = (
        LedgerRecord(
            ledger_id=5, fragments=(Fragment(first_entry=0, bookies=("a:1", "b:1")),), purpose="topic:x"
        ),
        NamespaceRecord(
            tenant="t", name="n", policies=Policies(message_ttl_ms=5, permissions={"r": ("produce",)})
        ),
        TenantRecord(name="t", allowed_clusters=("c",)),
        BookieRecord(uuid="a", incarnation=1, rack="r"),
    )
    return [*map(encode, made), b'{"name": "\xff"}', b"[" * 5000]


def _login() -> list[bytes]:
    key = OctKey.import_key(SECRET)
    claims = (
        {"sub": "app"},
        {"sub": "app", "exp": 1 << 40},
        {"sub": "a/b"},
        {"iss": "https://issuer.example"},
    )
    tokens = [jwt.encode({"alg": "HS256"}, one, key).encode() for one in claims]
    return [*(b"\0" + one for one in tokens), b"\1app:secret", b"\2", b"\3", b"\0e30.e30.", b"\0Basic YTpi"]


def _handshake() -> list[bytes]:
    """Right and wrong ones, whole and in pieces, and what may come before and after."""
    right, *others = (one[1:] for one in _login() if one[:1] == b"\0")
    shown = [commands.connect("client", "token", one) for one in (right, *others)]
    gateway = jwt.encode({"alg": "HS256"}, {"sub": "gateway"}, OctKey.import_key(SECRET)).encode()
    for original in ("app", "a/b", "gateway"):
        command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        command.connect.client_version, command.connect.auth_method_name = "client", "token"
        command.connect.auth_data, command.connect.original_principal = gateway, original
        shown.append(commands.frame(command))
    shown += [commands.connect("client", method, b"x") for method in ("", "none", "basic", "tls", "\0")]
    shown += [
        shown[0] + shown[0],
        commands.PING + shown[0],
        shown[0] + commands.PING,
        b"\0\0\0",
        b"GET / HTTP",
    ]
    shown += [
        shown[0] + commands.auth_response("client", "token", gateway),
        shown[0] + commands.ask_lookup(1, "persistent://public/default/t"),
        commands.ask_lookup(1, "persistent://public/default/t") + shown[0],
    ]
    return [bytes([pieces]) + one for pieces in (255, 6) for one in shown]


_SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "frames": _frames,
    "bookie_frames": _bookie_frames,
    "blocks": _blocks,
    "journal": _journal,
    "entry_log": _entry_log,
    "archive": _archive,
    "admin": _admin,
    "records": _records,
    "login": _login,
    "handshake": _handshake,
}
