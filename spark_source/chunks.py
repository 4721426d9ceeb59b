"""Joining of messages that were sent in chunks ([PIP-37]): a message is one row, at the position of its last chunk.

    slice 1                          slice 2
    … chunk 0 ─ x ─ chunk 1 ─ y │ z ─ chunk 2 ─ …        the row belongs to slice 2

Chunks of a message are interleaved with other entries, and may be in several slices and segments. Different tasks read
these slices, and streams read them at different times. So a message belongs to the slice with its last chunk. If its
first chunk is not in that slice, the task reads backwards, in steps that double, until it finds that chunk. It reads at
most `LOOK_BACK_BYTES` more than the message's size. This happens mostly at the beginning of a slice.

Clients follow the same rules (`client.chunks`):

- A first chunk starts its message over: chunks received before are dropped.
- A repeated chunk is dropped.
- Chunks without a last chunk are not a message, and produce no row.
- A message whose first chunk was trimmed is skipped, with a warning.

[PIP-37]: https://github.com/apache/pulsar/wiki/PIP-37%3A-Large-message-size-handling-in-Pulsar
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from quire.client.chunks import Incomplete, Joined, Joiner
from quire.client.crypto import Decryptor
from quire.runtime.limits import MIB
from quire.spark_source import fetch, plain
from quire.spark_source.broker import Broker
from quire.spark_source.plan import Slice, archived_object, origin_of
from quire.spark_source.positions import Window
from quire.spark_source.rows import entries_of
from quire.wire import message
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer
from quire.wire.message import Undecodable

LOOK_BACK_BYTES: Final = 256 * MIB
"""Maximum number of bytes that are read backwards in addition to the message's size."""

FIRST_STEP_ENTRIES: Final = 16
HELD_BYTES_MAX: Final = 128 * MIB
"""Maximum bytes of incomplete messages in memory.

Beyond it, their chunks are dropped, and are read backwards once the last chunk of a message arrives.
"""

_log = logging.getLogger(__name__)


class Piece(NamedTuple):
    """Chunk of a message."""

    metadata: pb.MessageMetadata
    payload: bytes
    id_data: pb.MessageIdData


class Chunks:
    """Joiner of one slice's chunks, which the decoder passes to it in order."""

    def __init__(
        self, piece: Slice, broker: Broker, archive_url: str | None, decryptor: Decryptor | None = None
    ) -> None:
        self._decryptor = decryptor
        self._piece = piece
        self._broker = broker
        self._archive_url = archive_url
        self._joiner = Joiner(messages_max=1)
        self._held_bytes = 0

    def rows(self, entry: memoryview, entry_id: int) -> Iterator[plain.Row]:
        """Yield the row of the message that this chunk completes, if any.

        Raises `Undecodable`, and the errors of reading backwards.
        """
        metadata, payload = message.read_metadata(entry)
        ledger_id = self._piece.origin.ledger_id
        id_data = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
        one = Piece(metadata, payload.tobytes(), id_data)
        if not metadata.uuid:
            raise Undecodable("a chunk has no uuid of its message")
        found = self._join_chunk(one)
        if found is Incomplete.ORPHANED and metadata.chunk_id == metadata.num_chunks_from_msg - 1:
            found = self._look_back(one, entry_id)
        if isinstance(found, Joined):
            whole = message.decompressed(metadata, found.payload)
            yield from map(plain.row, message.messages_of(metadata, whole))

    def _join_chunk(self, one: Piece) -> Joined | Incomplete:
        found = self._joiner.add(*one, 0.0)
        if found is Incomplete.WAITS:
            self._held_bytes += len(one.payload)
        if not len(self._joiner):
            self._held_bytes = 0
        elif self._held_bytes > HELD_BYTES_MAX:
            self._joiner.clear()
            self._held_bytes = 0
        return found

    # -- reading backwards --------------------------------------------------------------------------------

    def _look_back(self, last: Piece, entry_id: int) -> Joined | Incomplete:
        """Return the message of a last chunk, or the reason why it is incomplete."""
        uuid, later, read = last.metadata.uuid, [last], 0
        bytes_max = LOOK_BACK_BYTES + last.metadata.total_chunk_msg_size
        for step in self._steps(entry_id):
            found: list[Piece] = []
            for blocks in fetch.blocks(step, self._broker, self._archive_url):
                found += _chunks_of(uuid, blocks, step, self._decryptor)
                read += len(blocks)
            firsts = [at for at, one in enumerate(found) if one.metadata.chunk_id == 0]
            if firsts:
                return _join([*found[firsts[-1] :], *later])
            later = found + later
            if read > bytes_max:
                raise Undecodable(
                    f"the first chunk of message {uuid} is not among the {read} bytes before its last one"
                )
        _log.warning(
            "%s: skipping the chunked message that ends at %d:%d, because its first chunk was trimmed",
            self._piece.origin.name,
            self._piece.origin.ledger_id,
            entry_id,
        )
        return Incomplete.ORPHANED

    def _steps(self, before: int) -> Iterator[Slice]:
        """Yield slices of the entries before `before`, nearest first: in this segment, then in earlier segments."""
        yield from _backwards(self._piece, before)
        name, ledger_id = self._piece.origin.name, self._piece.origin.ledger_id
        for segment in reversed(self._broker.segments(name)["segments"]):
            if segment["ledger_id"] < ledger_id:
                origin = origin_of(name, segment["ledger_id"])
                piece = replace(self._piece, origin=origin, archived=archived_object(segment))
                yield from _backwards(piece, segment["last_entry"] + 1)


def _backwards(piece: Slice, before: int) -> Iterator[Slice]:
    """Yield the entries of a segment before entry `before`, backwards, as slices whose lengths double."""
    step = FIRST_STEP_ENTRIES
    while before > 0:
        first = max(0, before - step)
        yield replace(piece, first_entry=first, end_entry=before, window=Window())
        before, step = first, 2 * step


def _chunks_of(uuid: str, blocks: Buffer, step: Slice, decryptor: Decryptor | None) -> Iterator[Piece]:
    """Yield the chunks of message `uuid` in the blocks of `step`. Entries without the uuid are not parsed."""
    entries = entries_of(blocks, step.origin.ledger_id)
    raw, wanted = bytes(blocks), uuid.encode()
    places, at = [], raw.find(wanted)
    while at >= 0:
        places.append(at)
        at = raw.find(wanted, at + 1)
    for number in np.unique(np.searchsorted(entries.end, places, side="right")).tolist():
        if number == len(entries.id) or not step.first_entry <= entries.id[number] < step.end_entry:
            continue
        entry = memoryview(raw)[int(entries.start[number]) : int(entries.end[number])]
        try:
            metadata, payload = message.read_metadata(entry)
            if not (message.is_chunk(metadata) and metadata.uuid == uuid):
                continue
            if message.is_encrypted(metadata) and decryptor is not None:
                payload = decryptor.decrypt(metadata, payload)
        except Undecodable:
            continue
        if decryptor is not None or not message.is_encrypted(metadata):
            ledger_id, entry_id = step.origin.ledger_id, int(entries.id[number])
            id_data = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
            yield Piece(metadata, payload.tobytes(), id_data)


def _join(chunks: list[Piece]) -> Joined | Incomplete:
    """Join a message's chunks, from its first to its last one."""
    joiner = Joiner(messages_max=1)
    *before, last = chunks
    for one in before:
        joiner.add(*one, 0.0)
    return joiner.add(*last, 0.0)
