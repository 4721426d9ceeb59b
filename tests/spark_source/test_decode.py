"""The decoder by columns equals the plain one, whatever clients may write."""

from __future__ import annotations

import random
from collections.abc import Sequence
from struct import pack
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.spark_source import plain, schema
from quire.spark_source.columns import Origin
from quire.spark_source.decode import Decoder
from quire.spark_source.filters import Filter
from quire.spark_source.plain import UndecodableEntry
from quire.spark_source.positions import Window
from quire.wire import block, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_batch, encode_one, seal

TIME = 1_700_000_000_000
ORIGIN = Origin("persistent://public/default/t", -1, 7, "persistent://public/default/t")
ALL = (*schema.COLUMNS, schema.UNDECODED)
WHOLE = Window()
CODECS = [pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY]


def blocks_of(entries: Sequence[bytes], counts: Sequence[int], per_block: int = 5, first: int = 0) -> bytes:
    parts, index = [], 0
    for i in range(0, len(entries), per_block):
        some = slice(i, i + per_block)
        parts.append(bytes(block.cut(7, first + i, -1, TIME, index, entries[some], counts[some])))
        index += sum(counts[some])
    return b"".join(parts)


def decode(
    blocks: bytes, window: Window = WHOLE, rows: int = 1000, raw: bool = False
) -> list[dict[str, Any]]:
    decoder = Decoder(ALL, ORIGIN, window, batch_rows=rows, keep_raw=raw)
    batches = list(decoder.decode(blocks))
    assert all(0 < batch.num_rows <= rows for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema.arrow(ALL)).to_pylist()


def expected(entries: Sequence[bytes], counts: Sequence[int], first: int = 0) -> list[dict[str, Any]]:
    """The rows by the plain decoder alone."""
    rows, index = [], 0
    for entry_id, (entry, count) in enumerate(zip(entries, counts, strict=True), first):
        place = {"topic": ORIGIN.topic, "partition": -1, "ledger": 7, "entry": entry_id}
        rows += [
            row | place | {"message_index": index + i}
            for i, row in enumerate(plain.rows(memoryview(entry)))
            if not row["compacted_out"]
        ]
        index += count
    return pa.Table.from_pylist(rows, schema.arrow(ALL)).to_pylist()


texts = st.text(max_size=6)
messages = st.builds(
    OutgoingMessage,
    payload=st.none() | st.binary(max_size=40) | st.just(b"x" * 300),
    key=st.none() | texts,
    properties=st.dictionaries(texts, texts, max_size=3),
    event_time_ms=st.sampled_from([0, 0, TIME, 2**45]),
    ordering_key=st.none() | st.binary(max_size=3),
    sequence_id=st.none() | st.sampled_from([0, 127, 128, 2**21, 2**40, 2**56, 2**63, 2**64 - 1]),
)
entries_strategy = st.lists(
    st.tuples(
        st.lists(messages, min_size=1, max_size=20),
        st.booleans(),
        st.sampled_from(CODECS),
        st.sampled_from(["p", "producer-with-a-name", "ü"]),
        st.sampled_from([0, 120, 16_380, 2**32, 2**63]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(entries_strategy, st.integers(1, 7))
def test_equals_the_plain_decoder(drawn: list[Any], per_block: int) -> None:
    entries, counts = [], []
    for content, batched, codec, producer, sequence in drawn:
        if batched:
            entries.append(encode_batch(content, producer, sequence, TIME, codec))
            counts.append(len(content))
        else:
            entries.append(encode_one(content[0], producer, sequence, TIME, codec, b"\x00" * 8))
            counts.append(1)
    assert decode(blocks_of(entries, counts, per_block), rows=7) == expected(entries, counts)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 300), st.booleans())
def test_long_batches_of_like_messages(seed: int, count: int, alike: bool) -> None:
    """Series of equal messages, broken where the sequence id grows by a byte or a payload differs."""
    rng, entries = random.Random(seed), []
    for i in range(4):
        sizes = [50 if alike or rng.random() < 0.9 else rng.randrange(400) for _ in range(count)]
        content = [OutgoingMessage(rng.randbytes(size), key="k" * (size % 3)) for size in sizes]
        entries.append(encode_batch(content, "p", 100 * i, TIME))
    assert decode(blocks_of(entries, [count] * 4)) == expected(entries, [count] * 4)


def metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=TIME, **fields)


def plain_entries(count: int) -> list[bytes]:
    return [encode_one(OutgoingMessage(b"v%d" % i), "p", i, TIME + i) for i in range(count)]


def varint_field(tag: int, number: int) -> bytes:
    return bytes((tag,)) + bytes((number,))


def with_raw_metadata(raw: bytes, payload: bytes = b"x") -> bytes:
    """An entry whose metadata is these bytes."""
    return b"\x0e\x01" + bytes(4) + len(raw).to_bytes(4, "big") + raw + payload


LATE = pb.SingleMessageMetadata(payload_size=1, event_time=1_700_000_000_000_000_000)

ODD_BUT_VALID = {
    "a name twice in the properties": seal(
        metadata(properties=[pb.KeyValue(key="a", value="1"), pb.KeyValue(key="a", value="2")]), b"x"
    ),
    "a hundred properties": seal(
        metadata(properties=[pb.KeyValue(key=str(i), value="1") for i in range(100)]), b"x"
    ),
    "replicated": seal(metadata(replicated_from="elsewhere"), b"x"),
    "a scalar twice": with_raw_metadata(metadata().SerializeToString() + varint_field(0x10, 9)),
    "unknown fields": with_raw_metadata(
        metadata().SerializeToString() + b"\xf8\x7f\x05\xfd\x7f1234\xf9\x7f12345678"
    ),
    "a known field of another type": with_raw_metadata(metadata().SerializeToString() + b"\x5a\x01x"),
    "an empty payload": seal(metadata(), b""),
    "base64 key": seal(metadata(partition_key="AAEC", partition_key_b64_encoded=True), b"x"),
    "not base64 key": seal(metadata(partition_key="?", partition_key_b64_encoded=True), b"x"),
    "an empty batch": seal(metadata(num_messages_in_batch=0), b""),
    "bytes behind a batch": seal(metadata(num_messages_in_batch=1), b"\0\0\0\x02\x18\x01a and more"),
    "a compacted message": seal(
        metadata(num_messages_in_batch=2), b"\0\0\0\x04\x18\x01\x20\x01a" + b"\0\0\0\x02\x18\x01b"
    ),
    "a key that is not UTF-8": with_raw_metadata(metadata().SerializeToString() + b"\x32\x01\xff"),
    "a property that is not UTF-8": with_raw_metadata(
        metadata().SerializeToString() + b"\x22\x0b\x0a\x03foo\x12\x04\x01\x2d\x00\x97"
    ),
    "a key in a batch that is not UTF-8": seal(
        metadata(num_messages_in_batch=1), b"\0\0\0\x05\x18\x01\x12\x01\xffa"
    ),
    "an event time beyond any timestamp": seal(metadata(event_time=2**63), b"x"),
    "an event time in nanoseconds in a batch": seal(
        metadata(num_messages_in_batch=1),
        pack(">I", len(LATE.SerializeToString())) + LATE.SerializeToString() + b"a",
    ),
    "an unknown compression": with_raw_metadata(metadata().SerializeToString() + b"\x40\x63"),
}


def test_text_and_event_times_that_no_column_holds_are_replaced() -> None:
    names = [name for name in ODD_BUT_VALID if "UTF-8" in name or "event time" in name]
    rows = decode(blocks_of([ODD_BUT_VALID[name] for name in names], [1] * len(names)))
    assert [row["key"] for row in rows] == ["\ufffd".encode(), None, "\ufffd".encode(), None, None]
    assert dict(rows[1]["properties"]) == {"foo": "\x01-\x00\ufffd"}
    assert {row["event_time"] for row in rows} == {None}


@pytest.mark.parametrize("what", ODD_BUT_VALID)
def test_odd_entries_among_ordinary_ones(what: str) -> None:
    entries = [*plain_entries(3), ODD_BUT_VALID[what], *plain_entries(2), ODD_BUT_VALID[what]]
    assert decode(blocks_of(entries, [1] * 7)) == expected(entries, [1] * 7)


UNDECODABLE = {
    "encrypted": seal(metadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]), b"x"),
    "begins with": b"\x0e\x02" + plain_entries(1)[0][2:],
    "is truncated": plain_entries(1)[0][:8],
    "metadata of": plain_entries(1)[0][:20],
    "not a protobuf": with_raw_metadata(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
    "required": with_raw_metadata(b"\x0a\x01p"),
    "batch is truncated": seal(metadata(num_messages_in_batch=3), b"\0\0\0\x02\x18\x14" + b"a" * 20),
    "claims": seal(metadata(num_messages_in_batch=1), b"\0\0\0\x02\x18\x7fa"),
    "decompress": seal(metadata(compression=pb.ZSTD, uncompressed_size=100), b"not zstd"),
    "uncompressed": seal(metadata(compression=pb.LZ4, uncompressed_size=2**30), b"x"),
    "beyond any timestamp": seal(
        pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2**63), b"x"
    ),
}


@pytest.mark.parametrize("reason", UNDECODABLE)
def test_an_undecodable_entry_is_named_or_kept(reason: str) -> None:
    entry = UNDECODABLE[reason]
    entries = [*plain_entries(2), entry, *plain_entries(2)]
    blocks = blocks_of(entries, [1] * 5, first=40)
    with pytest.raises(UndecodableEntry, match=f"entry 7:42 of persistent://public/default/t .*{reason}"):
        decode(blocks)
    rows = decode(blocks, raw=True)
    assert [row["value"] for row in rows] == [b"v0", b"v1", entry, b"v0", b"v1"]
    assert reason in rows[2]["undecoded"] and rows[2]["properties"] is None
    assert rows[2]["message_index"] == 2 and rows[1]["undecoded"] is None


def test_any_flipped_byte_of_an_entry_decodes_as_the_plain_decoder_says() -> None:
    rng = random.Random(5)
    whole = encode_batch([OutgoingMessage(b"abc", key="k", properties={"a": "b"})] * 3, "p", 1, TIME)
    for at in range(6, len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        entries = [*plain_entries(1), bytes(damaged), whole]
        blocks = blocks_of(entries, [1, 3, 3])
        try:
            wanted = expected(entries, [1, 3, 3])
        except message.Undecodable:
            with pytest.raises(UndecodableEntry):
                decode(blocks)
        else:
            assert decode(blocks) == wanted, at


def test_chunks_are_rows_that_say_how_to_join_them() -> None:
    chunks = [
        seal(
            metadata(uuid="u", chunk_id=i, num_chunks_from_msg=2, total_chunk_msg_size=4, compression=pb.LZ4),
            piece,
        )
        for i, piece in enumerate((b"ab", b"cd"))
    ]
    rows = decode(blocks_of([*plain_entries(1), *chunks], [1] * 3))
    assert [row["value"] for row in rows] == [b"v0", b"ab", b"cd"]
    assert dict(rows[2]["properties"]) == {
        "quire.chunk.uuid": "u",
        "quire.chunk.id": "1",
        "quire.chunk.count": "2",
        "quire.chunk.compression": "lz4",
    }


@pytest.mark.parametrize("odd", [False, True])
def test_windows_are_half_open(odd: bool) -> None:
    fields = {"replicated_from": "x"} if odd else {}
    single = [b"\0\0\0\x02\x18\x01" + b"%d" % i for i in range(4)]
    batch = b"".join(single)
    entries = [
        seal(
            pb.MessageMetadata(
                producer_name="p", sequence_id=1, publish_time=TIME + i, num_messages_in_batch=4, **fields
            ),
            batch,
        )
        for i in range(6)
    ]
    blocks = blocks_of(entries, [4] * 6, first=10)

    def places(window: Window) -> list[tuple[int, int]]:
        return [(row["entry"], row["batch_index"]) for row in decode(blocks, window)]

    assert places(Window((11, 2), (13, 1))) == [(11, 2), (11, 3), (12, 0), (12, 1), (12, 2), (12, 3), (13, 0)]
    assert places(Window((11, 2), (11, 3))) == [(11, 2)]
    assert places(Window((14, 0), (15, 0))) == [(14, i) for i in range(4)]
    assert {e for e, _ in places(Window(start_ms=TIME + 2, end_ms=TIME + 4))} == {12, 13}
    assert places(Window((16, 0))) == [] == places(Window(end=(10, 0)))


@settings(max_examples=150, deadline=None)
@given(entries_strategy, st.lists(texts, max_size=2), st.sampled_from([None, 1, TIME]), st.integers(0, 2))
def test_a_filter_keeps_the_same_rows_as_one_after_decoding(
    drawn: list[Any], keys: list[str], event_start_ms: int | None, odd: int
) -> None:
    """Only the bytes of rows that are kept are gathered; entries of the plain decoder are filtered alike."""
    entries, counts = [], []
    for content, batched, codec, producer, sequence in drawn:
        whole = encode_batch(content, producer, sequence, TIME, codec) if batched else None
        entries.append(whole or encode_one(content[0], producer, sequence, TIME, codec))
        counts.append(len(content) if batched else 1)
    entries += [entries[0][:-1]] * odd
    counts += [1] * odd
    wanted = Filter(tuple(key.encode() for key in keys) or None, event_start_ms)
    blocks = blocks_of(entries, counts)
    decoder = Decoder(ALL, ORIGIN, WHOLE, batch_rows=7, keep_raw=True, filter_=wanted)
    found = pa.Table.from_batches(decoder.decode(blocks), schema.arrow(ALL))
    every = pa.Table.from_pylist(decode(blocks, raw=True), schema.arrow(ALL)).combine_chunks()
    kept = [row for batch in every.to_batches() for row in wanted.wanted(batch).to_pylist()]
    assert found.to_pylist() == kept


def test_only_the_columns_asked_for() -> None:
    decoder = Decoder(("value", "entry"), ORIGIN, Window(), batch_rows=10, keep_raw=False)
    (batch,) = decoder.decode(blocks_of(plain_entries(3), [1] * 3))
    assert batch.to_pydict() == {"value": [b"v0", b"v1", b"v2"], "entry": [0, 1, 2]}


def test_a_block_of_another_ledger_is_damage() -> None:
    decoder = Decoder(ALL, Origin("t", -1, 8, "t"), Window(), batch_rows=10, keep_raw=False)
    with pytest.raises(block.BlockError, match="found a block of ledger 7 among the blocks of ledger 8"):
        list(decoder.decode(blocks_of(plain_entries(1), [1])))


def test_lost_entries_end_the_query_and_are_named_or_are_left_out(caplog) -> None:
    entries = [encode_one(OutgoingMessage(b"%d" % i), "p", i, TIME) for i in range(12)]
    blank = block.blank(7, 5, TIME, 5, [1, 1, 1])
    blocks = blocks_of(entries[:5], [1] * 5) + blank + blocks_of(entries[8:], [1] * 4, first=8)
    given = Decoder(("value", "entry"), ORIGIN, WHOLE, batch_rows=100, keep_raw=False, skip_lost=True)
    rows = [row for batch in given.decode(blocks) for row in batch.to_pylist()]
    assert [row["entry"] for row in rows] == [0, 1, 2, 3, 4, 8, 9, 10, 11]
    assert "entries 5 to 7 of ledger 7" in caplog.text
    strict = Decoder(("value",), ORIGIN, WHOLE, batch_rows=100, keep_raw=False)
    with pytest.raises(plain.LostEntries, match=r"entries 5 to 7 of ledger 7.*on_lost=skip"):
        list(strict.decode(blocks))


@given(st.lists(messages, min_size=1, max_size=9))
def test_the_plain_decoders_rows_are_what_the_wire_says(batch: list[OutgoingMessage]) -> None:
    entry = memoryview(encode_batch(batch, "p", 7, TIME, pb.ZSTD))
    assert list(plain.rows(entry)) == list(map(plain.row, message.decode(entry)))


def test_a_batch_that_is_wrong_at_its_end_has_no_row() -> None:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=TIME, num_messages_in_batch=3
    )
    entry = memoryview(seal(metadata, b"\0\0\0\2\x18\0" * 2 + b"\0\0\0\2\x18\1"))
    with pytest.raises(message.Undecodable):
        next(plain.rows(entry))
