"""Content of an entry: metadata, compression, the messages of a batch.

    offset size  field            an entry, as a client sent it and as it is stored
         0    2  magic            0x0e01
         2    4  crc              CRC32C over all bytes that follow, big-endian like every size here
         6    4  metadata size    M
        10    M  MessageMetadata
      10+M       payload          encrypted if there are encryption keys; else compressed by the codec in `compression`

    The decompressed payload of a batch has, for each message:
         0    4  metadata size    S
         4    S  SingleMessageMetadata
       4+S       payload          `payload_size` bytes

An entry is a batch if `num_messages_in_batch` is *present*, even if it is 1. Brokers parse metadata only for single
fields, such as keys; clients and Spark decode entries. Since clients may send any bytes, an invalid entry raises only
`Undecodable`, or its subclasses `Encrypted` and `Chunk`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from quire.runtime.errors import QuireError
from quire.runtime.limits import BATCH_MESSAGES_MAX, BATCHED_MESSAGE_BYTES_MIN, FRAME_BYTES_MAX
from quire.wire import pulsar_pb2 as pb
from quire.wire.checksum import crc32c
from quire.wire.compression import CompressionError, compress, decompress
from quire.wire.text import replace_invalid_text, text_is_valid

Buffer = bytes | bytearray | memoryview

MAGIC: Final = 0x0E01
_OPENING: Final = Struct(">HII")
_MAGIC_AND_CRC: Final = Struct(">HI")
_U32: Final = Struct(">I")
_NO_PROPERTIES: Final[Mapping[str, str]] = {}


class Undecodable(QuireError):
    """Raised if an entry is invalid; the message describes the invalid part."""


class Encrypted(Undecodable):
    """Raised if an entry is encrypted by its producer; only a holder of its keys can read it."""


class Chunk(Undecodable):
    """Raised if an entry is a chunk of a larger message, which cannot be decoded alone."""


@dataclass(slots=True)
class OutgoingMessage:
    """Message to be published. A `payload` of None is a null value (a deletion, for compaction)."""

    payload: bytes | None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int = 0
    ordering_key: bytes | None = None
    deliver_at_ms: int | None = None
    sequence_id: int | None = None
    key_is_base64: bool = False
    """True if the key is base64 of bytes."""

    @property
    def size(self) -> int:
        """Approximate size in a batch, in bytes."""
        extra = sum(len(k) + len(v) + 4 for k, v in self.properties.items()) if self.properties else 0
        return len(self.payload or b"") + len(self.key or "") + extra + 16


class DecodedMessage(NamedTuple):
    """Message of an entry. Times are in ms since 1970; `event_time_ms` is 0 if there is none."""

    payload: bytes | None
    key: str | None
    key_is_base64: bool
    ordering_key: bytes | None
    properties: Mapping[str, str]
    event_time_ms: int
    publish_time_ms: int
    producer_name: str
    sequence_id: int
    batch_index: int
    """-1 if the entry is a single message, not a batch."""
    batch_size: int
    compacted_out: bool


# -- Reading -------------------------------------------------------------------------------------------


def read_metadata(
    entry: Buffer, bytes_max: int = FRAME_BYTES_MAX, *, exact: bool = False
) -> tuple[pb.MessageMetadata, memoryview]:
    """Split an entry into (metadata, encoded payload), without verifying its checksum. Raises `Undecodable`.

    Text that is not UTF-8 is replaced (`quire.wire.text`), or refused if the metadata must be `exact`. On an event
    loop, `bytes_max` must be at most `METADATA_LOOKED_INTO_BYTES_MAX`.
    """
    view = memoryview(entry)
    try:
        magic, _, size = _OPENING.unpack_from(view)
    except StructError:
        raise Undecodable(f"an entry of {len(view)} bytes is truncated") from None
    if magic != MAGIC:
        raise Undecodable(f"an entry begins with {magic:#06x} instead of {MAGIC:#06x}")
    if size > bytes_max:
        raise Undecodable(f"an entry has metadata of {size} bytes; the maximum is {bytes_max}")
    if size > len(view) - _OPENING.size:
        raise Undecodable(f"an entry's metadata of {size} bytes are truncated")
    end = _OPENING.size + size
    try:
        metadata = pb.MessageMetadata.FromString(view[_OPENING.size : end].tobytes())
    except DecodeError:
        raise Undecodable("an entry's metadata are not a protobuf message") from None
    if not metadata.IsInitialized():
        raise Undecodable("an entry's metadata lack a required field")
    if not text_is_valid(metadata):
        if exact:
            raise Undecodable("an entry's metadata contain text that is not UTF-8")
        replace_invalid_text(metadata)
    return metadata, view[end:]


def checksum_ok(entry: Buffer) -> bool:
    """Return whether the entry matches its producer's checksum."""
    if len(entry) < _OPENING.size:
        return False
    magic, crc = _MAGIC_AND_CRC.unpack_from(entry)
    return bool(magic == MAGIC and crc32c(memoryview(entry)[6:]) == crc)


def is_batch(metadata: pb.MessageMetadata) -> bool:
    return metadata.HasField("num_messages_in_batch")


def is_encrypted(metadata: pb.MessageMetadata) -> bool:
    return len(metadata.encryption_keys) > 0


def is_chunk(metadata: pb.MessageMetadata) -> bool:
    return metadata.HasField("chunk_id") and metadata.num_chunks_from_msg > 1


def plain_payload(metadata: pb.MessageMetadata, payload: memoryview) -> memoryview:
    """Decompress the payload. Raises `Encrypted`, `Chunk` or `Undecodable`."""
    if is_encrypted(metadata):
        raise Encrypted("an entry is encrypted by its producer")
    if is_chunk(metadata):
        raise Chunk("an entry is a chunk of a larger message, and cannot be decoded alone")
    return decompressed(metadata, payload)


def decompressed(metadata: pb.MessageMetadata, payload: memoryview) -> memoryview:
    """Decompress a payload that is decrypted and complete. Raises `Undecodable`."""
    try:
        return memoryview(decompress(metadata.compression, payload, metadata.uncompressed_size))
    except CompressionError as error:
        raise Undecodable(str(error)) from None


def split_batch(
    metadata: pb.MessageMetadata, payload: memoryview, *, exact: bool = False
) -> Iterator[tuple[pb.SingleMessageMetadata, memoryview]]:
    """Yield (metadata, payload) of each message of a batch's decompressed payload. Raises `Undecodable`.

    Text that is not UTF-8 is handled as in `read_metadata`.
    """
    count = metadata.num_messages_in_batch
    if not 0 <= count <= BATCH_MESSAGES_MAX:
        raise Undecodable(f"a batch claims {count} messages")
    if count * BATCHED_MESSAGE_BYTES_MIN > len(payload):
        raise Undecodable(f"a batch claims {count} messages in {len(payload)} bytes")
    parse, end = pb.SingleMessageMetadata.FromString, len(payload)
    at = 0
    for _ in range(count):
        if end - at < 4:
            raise Undecodable("a batch is truncated")
        begin = at + 4
        at = begin + _U32.unpack_from(payload, at)[0]
        if at > end:
            raise Undecodable("the metadata of a message in a batch are truncated")
        try:
            single = parse(payload[begin:at].tobytes())
        except DecodeError:
            raise Undecodable("the metadata of a message in a batch are not a protobuf message") from None
        size = single.payload_size
        if not (single.IsInitialized() and 0 <= size <= end - at):
            raise Undecodable(f"a message in a batch claims {size} bytes; {end - at} are left")
        if not _is_text(single):
            if exact:
                raise Undecodable("a message in a batch contains text that is not UTF-8")
            replace_invalid_text(single)
        yield single, payload[at : at + size]
        at += size


def _is_text(single: pb.SingleMessageMetadata) -> bool:
    """Return whether the strings of a batch's message are UTF-8; the parser returns other strings as bytes."""
    texts: list[object] = [single.partition_key]
    for one in single.properties:
        texts += (one.key, one.value)
    return bytes not in map(type, texts)


def decode(entry: Buffer) -> list[DecodedMessage]:
    """Decode the messages of an entry, in order. Raises `Encrypted`, `Chunk` or `Undecodable`."""
    metadata, payload = read_metadata(entry)
    return messages_of(metadata, plain_payload(metadata, payload))


def messages_of(metadata: pb.MessageMetadata, payload: memoryview) -> list[DecodedMessage]:
    """Decode the messages of an entry with a plain payload, in order. Raises `Undecodable`."""
    if not is_batch(metadata):
        return [_single(metadata, payload)]
    return _batch(metadata, payload)


def _single(metadata: pb.MessageMetadata, payload: memoryview) -> DecodedMessage:
    return DecodedMessage(
        payload=None if metadata.null_value else payload.tobytes(),
        key=metadata.partition_key if metadata.HasField("partition_key") else None,
        key_is_base64=metadata.partition_key_b64_encoded,
        ordering_key=metadata.ordering_key if metadata.HasField("ordering_key") else None,
        properties={p.key: p.value for p in metadata.properties} if metadata.properties else _NO_PROPERTIES,
        event_time_ms=metadata.event_time,
        publish_time_ms=metadata.publish_time,
        producer_name=metadata.producer_name,
        sequence_id=metadata.sequence_id,
        batch_index=-1,
        batch_size=1,
        compacted_out=False,
    )


def _batch(metadata: pb.MessageMetadata, payload: memoryview) -> list[DecodedMessage]:
    time, name, first = metadata.publish_time, metadata.producer_name, metadata.sequence_id
    count = metadata.num_messages_in_batch
    return [
        DecodedMessage(
            None if one.null_value else body.tobytes(),
            one.partition_key if one.HasField("partition_key") else None,
            one.partition_key_b64_encoded,
            one.ordering_key if one.HasField("ordering_key") else None,
            {p.key: p.value for p in one.properties} if one.properties else _NO_PROPERTIES,
            one.event_time,
            time,
            name,
            one.sequence_id if one.HasField("sequence_id") else first + index,
            index,
            count,
            one.compacted_out,
        )
        for index, (one, body) in enumerate(split_batch(metadata, payload))
    ]


# -- Writing -------------------------------------------------------------------------------------------


def seal(metadata: pb.MessageMetadata, payload: Buffer) -> bytes:
    """Build an entry from `metadata` and `payload`, with magic and checksum."""
    raw = metadata.SerializeToString()
    body = b"".join((_U32.pack(len(raw)), raw, payload))
    return _MAGIC_AND_CRC.pack(MAGIC, crc32c(body)) + body


def encode_one(
    message: OutgoingMessage,
    producer_name: str,
    sequence_id: int,
    publish_time_ms: int,
    codec: int = pb.NONE,
    schema_version: bytes | None = None,
) -> bytes:
    """Encode one message as an entry that is not a batch."""
    metadata, payload = compose_one(message, producer_name, sequence_id, publish_time_ms, schema_version)
    return seal(metadata, compressed(metadata, payload, codec))


def compose_one(
    message: OutgoingMessage,
    producer_name: str,
    sequence_id: int,
    publish_time_ms: int,
    schema_version: bytes | None = None,
) -> tuple[pb.MessageMetadata, bytes]:
    """Build the metadata and the uncompressed payload of an entry with one message that is not a batch."""
    metadata = _metadata(producer_name, sequence_id, publish_time_ms, schema_version)
    _describe(metadata, message)
    if message.deliver_at_ms is not None:
        metadata.deliver_at_time = message.deliver_at_ms
    return metadata, message.payload or b""


def encode_batch(
    messages: Sequence[OutgoingMessage],
    producer_name: str,
    first_sequence_id: int,
    publish_time_ms: int,
    codec: int = pb.NONE,
    schema_version: bytes | None = None,
) -> bytes:
    """Encode an entry that is a batch. Messages without a sequence id are numbered from `first_sequence_id`.

    The first message's key is copied into the metadata, so that a broker finds it without decompressing: for Key_Shared
    subscriptions, a batch should contain only messages of one key. Delayed messages are not batched.
    """
    metadata, payload = compose_batch(
        messages, producer_name, first_sequence_id, publish_time_ms, schema_version
    )
    return seal(metadata, compressed(metadata, payload, codec))


def compose_batch(
    messages: Sequence[OutgoingMessage],
    producer_name: str,
    first_sequence_id: int,
    publish_time_ms: int,
    schema_version: bytes | None = None,
) -> tuple[pb.MessageMetadata, bytes]:
    """Build the metadata and the uncompressed payload of an entry that is a batch."""
    assert 0 < len(messages) <= BATCH_MESSAGES_MAX
    parts: list[bytes] = []
    sequence_id = first_sequence_id
    single = pb.SingleMessageMetadata()  # reused, because creating it takes as long as the rest of the loop
    for offset, message in enumerate(messages):
        sequence_id = first_sequence_id + offset if message.sequence_id is None else message.sequence_id
        body = message.payload or b""
        single.Clear()
        single.payload_size = len(body)
        single.sequence_id = sequence_id
        _describe(single, message)
        raw = single.SerializeToString()
        parts += (_U32.pack(len(raw)), raw, body)
    metadata = _metadata(producer_name, first_sequence_id, publish_time_ms, schema_version)
    metadata.num_messages_in_batch = len(messages)
    metadata.highest_sequence_id = sequence_id
    if messages[0].key is not None:
        metadata.partition_key = messages[0].key
        if messages[0].key_is_base64:
            metadata.partition_key_b64_encoded = True
    if messages[0].ordering_key is not None:
        metadata.ordering_key = messages[0].ordering_key
    return metadata, b"".join(parts)


def _metadata(name: str, sequence_id: int, time_ms: int, schema_version: bytes | None) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name=name, sequence_id=sequence_id, publish_time=time_ms, schema_version=schema_version
    )


def _describe(holder: pb.MessageMetadata | pb.SingleMessageMetadata, message: OutgoingMessage) -> None:
    if message.key is not None:
        holder.partition_key = message.key
        if message.key_is_base64:
            holder.partition_key_b64_encoded = True
    if message.ordering_key is not None:
        holder.ordering_key = message.ordering_key
    if message.event_time_ms:
        holder.event_time = message.event_time_ms
    if message.payload is None:
        holder.null_value = True
    for key, value in message.properties.items():
        holder.properties.add(key=key, value=value)


def compressed(metadata: pb.MessageMetadata, payload: bytes, codec: int) -> Buffer:
    """Compress the payload, and record the codec and the uncompressed size in the metadata."""
    if codec != pb.NONE and payload:
        metadata.compression = codec  # type: ignore[assignment]
        metadata.uncompressed_size = len(payload)
        return compress(codec, payload)
    return payload
