"""Compaction by key: which messages are the last of their key. A core.

Two passes over the same entries in the same order. The first numbers the messages and remembers the number of each
key's last one; the second keeps an entry as it is, drops it, or makes a batch of which only some messages are left.

| message | kept |
|---|---|
| with a key, the last one of it | yes |
| with a key, not the last one | no |
| without a value (null, or no bytes) | no: it removes its key |
| without a key | yes |
| in an entry that cannot be looked into: encrypted batches, chunks, damaged ones | yes, with all of its entry |

A batch that loses messages keeps its number of them: what is out is marked so and has no payload, hence the others
keep their message ids. Not all clients look at the mark; so which ones are left is told as well, and a consumer gets
the batch as if the others were acknowledged.

Memory: for each key its text and a number, 200 bytes or so.
"""

from __future__ import annotations

from typing import Final

from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer
from quire.wire.compression import compress
from quire.wire.message import (
    Undecodable,
    is_batch,
    is_encrypted,
    plain_payload,
    read_metadata,
    seal,
    split_batch,
)

_Fate = tuple[str | None, bool]
"""A message's key (None: it has none, and stays), and whether it removes it."""

_OUT: Final[_Fate] = ("", True)


class LastOfKey:
    """See the top of the file: `note` every entry, then `retained` every entry again."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._noted = 0
        self._passed = 0

    def note(self, entry: Buffer) -> None:
        """First pass."""
        for key, removes in _fates(entry):
            if key:
                self._last[key] = -1 if removes else self._noted
            self._noted += 1

    def retained(self, entry: Buffer) -> tuple[Buffer, int] | None:
        """Second pass: what of the entry is left, None when nothing is.

        The number has a bit set for each message of a batch that is left, and is 0 when all are.
        """
        fates = _fates(entry)
        first = self._passed
        self._passed += len(fates)
        keep = [
            key is None or (bool(key) and self._last[key] == number)
            for number, (key, _) in enumerate(fates, first)
        ]
        if all(keep):
            return entry, 0
        if not any(keep):
            return None
        return _only(entry, keep), sum(1 << index for index, stays in enumerate(keep) if stays)


def _fates(entry: Buffer) -> list[_Fate]:
    """Of each message of an entry; none when it cannot be looked into, and is kept."""
    try:
        metadata, payload = read_metadata(entry)
        if metadata.HasField("chunk_id") and metadata.num_chunks_from_msg > 1:
            return []
        if not is_batch(metadata):
            removes = metadata.null_value or (not payload and not is_encrypted(metadata))
            return [(metadata.partition_key or None, removes)]
        return [_fate(single) for single, _ in split_batch(metadata, plain_payload(metadata, payload))]
    except Undecodable:
        return []


def _fate(single: pb.SingleMessageMetadata) -> _Fate:
    if single.compacted_out:
        return _OUT
    return single.partition_key or None, single.null_value or not single.payload_size


def _only(entry: Buffer, keep: list[bool]) -> bytes:
    """The batch with only those messages, the others marked as compacted out."""
    metadata, payload = read_metadata(entry)
    parts: list[bytes] = []
    for (single, body), stays in zip(
        split_batch(metadata, plain_payload(metadata, payload)), keep, strict=True
    ):
        if not stays:
            single.compacted_out = True
            single.payload_size = 0
            body = body[:0]
        raw = single.SerializeToString()
        parts += (len(raw).to_bytes(4, "big"), raw, bytes(body))
    plain = b"".join(parts)
    if metadata.compression == pb.NONE:
        return seal(metadata, plain)
    metadata.uncompressed_size = len(plain)
    return seal(metadata, compress(metadata.compression, plain))
