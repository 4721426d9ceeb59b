"""Entries from the inside: what is encoded comes back, what is damaged is refused by name."""

import zlib
from struct import pack

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.runtime.limits import UNCOMPRESSED_BYTES_MAX
from quire.wire import hashing, message, sticky_key
from quire.wire import pulsar_pb2 as pb
from quire.wire.checksum import crc32c
from quire.wire.compression import NAMES, CompressionError, compress, decompress
from quire.wire.message import OutgoingMessage, Undecodable
from quire.wire.text import replace_invalid_text, text_is_valid

CODECS = sorted(NAMES.values())

texts = st.text(max_size=20)
outgoing = st.builds(
    OutgoingMessage,
    payload=st.none() | st.binary(max_size=300),
    key=st.none() | texts,
    properties=st.dictionaries(texts, texts, max_size=3),
    event_time_ms=st.integers(0, 1 << 60),
    ordering_key=st.none() | st.binary(max_size=10),
)


def essence(one: message.DecodedMessage | OutgoingMessage) -> tuple[object, ...]:
    return (one.payload, one.key, dict(one.properties), one.event_time_ms, one.ordering_key)


@given(st.lists(outgoing, min_size=1, max_size=8), st.sampled_from(CODECS))
def test_a_batch_comes_back(messages: list[OutgoingMessage], codec: int) -> None:
    entry = message.encode_batch(messages, "p", 100, 1_700_000_000_000, codec)
    assert message.checksum_ok(entry)
    decoded = message.decode(entry)
    assert list(map(essence, decoded)) == list(map(essence, messages))
    assert [m.sequence_id for m in decoded] == [100 + i for i in range(len(messages))]
    assert [m.batch_index for m in decoded] == list(range(len(messages)))
    assert {(m.producer_name, m.publish_time_ms, m.batch_size) for m in decoded} == {
        ("p", 1_700_000_000_000, len(messages))
    }


@given(outgoing, st.sampled_from(CODECS))
def test_one_message_comes_back(one: OutgoingMessage, codec: int) -> None:
    (decoded,) = message.decode(message.encode_one(one, "p", 7, 5, codec))
    assert essence(decoded) == essence(one)
    assert (decoded.sequence_id, decoded.batch_index) == (7, -1)


def test_a_batch_of_one_is_a_batch() -> None:
    metadata, _ = message.read_metadata(message.encode_batch([OutgoingMessage(b"x")], "p", 1, 2))
    assert message.is_batch(metadata)
    metadata, _ = message.read_metadata(message.encode_one(OutgoingMessage(b"x"), "p", 1, 2))
    assert not message.is_batch(metadata)


@settings(max_examples=300)
@given(st.data(), st.sampled_from(CODECS), st.booleans())
def test_a_flipped_bit_fails_the_checksum_and_never_breaks_the_decoder(
    data: st.DataObject, codec: int, batch: bool
) -> None:
    one = OutgoingMessage(b"payload " * 5, "key", {"name": "value"})
    entry = (
        message.encode_batch([one] * 3, "p", 1, 2, codec)
        if batch
        else message.encode_one(one, "p", 1, 2, codec)
    )
    position = data.draw(st.integers(0, 8 * len(entry) - 1))
    damaged = bytearray(entry)
    damaged[position // 8] ^= 1 << position % 8
    assert not message.checksum_ok(damaged)
    try:
        message.decode(damaged)
    except Undecodable:
        pass
    sticky_key.key_at(memoryview(damaged), 0)


@given(st.binary(max_size=200))
def test_garbage_is_undecodable(garbage: bytes) -> None:
    with pytest.raises(Undecodable):
        message.decode(garbage)


@given(st.binary(max_size=100), st.sampled_from(CODECS), st.integers(0, 1 << 32))
def test_garbage_does_not_decompress_to_another_size(garbage: bytes, codec: int, size: int) -> None:
    if codec == pb.NONE:
        return
    try:
        assert len(decompress(codec, garbage, size)) == size
    except CompressionError:
        pass


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != pb.NONE])
def test_a_bomb_is_refused_before_it_is_allocated(codec: int) -> None:
    bomb = compress(codec, bytes(4 << 20))
    for claim in (100, (4 << 20) - 1, (4 << 20) + 1, UNCOMPRESSED_BYTES_MAX + 1):
        with pytest.raises(CompressionError):
            decompress(codec, bomb, claim)
    assert decompress(codec, bomb, 4 << 20) == bytes(4 << 20)


def test_a_zstd_frame_may_keep_its_size_to_itself() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(b"abc" * 100)
    assert decompress(pb.ZSTD, frame, 300) == b"abc" * 100
    with pytest.raises(CompressionError):
        decompress(pb.ZSTD, frame, 299)


def test_a_cut_zlib_stream_is_refused() -> None:
    for missing in (1, 4, 8):
        with pytest.raises(CompressionError):
            decompress(pb.ZLIB, zlib.compress(b"abc" * 100)[:-missing], 300)


def metadata(**more: object) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **more)  # type: ignore[arg-type]


NOT_UTF_8 = b"\x01-\x00\x97"
PROPERTY = b"\x0a\x03foo\x12\x04" + NOT_UTF_8


def with_invalid_text() -> dict[str, bytes]:
    """Entries with text that is not UTF-8, by where it stands."""
    single = b"\x18\x01" + b"\x0a" + pack("B", len(PROPERTY)) + PROPERTY + b"\x12\x01\xff"
    head = metadata().SerializeToString()
    name, key, properties = b"\x0a\x02p\xff", b"\x32\x01\xff", b"\x22" + pack("B", len(PROPERTY)) + PROPERTY
    return {
        "batch": message.seal(metadata(num_messages_in_batch=1), pack(">I", len(single)) + single + b"x"),
        "name, key and property": sealed_raw(head + name + key + properties, b"x"),
    }


def sealed_raw(raw: bytes, payload: bytes) -> bytes:
    body = pack(">I", len(raw)) + raw + payload
    return pack(">HI", message.MAGIC, crc32c(body)) + body


@pytest.mark.parametrize("where", ["batch", "name, key and property"])
def test_text_that_is_not_utf_8_is_replaced_and_the_message_stays_readable(where: str) -> None:
    (found,) = message.decode(with_invalid_text()[where])
    assert (found.payload, found.key, found.properties) == (b"x", "\ufffd", {"foo": "\x01-\x00\ufffd"})
    assert found.producer_name == ("p" if where == "batch" else "p\ufffd")


@pytest.mark.parametrize("where", ["batch", "name, key and property"])
def test_text_that_is_not_utf_8_is_refused_if_the_reader_needs_it_exact(where: str) -> None:
    with pytest.raises(Undecodable, match="not UTF-8"):
        found, payload = message.read_metadata(with_invalid_text()[where], exact=True)
        list(message.split_batch(found, payload, exact=True))


def test_invalid_text_is_replaced_in_lists_and_in_messages_below() -> None:
    raw = pb.CommandGetTopicsOfNamespaceResponse(request_id=1, topics=["a", "b"]).SerializeToString()
    found = pb.CommandGetTopicsOfNamespaceResponse.FromString(raw.replace(b"a", b"\xff"))
    assert not text_is_valid(found)
    replace_invalid_text(found)
    assert text_is_valid(found)
    assert found.topics == ["\ufffd", "b"]


def test_an_encrypted_entry_says_so() -> None:
    sealed = metadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
    with pytest.raises(message.Encrypted):
        message.decode(message.seal(sealed, b"secret"))


def test_a_chunk_says_so() -> None:
    with pytest.raises(message.Chunk):
        message.decode(message.seal(metadata(uuid="u", chunk_id=0, num_chunks_from_msg=2), b"half"))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        pack(">I", 100) + b"x",
        pack(">I", 2) + b"\x18\x05" + b"1234",
        pack(">I", 2) + b"\xff\xff",
        pack(">I", 11) + b"\x18" + b"\xff" * 9 + b"\x01",
    ],
)
def test_a_broken_batch_is_undecodable(payload: bytes) -> None:
    with pytest.raises(Undecodable):
        message.decode(message.seal(metadata(num_messages_in_batch=1), payload))


def test_hashes_are_those_of_the_field() -> None:
    # From the reference implementations: MurmurHash3_x86_32 with seed 0, and Java's String.hashCode.
    assert hashing.murmur3_32(b"") == 0
    assert hashing.murmur3_32(b"hello") == 0x248BFA47
    assert hashing.murmur3_32(b"hello, world") == 0x149BBB7F
    assert hashing.murmur3_32(b"The quick brown fox jumps over the lazy dog") == 0x2E4FF723
    assert hashing.java_string_hash("hello") == 99162322
    assert hashing.java_string_hash("polygenelubricants") == 0
    assert hashing.key_slot(b"hello") == 0x248BFA47 % 65_536


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"", 0x0),
        (bytes(range(1)), 0x514E28B7),
        (bytes(range(2)), 0x70E1A2C0),
        (bytes(range(3)), 0x51D4D0D7),
        (bytes(range(4)), 0x74C0EC39),
        (bytes(range(5)), 0x4CA4DCCB),
        (bytes(range(8)), 0x5161D673),
        (bytes(range(9)), 0x67E27A50),
        (b"\xff", 0x7D6CF10D),
        (b"\xff\xff", 0x619621F),
        (b"\xff\xff\xff", 0x3F12A026),
        (b"\xff\xff\xff\xff", 0x76293B50),
        (b"\xff" * 7, 0x11D1DA7),
        ("schlüssel".encode(), 0x227606FD),
        ("键".encode(), 0x184B54B2),
        (bytes(1000), 0x736BB110),
        (b"x" * 70_000, 0x2BCB5EFE),
    ],
)
def test_slots_of_keys_stay_what_they_are(key: bytes, expected: int) -> None:
    """Consumers of one subscription may be served by brokers of two versions."""
    assert hashing.murmur3_32(key) == expected
