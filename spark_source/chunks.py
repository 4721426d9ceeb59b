"""Messages that were sent in chunks, joined: a message is one row, where its last chunk lies.

    slice 1                          slice 2
    … chunk 0 ─ x ─ chunk 1 ─ y │ z ─ chunk 2 ─ …        the row is slice 2's

Chunks lie between other entries, across the cuts between slices and segments; slices are read by different tasks, and
streams read them at different times. So a message belongs to the slice with its last chunk. When a task meets one
whose beginning is not in its slice, it reads back from there, in steps that double, until it has the first chunk: at
most `LOOK_BACK_BYTES` more than the message has. That happens at the beginning of a slice, and seldom otherwise.

The rules are the clients' (`client.chunks`): a first chunk begins its message anew, a chunk that comes again is
dropped, and what never gets its last chunk is no message. A message of which retention took the beginning is none
either: that is said in the log, and passed over.
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
"""How much may lie between a message's chunks that are read again."""

FIRST_STEP_ENTRIES: Final = 16
HELD_BYTES_MAX: Final = 128 * MIB
"""Of incomplete messages; beyond it they are let go, and read again when their last chunks come."""

_log = logging.getLogger(__name__)


class Piece(NamedTuple):
    """One chunk."""

    metadata: pb.MessageMetadata
    payload: bytes
    id_data: pb.MessageIdData


class Chunks:
    """The chunks of one slice, which come in order."""

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
        """The row of the message that this chunk makes whole, if it does.

        Raises `Undecodable`, and what reading back raises.
        """
        metadata, payload = message.read_metadata(entry)
        ledger_id = self._piece.origin.ledger_id
        id_data = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
        one = Piece(metadata, payload.tobytes(), id_data)
        if not metadata.uuid:
            raise Undecodable("a chunk does not say of which message it is")
        found = self._add(one)
        if found is Incomplete.ORPHANED and metadata.chunk_id == metadata.num_chunks_from_msg - 1:
            found = self._look_back(one, entry_id)
        if isinstance(found, Joined):
            whole = message.decompressed(metadata, found.payload)
            yield from map(plain.row, message.messages_of(metadata, whole))

    def _add(self, one: Piece) -> Joined | Incomplete:
        found = self._joiner.add(*one, 0.0)
        if found is Incomplete.WAITS:
            self._held_bytes += len(one.payload)
        if not len(self._joiner):
            self._held_bytes = 0
        elif self._held_bytes > HELD_BYTES_MAX:
            self._joiner.clear()
            self._held_bytes = 0
        return found

    # -- reading back ----------------------------------------------------------------------------------

    def _look_back(self, last: Piece, entry_id: int) -> Joined | Incomplete:
        """The message of a last chunk, or what keeps it from being one."""
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
            "the message of %s whose last chunk is %d:%d is passed over: its first one is gone",
            self._piece.origin.name,
            self._piece.origin.ledger_id,
            entry_id,
        )
        return Incomplete.ORPHANED

    def _steps(self, before: int) -> Iterator[Slice]:
        """What lies before an entry of this slice's segment, nearest first."""
        yield from _backwards(self._piece, before)
        name, ledger_id = self._piece.origin.name, self._piece.origin.ledger_id
        for segment in reversed(self._broker.segments(name)["segments"]):
            if segment["ledger_id"] < ledger_id:
                origin = origin_of(name, segment["ledger_id"])
                piece = replace(self._piece, origin=origin, archived=archived_object(segment))
                yield from _backwards(piece, segment["last_entry"] + 1)


def _backwards(piece: Slice, before: int) -> Iterator[Slice]:
    """The entries of a segment before one, in steps that double."""
    step = FIRST_STEP_ENTRIES
    while before > 0:
        first = max(0, before - step)
        yield replace(piece, first_entry=first, end_entry=before, window=Window())
        before, step = first, 2 * step


def _chunks_of(uuid: str, blocks: Buffer, step: Slice, decryptor: Decryptor | None) -> Iterator[Piece]:
    """The chunks of a message among the entries of a step; others are not looked into."""
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
    """What the last of the chunks of a message does, the first of which begins it."""
    joiner = Joiner(messages_max=1)
    *before, last = chunks
    for one in before:
        joiner.add(*one, 0.0)
    return joiner.add(*last, 0.0)
