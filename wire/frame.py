"""The frame cutter: bytes from a socket in, runs of SENDs and other commands out. No I/O.

    offset size  field
         0    4  total size       T of what follows, u32 big-endian, at most FRAME_BYTES_MAX - 4
         4    4  command size     C, u32 big-endian
         8    C  BaseCommand      protobuf, see `quire.wire.commands`
       8+C       entry            in SEND and MESSAGE only, up to the end of the frame (4+T):
                   2  magic            0x0e01
                   4  crc              CRC32C over all that follows
                   4  metadata size    M, u32 big-endian
                   M  MessageMetadata  protobuf, see `quire.wire.message`
                      payload          possibly compressed or encrypted
         In MESSAGE a prefix may stand before the magic: 0x0e02, size u32, BrokerEntryMetadata.

Frames are recognised in two tiers.

(a) A SEND that holds a producer id and a sequence id, and of a batch its number of messages and its highest
    sequence id, and nothing else is always these bytes:

         4 C | 08 06 32 C-4 | 08 producer.. 10 sequence.. | (18 count..)? (30 highest..)? | 0e 01 crc ...

    with varints. Two `unpack_from` and one masked compare per 8 bytes prove the head, which is all that a SEND of
    one message has: constants must be equal, and the top bits of the varints' bytes must say where each ends. A
    `_Shape` has the masks for one pair of varint lengths. Within a run the mask proves the producer id too, so that
    the same compare says "the next entry of this run"; a run goes on behind such SENDs of other producers. Producer
    ids of 1-5 bytes and sequence ids of 1-10 are covered, together up to 14 bytes. What a batch tells behind the
    head is read by itself (`_told`).
(b) Everything else goes through protobuf: chunks, transactions, all other commands, and whatever the tier
    above did not recognise.

`fast_sends` and `slow_sends` count the tiers: falling off the first is silent and costs half the
throughput. An entry is copied once, out of the read buffer, after its checksum was proven over the buffer.

An entry that does not match its checksum is the client's or the network's damage, not a broken protocol: it
comes out as a `Send` with `checksum_ok` False, to be answered by SEND_ERROR ChecksumError. A frame that is too
short, too large or holds no command raises `FrameError` or `CommandError`; the connection is then useless, and
what the same read held before it is dropped (nothing of it was acknowledged).
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
"""Magic, crc and metadata size: no entry is shorter."""


_HTTP: Final = frozenset(
    int.from_bytes(start)
    for start in (b"HTTP", b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC")
)
"""How HTTP begins, read as the size of a frame."""


class FrameError(ProtocolError):
    """A frame's sizes contradict each other or a limit, or what should be an entry is not one."""


class SendRun:
    """SENDs of one producer with no other command between them, all with a right checksum, none special (see `Send`).

    SENDs of other producers do not end a run: producers have no order among each other.

    `heads` are the bytes `08 producer-id 10 sequence-id` of each, as `entry_frames.receipt_run` takes them;
    `entries` the bytes from each entry's magic on.
    """

    __slots__ = ("_highest", "counts", "entries", "heads", "producer_id")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.heads: list[bytes] = []
        self.entries: list[bytes] = []
        self.counts: list[int] | None = None
        """The number of messages of each entry; None when each holds one."""
        self._highest: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"SendRun(producer {self.producer_id}, {len(self)} entries)"

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.entries))

    def sequence_ids(self) -> list[tuple[int, int]]:
        """(sequence id, highest sequence id) of each SEND; of one that tells no other they are the same."""
        lows, highest = list(map(_sequence_id, self.heads)), self._highest or {}
        return [(low, max(low, highest.get(i, 0))) for i, low in enumerate(lows)]

    def pick(self, chosen: range) -> Self:
        """A run of these of its SENDs, by their offsets."""
        run, counts, highest = type(self)(self.producer_id), self.counts, self._highest
        run.heads = [self.heads[at] for at in chosen]
        run.entries = [self.entries[at] for at in chosen]
        if counts is not None:
            run.counts = [counts[at] for at in chosen]
        if highest is not None:
            run._highest = {to: highest[at] for to, at in enumerate(chosen) if at in highest}
        return run

    def _tell(self, count: int, highest: int) -> None:
        """What the newest SEND tells beside its ids; `highest` is 0 when that is no highest sequence id."""
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
        """The newest SENDs told nothing: they hold one message each."""
        if self.counts is not None:
            self.counts += [1] * (len(self.entries) - len(self.counts))


class Send(NamedTuple):
    """One SEND that does not belong into a run: damaged, a chunk, a marker or part of a transaction."""

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
    """One MESSAGE, as a client gets it. `broker_metadata` is None unless the client asked for it."""

    body: pb.CommandMessage
    entry: bytes
    checksum_ok: bool
    broker_metadata: pb.BrokerEntryMetadata | None


Cut = SendRun | Send | Delivery | Command


def _sequence_id(head: bytes) -> int:
    return varint.decode(head, varint.decode(head, 1)[1] + 1)[0]


# -- Tier (a): what most SENDs look like ----------------------------------------------------------------

# total size, then command size with `08 06 32 C-4`, then the 16 bytes from `08 producer` on
_OPENING: Final = Struct(">IQQQ")
_ENTRY_OPENING: Final = Struct(">HI")
_BROKER_OPENING: Final = Struct(">HI")
_U32: Final = Struct(">I")
_OPENING_BYTES: Final = _OPENING.size
_HEAD_OFFSET: Final = 12


class _Shape(NamedTuple):
    """A pair of varint lengths: the masks that prove it over 16 bytes, and where the head ends in the frame.

    The producer's part of `front_mask` proves only the form; `run_mask` is narrower, to one producer.
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
    """The top bits of a varint of `size` bytes: all but the last say that more follows."""
    return b"\x80" * (size - 1) + b"\x00"


_SHAPES: Final = {
    (producer_bytes, sequence_bytes): _shape(producer_bytes, sequence_bytes)
    for producer_bytes in range(1, 6)
    for sequence_bytes in range(1, min(10, 14 - producer_bytes) + 1)
}


def _find_shape(buffer: bytearray, start: int) -> _Shape | None:
    """The shape of the SEND whose frame begins at `start`; None when it is none of tier (a)."""
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
    """What stands behind a head: (number of messages, highest sequence id or 0); (0, 0) when it is not just that."""
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
        raise FrameError(f"a SEND of {count} messages")
    return count


# -- The cutter ----------------------------------------------------------------------------------------


class FrameCutter(FrameBuffer[Cut]):
    """One connection's bytes into commands, fed as `FrameBuffer` tells.

    `received` raises `FrameError` or `CommandError`; the cutter is of no use afterwards.
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
        """`commands_max`: cut at once, beside SENDs; an ACK counts an eighth. Then the cutter `is_behind`.

        It is so before and behind a command of more than `command_bytes_at_once` as well: to parse a large one takes
        milliseconds, so it is cut alone, by `received(0)`. `new_run` makes the run of a producer.
        """
        super().__init__(buffer_bytes_max)
        self._eighths_max = 8 * commands_max
        self._command_bytes_at_once = command_bytes_at_once
        self._new_run = new_run
        self._last_shape = -1, _SHAPES[1, 1]
        """With what comes before it, see `_OPENING`: the next read begins as the last one ended."""
        self.frame_bytes_max = frame_bytes_max
        self.fast_sends = 0
        self.slow_sends = 0

    @property
    def sends(self) -> int:
        """How many were cut so far."""
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
        """Cut SENDs from the start, up to a frame of another kind or an incomplete one.

        One loop over local variables: this is the hottest Python of the whole broker.
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
        """Cut the frame at the start, whatever it is; False when it is not complete, or is large and must wait."""
        start, buffer = self._start, self._buffer
        if self._end - start < 4:
            return False
        total = _U32.unpack_from(buffer, start)[0]
        if not 4 <= total <= self.frame_bytes_max - 4:
            if total in _HTTP:
                raise FrameError(
                    "it speaks HTTP; clients and brokers speak another protocol, on a port of its own"
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
        """A command that the parser had to read."""
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
            raise FrameError(f"{len(tail)} bytes follow a command that carries no entry")
        else:
            cuts.append(command)

    def _run_for(self, cuts: list[Cut], producer_id: int) -> SendRun:
        """The run that the next SEND of the producer belongs to: the last cut's, or a new one."""
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
    """(the entry, whether its checksum is right)."""
    if len(tail) < ENTRY_BYTES_MIN:
        raise FrameError(f"an entry of {len(tail)} bytes; the shortest has {ENTRY_BYTES_MIN}")
    magic, crc = _ENTRY_OPENING.unpack_from(tail)
    if magic != ENTRY_MAGIC:
        raise FrameError(f"an entry begins with {magic:#06x} instead of {ENTRY_MAGIC:#06x}")
    return bytes(tail), crc32c(tail[6:]) == crc


def _broker_metadata(tail: memoryview) -> tuple[pb.BrokerEntryMetadata | None, memoryview]:
    """(what the broker put before the entry, the entry)."""
    if len(tail) < 6 or _BROKER_OPENING.unpack_from(tail)[0] != BROKER_METADATA_MAGIC:
        return None, tail
    size = _BROKER_OPENING.unpack_from(tail)[1]
    try:
        return pb.BrokerEntryMetadata.FromString(bytes(tail[6 : 6 + size])), tail[6 + size :]
    except DecodeError:
        raise FrameError("a broker entry metadata is not a protobuf message") from None
