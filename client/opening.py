"""From a delivered entry to the messages in it: checked, decrypted, joined, decompressed, split.

    delivery ─▶ checksum ─▶ decrypted, if it must be ─▶ joined, if it is a chunk ─▶ decompressed ─▶ messages

One for each partition, because chunks of one message come from one topic. Chunks that will never be a message are
told to `void`: those that came twice, and those whose others did not come in time, so that nothing waits for them.
Where a broker dispatches singly, the others may have come to another consumer: then what has no beginning or no end is
given back, until all of it comes to one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.client.chunks import Incomplete, Joiner
from quire.client.crypto import Decryptor
from quire.client.settings import ConsumerSettings
from quire.wire import pulsar_pb2 as pb
from quire.wire.frame import Delivery
from quire.wire.message import (
    DecodedMessage,
    Encrypted,
    Undecodable,
    decompressed,
    is_batch,
    is_chunk,
    is_encrypted,
    messages_of,
    read_metadata,
)

_log = logging.getLogger(__name__)


class Opened(NamedTuple):
    """What an entry held. `chunks` are the ids of the entries before it that its message began in."""

    messages: list[DecodedMessage]
    schema_version: bytes
    chunks: tuple[pb.MessageIdData, ...] = ()


NOTHING = Opened([], b"")


class Opening:
    def __init__(
        self,
        settings: ConsumerSettings,
        decryptor: Decryptor | None,
        void: Callable[[Sequence[pb.MessageIdData]], None],
        give_back: Callable[[Sequence[pb.MessageIdData]], None] | None,
    ) -> None:
        self._decryptor = decryptor
        self._crypto_failure = settings.crypto_failure
        self._expiry_s = settings.chunks_expire_ms / 1000
        self._joiner = Joiner(settings.chunked_messages_max)
        self._void = void
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def open(self, delivery: Delivery, now_ms: int) -> Opened:
        """The messages of an entry, none when it is a chunk and others are to come. Raises `Undecodable`."""
        if not delivery.checksum_ok:
            raise Undecodable("it does not match its checksum")
        metadata, payload = read_metadata(delivery.entry)
        if is_encrypted(metadata):
            try:
                payload = self._decrypted(metadata, payload)
            except Encrypted:
                return self._sealed(delivery, metadata, payload)
        chunks: tuple[pb.MessageIdData, ...] = ()
        if is_chunk(metadata):
            joined = self._joiner.add(metadata, payload, delivery.body.message_id, self._loop.time())
            if isinstance(joined, Incomplete):
                self._incomplete(joined, metadata, delivery, now_ms)
                return NOTHING
            payload, chunks = joined
        plain = decompressed(metadata, payload)
        return Opened(messages_of(metadata, plain), metadata.schema_version, chunks)

    def _decrypted(self, metadata: pb.MessageMetadata, payload: memoryview) -> memoryview:
        if self._decryptor is None:
            raise Encrypted("an entry is encrypted by its producer, and this consumer has no keys")
        return self._decryptor.decrypt(metadata, payload)

    def _sealed(self, delivery: Delivery, metadata: pb.MessageMetadata, payload: memoryview) -> Opened:
        """No key fits: as the settings say."""
        if self._crypto_failure == "fail":
            raise
        if self._crypto_failure == "discard":
            self._void([delivery.body.message_id])
            return NOTHING
        alone = pb.MessageMetadata()
        alone.CopyFrom(metadata)
        alone.ClearField("num_messages_in_batch")
        alone.ClearField("compression")
        return Opened(messages_of(alone, payload), metadata.schema_version)

    # -- Chunks --

    @property
    def first_chunk(self) -> pb.MessageIdData | None:
        """Where the oldest message begins that is incomplete."""
        return self._joiner.first_id

    def forget(self) -> None:
        """All that is incomplete comes again, from its first chunk on."""
        self._joiner.clear()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _incomplete(
        self, what: Incomplete, metadata: pb.MessageMetadata, delivery: Delivery, now_ms: int
    ) -> None:
        is_late = metadata.publish_time + self._expiry_s * 1000 < now_ms
        ids = [delivery.body.message_id]
        if what is Incomplete.REPEATED:
            self._void(ids)
        elif what is Incomplete.ORPHANED and self._give_back is not None:
            self._give_back(ids)
        elif what is Incomplete.ORPHANED and is_late:
            self._void(ids)
        if given_up := self._joiner.overflowing():
            _log.warning(
                "more than %d messages in chunks begin at once; the oldest comes again", len(self._joiner)
            )
            if self._give_back is not None:
                self._give_back(given_up)
        self._watch()

    def _watch(self) -> None:
        if self._timer is None and len(self._joiner):
            self._timer = self._loop.call_later(self._expiry_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if given_up := self._joiner.expired(self._loop.time() - self._expiry_s):
            _log.warning("the rest of %d chunks did not come", len(given_up))
            (self._give_back or self._void)(given_up)
        self._watch()


def message_count(delivery: Delivery, unacked: int | None) -> int:
    """How many permits an entry used that was not opened. `unacked`: the bits that came with it."""
    if unacked is not None:
        return unacked.bit_count()
    try:
        metadata, _ = read_metadata(delivery.entry)
    except Undecodable:
        return 1
    return metadata.num_messages_in_batch if is_batch(metadata) else 1
