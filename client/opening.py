"""Decoder of delivered entries into messages.

    delivery ─▶ checksum ─▶ decrypted, if encrypted ─▶ joined, if it is a chunk ─▶ decompressed ─▶ messages

Each partition has its own decoder, because all chunks of a message are in one partition. Chunks that cannot become a
message are passed to `void`, which acknowledges them: repeated chunks, and chunks of a message that is not completed in
time. On shared subscriptions, the broker may have dispatched other chunks of a message to another consumer. There the
chunks of incomplete messages are passed to `give_back` for redelivery, until one consumer gets all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.client.chunks import Incomplete, Joiner
from quire.client.crypto import Decryptor
from quire.client.entry import from_words
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
    """Messages of an entry. For a chunked message, `chunks` are the ids of the entries with its earlier chunks."""

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
        """Return the messages of an entry; none for a chunk whose message is incomplete. Raises `Undecodable`."""
        if not delivery.checksum_ok:
            raise Undecodable("the entry does not match its checksum")
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
        """Raise for an entry that cannot be decrypted, discard it, or return it encrypted, as `crypto_failure` says."""
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
        """Id of the first chunk of the oldest incomplete message, or None."""
        return self._joiner.first_id

    def forget(self) -> None:
        """Discard incomplete messages, because the broker redelivers their chunks."""
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
                "more than %d chunked messages are incomplete; the oldest was discarded", len(self._joiner)
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
            _log.warning(
                "discarded %d chunks whose messages were not completed within chunks_expire_ms", len(given_up)
            )
            (self._give_back or self._void)(given_up)
        self._watch()


def unacked_of(delivery: Delivery) -> int | None:
    """Return the bit set of unacknowledged messages delivered with the entry, or None if all messages are."""
    return from_words(list(delivery.body.ack_set)) if delivery.body.ack_set else None


def message_count(delivery: Delivery) -> int:
    """Return the number of permits that an unopened entry used."""
    if (unacked := unacked_of(delivery)) is not None:
        return unacked.bit_count()
    try:
        metadata, _ = read_metadata(delivery.entry)
    except Undecodable:
        return 1
    return metadata.num_messages_in_batch if is_batch(metadata) else 1
