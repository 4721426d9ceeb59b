"""Frame cutter: bytes from a socket in, runs of SENDs and other commands out. Performs no I/O.

    offset size  field
         0    4  total size       T of what follows, u32 big-endian, at most FRAME_BYTES_MAX - 4
         4    4  command size     C, u32 big-endian
         8    C  BaseCommand      protobuf, see `quire.wire.commands`
       8+C       entry            in SEND and MESSAGE only, up to the end of the frame (4+T):
                   2  magic            0x0e01
                   4  crc              CRC32C over all bytes that follow
                   4  metadata size    M, u32 big-endian
                   M  MessageMetadata  protobuf, see `quire.wire.message`
                      payload          possibly compressed or encrypted
         In MESSAGE, a prefix may precede the magic: 0x0e02, size u32, BrokerEntryMetadata.

Frames are recognized in two tiers.

(a) A SEND with only a producer id and a sequence id, and for a batch its number of messages and its highest
    sequence id, always has these bytes:

         4 C | 08 06 32 C-4 | 08 producer.. 10 sequence.. | (18 count..)? (30 highest..)? | 0e 01 crc ...

    with varints. Two `unpack_from` and one masked comparison per 8 bytes verify the head (`08 producer.. 10
    sequence..`), after which a SEND of one message has no other field. Constants must be equal, and the top bits of the
    varints' bytes determine where each ends. A `_Shape` has the masks for one pair of varint lengths. Within a run, the
    mask also verifies the producer id, so the same comparison recognizes the next entry of the run; SENDs of other
    producers in between do not end the run.
    Producer ids of 1-5 bytes and sequence ids of 1-10 are supported, together up to 14 bytes. The fields of a batch
    after the head are read separately (`_told`).
(b) The protobuf parser reads everything else: chunks, transactions, all other commands, and SENDs that tier (a)
    does not recognize.

`fast_sends` and `slow_sends` count the SENDs of each tier, because tier (b) halves the throughput without any other
sign. An entry is copied once, out of the read buffer, after its checksum was verified in the buffer.

An entry that does not match its checksum was damaged by the client or the network, and does not break the protocol: it
is returned as a `Send` with `checksum_ok` False, for SEND_ERROR ChecksumError. A frame that is too short, too large or
contains no command raises `FrameError` or `CommandError`. Then the connection must be closed, and earlier frames of the
same read are dropped (none was acknowledged).
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple, Self

from google.protobuf.message import DecodeError

from quire.runtime.errors import ProtocolError
from quire.runtime.limits import BATCH_MESSAGES_MAX, COMMAND_BYTES_MAX, FRAME_BYTES_MAX
from quire.wire import pulsar_pb2 as pb
from quire.wire import varint
from quire.wire.checksum import crc32c
from quire.wire.commands import Command, parse
from quire.wire.frame_buffer import READ_BUFFER_BYTES_MAX, FrameBuffer

ENTRY_MAGIC: Final = 0x0E01
BROKER_METADATA_MAGIC: Final = 0x0E02
ENTRY_BYTES_MIN: Final = 10
"""Minimum size of an entry: magic, crc and metadata size."""


_HTTP: Final = frozenset(
    int.from_bytes(start)
    for start in (b"HTTP", b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC")
)
"""First four bytes of HTTP requests and responses, read as the size of a frame."""


class FrameError(ProtocolError):
    """Raised if a frame's sizes contradict each other or a limit, or if an entry is invalid."""


class SendRun:
    """SENDs of one producer without another command in between, all with valid checksums and without special fields.

    See `Send` for other SENDs. SENDs of other producers do not end a run, because there is no order between producers.
    `heads` are the bytes `08 producer-id 10 sequence-id` of each SEND, as `entry_frames.receipt_run` needs them;
    `entries` are the bytes from each entry's magic on.
    """

    __slots__ = ("_highest", "counts", "entries", "heads", "producer_id")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.heads: list[bytes] = []
        self.entries: list[bytes] = []
        self.counts: list[int] | None = None
        """Number of messages of each entry; None if each entry has one message."""
        self._highest: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"SendRun(producer {self.producer_id}, {len(self)} entries)"

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.entries))

    def sequence_ids(self) -> list[tuple[int, int]]:
        """Return (sequence id, highest sequence id) of each SEND.

        Both are equal if the SEND has no highest sequence id.
        """
        lows, highest = list(map(_sequence_id, self.heads)), self._highest or {}
        return [(low, max(low, highest.get(i, 0))) for i, low in enumerate(lows)]

    def pick(self, chosen: range) -> Self:
        """Return a run of the SENDs with the `chosen` indexes."""
        run, counts, highest = type(self)(self.producer_id), self.counts, self._highest
        run.heads = [self.heads[at] for at in chosen]
        run.entries = [self.entries[at] for at in chosen]
        if counts is not None:
            run.counts = [counts[at] for at in chosen]
        if highest is not None:
            run._highest = {to: highest[at] for to, at in enumerate(chosen) if at in highest}
        return run

    def _tell(self, count: int, highest: int) -> None:
        """Record the message count and the highest sequence id of the newest SEND; `highest` is 0 if it has none."""
        if count != 1 or self.counts is not None:
            if self.counts is None:
                self.counts = []
            self.counts += [1] * (len(self.entries) - 1 - len(self.counts))
            self.counts.append(count)
        if highest:
            if self._highest is None:
                self._highest = {}
            self._highest[len(self.heads) - 1] = highest

    def _count_plain(self) -> None:
        """Count one message for each of the newest SENDs, which have no other fields."""
        if self.counts is not None:
            self.counts += [1] * (len(self.entries) - len(self.counts))


class Send(NamedTuple):
    """SEND that cannot be part of a run: damaged, a chunk, a marker or part of a transaction."""

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    message_count: int
    head: bytes
    entry: bytes
    checksum_ok: bool
    is_chunk: bool = False
    is_marker: bool = False
    txn: tuple[int, int] | None = None
    """(most, least significant bits) of the transaction id."""

    @property
    def is_plain(self) -> bool:
        return self.checksum_ok and not (self.is_chunk or self.is_marker) and self.txn is None


class Delivery(NamedTuple):
    """MESSAGE as a client receives it. `broker_metadata` is None unless the client requested it."""

    body: pb.CommandMessage
    entry: bytes
    checksum_ok: bool
    broker_metadata: pb.BrokerEntryMetadata | None


Cut = SendRun | Send | Delivery | Command


def _sequence_id(head: bytes) -> int:
    return varint.decode(head, varint.decode(head, 1)[1] + 1)[0]


# -- Tier (a): common SENDs ----------------------------------------------------------------------------

# total size, then command size with `08 06 32 C-4`, then the 16 bytes from `08 producer` on
_OPENING: Final = Struct(">IQQQ")
_ENTRY_OPENING: Final = Struct(">HI")
_BROKER_OPENING: Final = Struct(">HI")
_U32: Final = Struct(">I")
_OPENING_BYTES: Final = _OPENING.size
_HEAD_OFFSET: Final = 12


class _Shape(NamedTuple):
    """Masks that verify one pair of varint lengths over 16 bytes, and the offset of the head's end in the frame.

    The producer's part of `front_mask` verifies only the form; `run_mask` also verifies one producer id.
    """

    front_mask: int
    front: int
    back_mask: int
    back: int
    run_mask: int
    head_end: int


def _shape(producer_bytes: int, sequence_bytes: int) -> _Shape:
    rest = bytes(14 - producer_bytes - sequence_bytes)
    mask = b"\xff" + b"\x80" * producer_bytes + b"\xff" + b"\x80" * sequence_bytes + rest
    want = b"\x08" + _varint_form(producer_bytes) + b"\x10" + _varint_form(sequence_bytes) + rest
    return _Shape(
        front_mask=int.from_bytes(mask[:8], "big"),
        front=int.from_bytes(want[:8], "big"),
        back_mask=int.from_bytes(mask[8:], "big"),
        back=int.from_bytes(want[8:], "big"),
        run_mask=int.from_bytes((b"\xff" * (1 + producer_bytes) + mask[1 + producer_bytes :])[:8], "big"),
        head_end=_HEAD_OFFSET + 2 + producer_bytes + sequence_bytes,
    )


def _varint_form(size: int) -> bytes:
    """Return the top bits of a varint of `size` bytes: set in all bytes except the last."""
    return b"\x80" * (size - 1) + b"\x00"


_SHAPES: Final = {
    (producer_bytes, sequence_bytes): _shape(producer_bytes, sequence_bytes)
    for producer_bytes in range(1, 6)
    for sequence_bytes in range(1, min(10, 14 - producer_bytes) + 1)
}


def _find_shape(buffer: bytearray, start: int) -> _Shape | None:
    """Return the shape of the SEND whose frame begins at `start`; None if it is not of tier (a)."""
    head = start + _HEAD_OFFSET
    size = buffer[start + 7]
    if size > 127 or buffer[start + 4 : head] != b"\0\0\0%c\x08\x06\x32%c" % (size, size - 4 & 127):
        return None
    try:
        sequence = varint.decode(buffer, head + 1)[1]
        end = varint.decode(buffer, sequence + 1)[1]
    except ValueError:
        return None
    shape = _SHAPES.get((sequence - head - 1, end - sequence - 1))
    if shape is None or buffer[head] != 0x08 or buffer[sequence] != 0x10 or end > start + 8 + size:
        return None
    return shape


def _told(raw: bytearray) -> tuple[int, int]:
    """Parse the fields after a head: (number of messages, highest sequence id or 0); (0, 0) if there are others."""
    count, highest, end = 1, 0, 0
    try:
        if raw[0] == 0x18:
            count, end = varint.decode(raw, 1)
        if end < len(raw) and raw[end] == 0x30:
            highest, end = varint.decode(raw, end + 1)
    except ValueError:
        return 0, 0
    return (count, highest) if end == len(raw) and count <= BATCH_MESSAGES_MAX else (0, 0)


def _checked_count(count: int) -> int:
    if not 1 <= count <= BATCH_MESSAGES_MAX:
        raise FrameError(f"a SEND claims {count} messages; allowed are 1 to {BATCH_MESSAGES_MAX}")
    return count


# -- The cutter ----------------------------------------------------------------------------------------


class FrameCutter(FrameBuffer[Cut]):
    """Cutter of one connection's bytes into commands; see `FrameBuffer`.

    `received` raises `FrameError` or `CommandError`; the cutter must not be used afterwards.
    """

    __slots__ = (
        "_command_bytes_at_once",
        "_eighths_max",
        "_last_shape",
        "_new_run",
        "fast_sends",
        "frame_bytes_max",
        "slow_sends",
    )

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        buffer_bytes_max: int = READ_BUFFER_BYTES_MAX,
        commands_max: int = 1 << 30,
        command_bytes_at_once: int = COMMAND_BYTES_MAX,
        new_run: Callable[[int], SendRun] = SendRun,
    ) -> None:
        """Limit the work of one read. At most `commands_max` commands are cut at once, not counting SENDs.

        An ACK counts as 1/8 of a command. At the limit, the cutter `is_behind`. It is also behind before and after a
        command of more than `command_bytes_at_once`: parsing a large command takes milliseconds, so it is cut alone, by
        `received(0)`. `new_run` creates the run of a producer.
        """
        super().__init__(buffer_bytes_max)
        self._eighths_max = 8 * commands_max
        self._command_bytes_at_once = command_bytes_at_once
        self._new_run = new_run
        self._last_shape = -1, _SHAPES[1, 1]
        """Last shape with its opening (see `_OPENING`), because the next read probably begins with the same one."""
        self.frame_bytes_max = frame_bytes_max
        self.fast_sends = 0
        self.slow_sends = 0

    @property
    def sends(self) -> int:
        """Number of SENDs cut so far."""
        return self.fast_sends + self.slow_sends

    def _cut(self) -> list[Cut]:
        cuts: list[Cut] = []
        left = self._eighths_max
        was_behind, self.is_behind = self.is_behind, False
        self._cut_sends(cuts)
        start = self._start
        while left > 0 and self._cut_one(cuts, may_be_large=was_behind and not cuts):
            last = cuts[-1]
            if self._start - start > self._command_bytes_at_once and isinstance(last, Command):
                left = 0
            elif isinstance(last, Command):
                left -= 1 if last.kind == pb.BaseCommand.ACK else 8
            self._cut_sends(cuts)
            start = self._start
        self.is_behind |= left <= 0
        return cuts

    # -- tier (a) --

    def _cut_sends(self, cuts: list[Cut]) -> None:
        """Cut SENDs from the start of the buffer, up to an incomplete frame or one that is not of tier (a).

        This is one loop over local variables, because it is the broker's most frequently executed Python code.
        """
        buffer, view, start, end = self._buffer, self._view, self._start, self._end
        read_opening, read_entry = _OPENING.unpack_from, _ENTRY_OPENING.unpack_from
        last = cuts[-1] if cuts else None
        runs = {last.producer_id: last} if isinstance(last, SendRun) else {}
        plain_again: list[SendRun] = []
        run_opening, shape = self._last_shape
        form_mask, form, back_mask, back_wanted, run_mask, head_end = shape
        entry_offset = 8 + (run_opening >> 32)
        tells = head_end != entry_offset
        total_max = self.frame_bytes_max - 4
        front_mask, front_wanted, is_other, count = 0, -1, True, 0
        while end - start >= _OPENING_BYTES:
            total, opening, front, back = read_opening(buffer, start)
            frame_end = start + 4 + total
            if frame_end > end or total > total_max:
                break
            if (
                opening != run_opening
                or front & front_mask != front_wanted
                or back & back_mask != back_wanted
            ):
                if opening != run_opening or front & form_mask != form or back & back_mask != back_wanted:
                    found = _find_shape(buffer, start)
                    if found is None:
                        break
                    shape = found
                    run_opening, entry_offset = opening, 8 + (opening >> 32)
                    form_mask, form, back_mask, back_wanted, run_mask, head_end = shape
                    tells = head_end != entry_offset
                front_mask, front_wanted = run_mask, front & run_mask
                is_other = True
            entry_start = start + entry_offset
            if frame_end - entry_start < ENTRY_BYTES_MIN:
                break
            if tells:
                told = _told(buffer[start + head_end : entry_start])
                if not told[0]:
                    break
            magic, crc = read_entry(buffer, entry_start)
            if magic != ENTRY_MAGIC or crc32c(view[entry_start + 6 : frame_end]) != crc:
                break
            if is_other:
                is_other = False
                at = start + _HEAD_OFFSET + 1
                producer_id = buffer[at]
                if producer_id > 127 and (producer_id := producer_id - 128 + (buffer[at + 1] << 7)) > 16383:
                    producer_id = varint.decode(buffer, at)[0]
                if producer_id not in runs:
                    runs[producer_id] = self._new_run(producer_id)
                    cuts.append(runs[producer_id])
                run = runs[producer_id]
                if run.counts is not None and not tells:
                    plain_again.append(run)
                heads, entries = run.heads, run.entries
            heads.append(view[start + _HEAD_OFFSET : start + head_end].tobytes())
            entries.append(view[entry_start:frame_end].tobytes())
            if tells:
                run._tell(*told)
            start = frame_end
            count += 1
        for run in plain_again:
            run._count_plain()
        self._last_shape = run_opening, shape
        self._start = start
        self.fast_sends += count

    # -- tier (b) --

    def _cut_one(self, cuts: list[Cut], *, may_be_large: bool) -> bool:
        """Cut the frame at the start, of any kind; return False if it is incomplete, or is large and must wait."""
        start, buffer = self._start, self._buffer
        if self._end - start < 4:
            return False
        total = _U32.unpack_from(buffer, start)[0]
        if not 4 <= total <= self.frame_bytes_max - 4:
            if total in _HTTP:
                raise FrameError(
                    "the peer speaks HTTP; this port expects Pulsar's binary protocol, HTTP has a port of its own"
                )
            raise FrameError(f"a frame of {total} bytes; allowed are 4 to {self.frame_bytes_max - 4}")
        frame_end = start + 4 + total
        if frame_end > self._end:
            return False
        command_size = _U32.unpack_from(buffer, start + 4)[0]
        command_end = start + 8 + command_size
        if command_end > frame_end or command_size > COMMAND_BYTES_MAX:
            raise FrameError(f"a command of {command_size} bytes in a frame of {total}")
        if command_size > self._command_bytes_at_once and not may_be_large:
            self.is_behind = True
            return False
        raw = self._view[start + 8 : command_end].tobytes()
        tail = self._view[command_end:frame_end]
        self._take(cuts, parse(raw), tail)
        self._start = frame_end
        return True

    def _take(self, cuts: list[Cut], command: Command, tail: memoryview) -> None:
        """Append a command that the protobuf parser has read to `cuts`; `tail` is the rest of its frame."""
        body = command.body
        if isinstance(body, pb.CommandSend):
            self.slow_sends += 1
            send = _send(body, tail)
            if send.is_plain:
                run = self._run_for(cuts, send.producer_id)
                run.heads.append(send.head)
                run.entries.append(send.entry)
                run._tell(send.message_count, body.highest_sequence_id)
            else:
                cuts.append(send)
        elif isinstance(body, pb.CommandMessage):
            broker_metadata, tail = _broker_metadata(tail)
            cuts.append(Delivery(body, *_entry(tail), broker_metadata))
        elif tail:
            raise FrameError(f"{len(tail)} bytes follow a command that has no entry")
        else:
            cuts.append(command)

    def _run_for(self, cuts: list[Cut], producer_id: int) -> SendRun:
        """Return the run for the next SEND of the producer: the last element of `cuts`, or a new run."""
        if cuts and isinstance(last := cuts[-1], SendRun) and last.producer_id == producer_id:
            return last
        run = self._new_run(producer_id)
        cuts.append(run)
        return run


def _send(body: pb.CommandSend, tail: memoryview) -> Send:
    entry, checksum_ok = _entry(tail)
    in_txn = body.HasField("txnid_least_bits") or body.HasField("txnid_most_bits")
    return Send(
        producer_id=body.producer_id,
        sequence_id=body.sequence_id,
        highest_sequence_id=max(body.sequence_id, body.highest_sequence_id),
        message_count=_checked_count(body.num_messages),
        head=b"\x08" + varint.encode(body.producer_id) + b"\x10" + varint.encode(body.sequence_id),
        entry=entry,
        checksum_ok=checksum_ok,
        is_chunk=body.is_chunk,
        is_marker=body.marker,
        txn=(body.txnid_most_bits, body.txnid_least_bits) if in_txn else None,
    )


def _entry(tail: memoryview) -> tuple[bytes, bool]:
    """Return the entry, and whether its checksum is valid."""
    if len(tail) < ENTRY_BYTES_MIN:
        raise FrameError(f"an entry has {len(tail)} bytes; the minimum is {ENTRY_BYTES_MIN}")
    magic, crc = _ENTRY_OPENING.unpack_from(tail)
    if magic != ENTRY_MAGIC:
        raise FrameError(f"an entry begins with {magic:#06x} instead of {ENTRY_MAGIC:#06x}")
    return bytes(tail), crc32c(tail[6:]) == crc


def _broker_metadata(tail: memoryview) -> tuple[pb.BrokerEntryMetadata | None, memoryview]:
    """Split the tail of a MESSAGE into (broker entry metadata or None, the entry)."""
    if len(tail) < 6 or _BROKER_OPENING.unpack_from(tail)[0] != BROKER_METADATA_MAGIC:
        return None, tail
    size = _BROKER_OPENING.unpack_from(tail)[1]
    try:
        return pb.BrokerEntryMetadata.FromString(bytes(tail[6 : 6 + size])), tail[6 + size :]
    except DecodeError:
        raise FrameError("broker entry metadata are not a protobuf message") from None
