"""Compaction by key: the choice of each key's last message. Performs no I/O.

Two passes read the same entries in the same order, as in Pulsar's [two-phase compactor]. The first pass numbers the
messages, and records the number of the last message of each key. The second pass retains or drops each entry. It
rewrites a batch if only some of its messages are retained.

| message | retained |
|---|---|
| with a key, the last one of this key | yes |
| with a key, an earlier one of this key | no |
| without a value (null, or no bytes) | no: a tombstone, which removes its key |
| without a key | yes |
| in an entry that cannot be decoded: encrypted or oversized batch, chunk, damage, invalid UTF-8 | yes, with its entry |

A batch is *oversized* if decoding it costs more than the topic's credit, which grows with the published bytes
(`_Purse`). The credit limits hostile clients: 800 bytes may decompress to a million messages, and a client may publish
thousands of such batches. Ordinary topics stay below that limit.

A rewritten batch keeps its number of messages, so they keep their message ids: a removed message is marked as
compacted out and has no payload. Some clients ignore the mark, so the result also stores the retained messages as a bit
mask. A consumer receives the batch as if the removed messages were acknowledged.

Memory: each distinct key and one number, about 200 bytes per key.

[two-phase compactor]: https://github.com/apache/pulsar/wiki/PIP-14%3A-Topic-compaction
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from quire.runtime.limits import COMPACTION_CREDIT, COMPACTION_UNCOMPRESSED_BYTES_MAX, FRAME_BYTES_MAX, KIB
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
"""Key of a message (None: without a key, always retained), and whether the message is a tombstone."""

_OUT: Final[_Fate] = ("", True)

Breathe = Callable[[], None]
MESSAGES_A_BREATH: Final = 256
"""Number of messages decoded between two calls of `breathe`, which may pause the thread.

Decoding them takes about half a millisecond.
"""


class LastOfKey:
    """Table of the last message of each key.

    Call `note` for every entry, then `retained` for every entry in the same order.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._noted = 0
        self._passed = 0
        # Each pass has its own purse, so that both passes have the same credit at the same entry.
        self._to_note, self._to_pass = _Purse(), _Purse()

    def note(self, entry: Buffer, breathe: Breathe = lambda: None) -> None:
        """Record the keys of an entry (first pass).

        Calls `breathe` repeatedly, because decoding a batch may take a second.
        """
        for key, removes in _fates(entry, self._to_note, breathe):
            if key:
                self._last[key] = -1 if removes else self._noted
            self._noted += 1

    def retained(self, entry: Buffer, breathe: Breathe = lambda: None) -> tuple[Buffer, int] | None:
        """Return an entry without its removed messages, and a mask; None if no message is retained (second pass).

        The mask has a bit set for each retained message of a batch; it is 0 if all are retained. Calls `breathe` as
        `note` does.
        """
        fates = _fates(entry, self._to_pass, breathe)
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
        made = _only(entry, keep, breathe)
        if len(made) > max(len(entry), FRAME_BYTES_MAX):
            return (
                entry,
                0,
            )  # The rewritten batch is too large for a frame, because the client compressed its batch better.
        return made, int("".join("1" if stays else "0" for stays in reversed(keep)), 2)


class _Purse:
    """Credit for decoding batches: each message and each decompressed KiB costs one; each published byte adds one.

    It starts at `COMPACTION_CREDIT`, so that every topic can decode a few unusually large batches.
    """

    __slots__ = ("_credit",)

    def __init__(self) -> None:
        self._credit = COMPACTION_CREDIT

    def pays(self, entry: Buffer, metadata: pb.MessageMetadata) -> bool:
        """Add the credit for the entry's bytes, and pay for decoding its batch.

        Return False, and pay nothing, if the credit is too small.
        """
        self._credit += len(entry)
        plain_bytes = metadata.uncompressed_size if metadata.compression != pb.NONE else 0
        cost = max(0, metadata.num_messages_in_batch) + plain_bytes // KIB
        if cost > self._credit or plain_bytes > COMPACTION_UNCOMPRESSED_BYTES_MAX:
            return False
        self._credit -= cost
        return True


def _singles(
    metadata: pb.MessageMetadata, payload: memoryview, breathe: Breathe
) -> Iterator[tuple[pb.SingleMessageMetadata, memoryview]]:
    """Split a batch, which may be compressed, into messages as `split_batch` does."""
    for number, one in enumerate(split_batch(metadata, plain_payload(metadata, payload), exact=True)):
        if number % MESSAGES_A_BREATH == 0:
            breathe()
        yield one


def _fates(entry: Buffer, purse: _Purse, breathe: Breathe) -> list[_Fate]:
    """Return the key and tombstone flag of each message of an entry; an empty list if the entry cannot be decoded."""
    breathe()
    try:
        metadata, payload = read_metadata(entry, exact=True)
        if metadata.HasField("chunk_id") and metadata.num_chunks_from_msg > 1:
            return []
        if not is_batch(metadata):
            removes = metadata.null_value or (not payload and not is_encrypted(metadata))
            return [(metadata.partition_key or None, removes)]
        if not purse.pays(entry, metadata):
            return []
        return [_fate(single) for single, _ in _singles(metadata, payload, breathe)]
    except Undecodable:
        return []


def _fate(single: pb.SingleMessageMetadata) -> _Fate:
    if single.compacted_out:
        return _OUT
    return single.partition_key or None, single.null_value or not single.payload_size


def _only(entry: Buffer, keep: list[bool], breathe: Breathe) -> bytes:
    """Rewrite a batch: keep the messages that `keep` selects and mark the others as compacted out."""
    metadata, payload = read_metadata(entry, exact=True)
    parts: list[bytes] = []
    for (single, body), stays in zip(_singles(metadata, payload, breathe), keep, strict=True):
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
