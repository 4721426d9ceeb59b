"""Encoder of the frames that are sent for each entry: SEND_RECEIPT to its producer, MESSAGE headers to its consumers.

    MESSAGE: total size (u32) | command size (u32) | CommandMessage | broker entry metadata? | the entry, unchanged

    offset size  broker entry metadata    only for clients that requested it
         0    2  magic                    0x0e02
         2    4  size                     of what follows, u32 big-endian
         6       BrokerEntryMetadata      protobuf: the broker's time, and the index of the entry's last message

Frames for runs of entries are built without protobuf. A receipt copies the encoded producer id and sequence id from the
SEND, where they have the same tags. Receipts and headers look up the last seven bits of the entry id in a table: in a
run of consecutive entries, all other bytes are constant over 128 entries. `message_header` is for entries with fields
that a run does not have.
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final

from quire.wire import pulsar_pb2 as pb
from quire.wire import varint

_SIZES: Final = Struct(">II")
_U32: Final = Struct(">I")
FEW: Final = 6
"""Maximum number of receipts for which it is faster to build each one separately."""

_join: Final = b"".join
_LAST: Final = varint.LAST

# A head is the bytes `08 producer 10 sequence` of a SEND: at most 22, with the message id fewer than 64.
_RECEIPT_PREFIXES: Final = tuple(_SIZES.pack(n + 8, n + 4) + b"\x08\x07\x3a%c" % n for n in range(64))


def _chunks(first_entry: int, count: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield runs of entry ids that share all but their last seven bits: (first, end, varint of the higher bits)."""
    end = first_entry + count
    while first_entry < end:
        stop = min(end, (first_entry | 127) + 1)
        high = first_entry >> 7
        yield first_entry, stop, varint.encode(high) if high else b""
        first_entry = stop


def _low_bytes(first: int, stop: int) -> Sequence[bytes]:
    """Return the first byte of the varint of each of `first` .. `stop`-1, which share all higher bits."""
    table = varint.MORE if first >> 7 else varint.LAST
    low = first & 127
    return table[low : low + stop - first]


_ID_PREFIXES: Final = tuple(b"\x1a%c" % n for n in range(32))


def ledger_field(ledger_id: int) -> bytes:
    """Encode the bytes with which all message ids of a ledger begin: the ledger id, and the tag of the entry id."""
    return b"\x08" + varint.encode(ledger_id) + b"\x10"


def receipts(ledger: bytes, first_entry: int, heads: Sequence[bytes]) -> bytes:
    """Build the frames of `receipt_run` as one buffer, in the way that is faster for their number (see `FEW`)."""
    if len(heads) <= FEW:
        return _join([receipt(ledger, entry_id, head) for entry_id, head in enumerate(heads, first_entry)])
    return _join(receipt_run(ledger, first_entry, heads))


def receipt(ledger: bytes, entry_id: int, head: bytes) -> bytes:
    """Build one SEND_RECEIPT; for blocks of few entries, this is the fast way. `ledger` is a `ledger_field`."""
    entry = _LAST[entry_id] if entry_id < 128 else varint.encode(entry_id)
    id_bytes = len(ledger) + len(entry)
    return _join((_RECEIPT_PREFIXES[2 + id_bytes + len(head)], head, _ID_PREFIXES[id_bytes], ledger, entry))


def receipt_run(ledger: bytes, first_entry: int, heads: Sequence[bytes]) -> list[bytes]:
    """Build a SEND_RECEIPT for each of `heads`, whose entries are consecutive from `first_entry` on.

    A head is the bytes `08 producer-id 10 sequence-id` of the SEND (`SendRun.heads`); `ledger` is a `ledger_field`.
    """
    receipts: list[bytes] = []
    at = 0
    for first, stop, high in _chunks(first_entry, len(heads)):
        id_bytes = len(ledger) + 1 + len(high)
        middle = b"\x1a%c" % id_bytes + ledger
        prefixes = _RECEIPT_PREFIXES[2 + id_bytes :]
        here = heads[at : at + stop - first]
        receipts += [
            _join((prefixes[len(head)], head, middle, low, high))
            for head, low in zip(here, _low_bytes(first, stop), strict=True)
        ]
        at += stop - first
    return receipts


def message_headers(
    consumer_id: int,
    ledger_id: int,
    partition: int,
    first_entry: int,
    entry_lengths: Sequence[int],
    redelivery_count: int = 0,
) -> list[bytes]:
    """Build the MESSAGE headers of consecutive entries; the caller sends [header, entry, ...].

    `entry_lengths` are in bytes; `partition` is -1 for an unpartitioned topic.
    """
    headers: list[bytes] = []
    consumer = b"\x08" + varint.encode(consumer_id) + b"\x12"
    ledger = ledger_field(ledger_id)
    partition_field = b"\x18" + varint.encode(partition) if partition >= 0 else b""
    redelivery = b"\x18" + varint.encode(redelivery_count) if redelivery_count else b""
    pack = _U32.pack
    at = 0
    for first, stop, high in _chunks(first_entry, len(entry_lengths)):
        id_bytes = len(ledger) + 1 + len(high) + len(partition_field)
        body_bytes = len(consumer) + 1 + id_bytes + len(redelivery)
        before = (
            _U32.pack(body_bytes + 4) + b"\x08\x09\x4a%c" % body_bytes + consumer + b"%c" % id_bytes + ledger
        )
        after = high + partition_field + redelivery
        fixed = body_bytes + 8
        here = entry_lengths[at : at + stop - first]
        headers += [
            _join((pack(fixed + length), before, low, after))
            for length, low in zip(here, _low_bytes(first, stop), strict=True)
        ]
        at += stop - first
    return headers


def scattered_message_headers(
    consumer_id: int,
    ledger_id: int,
    partition: int,
    entry_ids: Sequence[int],
    entry_lengths: Sequence[int],
    redelivery_count: int = 0,
) -> list[bytes]:
    """Build the headers of `message_headers` for entries that are not consecutive."""
    consumer = b"\x08" + varint.encode(consumer_id) + b"\x12"
    ledger = ledger_field(ledger_id)
    partition_field = b"\x18" + varint.encode(partition) if partition >= 0 else b""
    ending = partition_field + (b"\x18" + varint.encode(redelivery_count) if redelivery_count else b"")
    headers: list[bytes] = []
    pack, high, after = _U32.pack, -1, b""
    for entry_id, length in zip(entry_ids, entry_lengths, strict=True):
        if entry_id >> 7 != high:
            high = entry_id >> 7
            after = (varint.encode(high) if high else b"") + ending
            id_bytes = len(ledger) + 1 + len(after) - len(ending) + len(partition_field)
            body_bytes = len(consumer) + 1 + len(ledger) + 1 + len(after)
            before = (
                pack(body_bytes + 4) + b"\x08\x09\x4a%c" % body_bytes + consumer + b"%c" % id_bytes + ledger
            )
            table = varint.MORE if high else varint.LAST
        headers.append(_join((pack(body_bytes + 8 + length), before, table[entry_id & 127], after)))
    return headers


def message_header(
    consumer_id: int,
    ids: pb.MessageIdData,
    entry_length: int,
    redelivery_count: int = 0,
    ack_set: Iterable[int] = (),
    entry_metadata: bytes = b"",
) -> bytes:
    """Build the header of one MESSAGE, with fields that a run does not have.

    `ack_set`: signed 64-bit words; a set bit marks a message of the batch to deliver. `entry_metadata`: the result of
    `broker_entry_metadata`, only for clients that requested it.
    """
    body = pb.CommandMessage(consumer_id=consumer_id, message_id=ids, ack_set=ack_set)
    if redelivery_count:
        body.redelivery_count = redelivery_count
    raw = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=body).SerializeToString()
    size = len(raw) + 4 + len(entry_metadata) + entry_length
    return _SIZES.pack(size, len(raw)) + raw + entry_metadata


def broker_entry_metadata(broker_time_ms: int, indexes: Iterable[int]) -> list[bytes]:
    """Build the 0x0e02 prefixes of entries: magic, size (u32), the broker's time, and the message index.

    `indexes` contains the index of each entry's last message; in a batch, clients count back from it.
    """
    time = b"\x08" + varint.encode(broker_time_ms) + b"\x10"
    numbers = [varint.encode(index) for index in indexes]
    return [b"\x0e\x02" + _U32.pack(len(time) + len(number)) + time + number for number in numbers]
