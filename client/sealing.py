"""Encoder of messages into entries. No I/O.

    messages ─▶ metadata + payload ─▶ compressed ─▶ one payload, or chunks of one message ─▶ encrypted ─▶ entries

An entry is encoded once; after a reconnect the same bytes are sent again.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.client.chunks import CHUNK_METADATA_BYTES, cut
from quire.client.crypto import Encryptor
from quire.client.errors import PublishFailed
from quire.wire import message
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import Buffer, OutgoingMessage

_SEAL_BYTES = 10
"""Size of an entry's header: the magic number, the checksum and the metadata size."""


class Sealer:
    """Encoder of one producer. `schema_version` and `bytes_max` are set after attaching to a broker."""

    def __init__(self, codec: int, bytes_max: int, *, chunking: bool, encryptor: Encryptor | None) -> None:
        self.schema_version: bytes | None = None
        self.bytes_max = bytes_max
        self._codec = codec
        self._chunking = chunking
        self._encryptor = encryptor

    def seal(
        self, messages: Sequence[OutgoingMessage], name: str, first_sequence_id: int, now_ms: int
    ) -> list[bytes]:
        """Encode a batch into entries: one, or the chunks of its only message. Raises `PublishFailed`.

        A single message is encoded without a batch, which costs brokers less.
        """
        if len(messages) == 1:
            composed = message.compose_one(messages[0], name, first_sequence_id, now_ms, self.schema_version)
        else:
            composed = message.compose_batch(messages, name, first_sequence_id, now_ms, self.schema_version)
        metadata, plain = composed
        payload = message.compressed(metadata, plain, self._codec)
        if self._chunking and len(messages) == 1 and len(payload) > (most := self._payload_max(metadata)):
            if most <= 0:
                raise PublishFailed(
                    "the properties of the message are so large that no payload fits into a chunk"
                )
            return [self._sealed(metadata, chunk) for chunk in cut(metadata, payload, most)]
        entry = self._sealed(metadata, payload)
        if len(entry) > self.bytes_max:
            raise PublishFailed(
                f"the entry of {len(entry)} bytes is too large (maximum: {self.bytes_max}); "
                "enable chunking for larger messages"
            )
        return [entry]

    def _payload_max(self, metadata: pb.MessageMetadata) -> int:
        """Return the number of payload bytes that fit into one entry with this metadata."""
        room = self.bytes_max - _SEAL_BYTES - metadata.ByteSize() - CHUNK_METADATA_BYTES
        room -= len(metadata.producer_name)  # the uuid contains it
        return room - (self._encryptor.bytes_added if self._encryptor is not None else 0)

    def _sealed(self, metadata: pb.MessageMetadata, payload: Buffer) -> bytes:
        if self._encryptor is not None:
            payload = self._encryptor.encrypt(metadata, payload)
        return message.seal(metadata, payload)
