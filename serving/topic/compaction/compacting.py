"""Compaction by key: which messages are the last of their key. A core.

Two passes over the same entries in the same order. The first numbers the messages and remembers the number of each
key's last one; the second keeps an entry as it is, drops it, or makes a batch of which only some messages are left.

| message | kept |
|---|---|
| with a key, the last one of it | yes |
| with a key, not the last one | no |
| without a value (null, or no bytes) | no: it removes its key |
| without a key | yes |
| in an entry that cannot be looked into: encrypted or absurd batches, chunks, damage | yes, with all of its entry |

A batch is *absurd* when looking into it costs more than what was published so far pays for (`_Purse`): 800 bytes may
decompress to a million messages, and a client may publish thousands of them. An honest topic never meets that limit.

A batch that loses messages keeps its number of them: what is out is marked so and has no payload, hence the others
keep their message ids. Not all clients look at the mark; so which ones are left is told as well, and a consumer gets
the batch as if the others were acknowledged.

Memory: for each key its text and a number, 200 bytes or so.
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
"""A message's key (None: it has none, and stays), and whether it removes it."""

_OUT: Final[_Fate] = ("", True)

Breathe = Callable[[], None]
MESSAGES_A_BREATH: Final = 256
"""Half a millisecond."""


class LastOfKey:
    """See the top of the file: `note` every entry, then `retained` every entry again."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._noted = 0
        self._passed = 0
        # Each pass pays for itself, and comes to the same entries with the same credit.
        self._to_note, self._to_pass = _Purse(), _Purse()

    def note(self, entry: Buffer, breathe: Breathe = lambda: None) -> None:
        """First pass. `breathe` is called now and then, for a batch may be a second of work."""
        for key, removes in _fates(entry, self._to_note, breathe):
            if key:
                self._last[key] = -1 if removes else self._noted
            self._noted += 1

    def retained(self, entry: Buffer, breathe: Breathe = lambda: None) -> tuple[Buffer, int] | None:
        """Second pass: what of the entry is left, None when nothing is. `breathe` as above.

        The number has a bit set for each message of a batch that is left, and is 0 when all are.
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
            return entry, 0  # what its client compressed better than we do has no room in a block
        return made, int("".join("1" if stays else "0" for stays in reversed(keep)), 2)


class _Purse:
    """Pays for looking into batches: a message costs one, a decompressed KiB as well; each published byte brings one.

    It begins with `COMPACTION_CREDIT`, so that a few odd batches are looked into anywhere.
    """

    __slots__ = ("_credit",)

    def __init__(self) -> None:
        self._credit = COMPACTION_CREDIT

    def pays(self, entry: Buffer, metadata: pb.MessageMetadata) -> bool:
        """Take in what this batch brings, and pay for it if there is enough."""
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
    """As `split_batch`, of what may be compressed."""
    for number, one in enumerate(split_batch(metadata, plain_payload(metadata, payload))):
        if number % MESSAGES_A_BREATH == 0:
            breathe()
        yield one


def _fates(entry: Buffer, purse: _Purse, breathe: Breathe) -> list[_Fate]:
    """Of each message of an entry; none when it cannot be looked into, and is kept."""
    breathe()
    try:
        metadata, payload = read_metadata(entry)
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
    """The batch with only those messages, the others marked as compacted out."""
    metadata, payload = read_metadata(entry)
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
