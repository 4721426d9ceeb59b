"""The sticky key of an entry, and headers for entries that keys scatter over a block."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.wire import entry_frames, message, sticky_key
from quire.wire import pulsar_pb2 as pb
from quire.wire.hashing import key_slot


def entry(**fields: object) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1, **fields)  # type: ignore[arg-type]
    return message.seal(metadata, b"payload")


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": "grüße"}, "grüße".encode()),
        ({"partition_key": b64encode(b"\x00\xff").decode(), "partition_key_b64_encoded": True}, b"\x00\xff"),
        ({"partition_key": "k", "ordering_key": b"o"}, b"o"),
        ({"partition_key": "not base 64!", "partition_key_b64_encoded": True}, None),
        ({"partition_key": "k", "num_messages_in_batch": 5}, b"k"),
        ({"ordering_key": b""}, b""),
        ({}, b"p-7"),
    ],
)
def test_the_key_is_what_pulsar_takes(fields: dict[str, object], key: bytes | None) -> None:
    before = b"something else"
    buffer = memoryview(before + entry(**fields) + b"more")
    found = sticky_key.key_at(buffer, len(before))
    # Whatever is no base64 has some key, always the same.
    assert found == (sticky_key.key_at(buffer, len(before)) if key is None else key)
    assert sticky_key.slot_at(buffer, len(before)) == key_slot(found)


def test_a_long_key_is_hashed_all_the_same() -> None:
    made = memoryview(entry(partition_key="k" * 10_000))
    assert sticky_key.slot_at(made, 0) == key_slot(b"k" * 10_000)


@given(st.binary(max_size=60))
def test_what_cannot_be_read_has_a_slot(raw: bytes) -> None:
    assert 0 <= sticky_key.slot_at(memoryview(b"\x0e\x01\x00\x00\x00\x00" + raw), 0) < 65_536


def test_an_entry_without_metadata_has_the_key_of_none() -> None:
    assert sticky_key.key_at(memoryview(b"\x0e\x01"), 0) == b"NONE_KEY"


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=20),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.sampled_from([-1, 0, 37, 300]),
    st.sampled_from([0, 1, 300]),
)
def test_scattered_headers_are_those_of_each_entry(
    ids: list[int], consumer_id: int, ledger_id: int, partition: int, count: int
) -> None:
    lengths = list(range(10, 10 + len(ids)))
    made = entry_frames.scattered_message_headers(consumer_id, ledger_id, partition, ids, lengths, count)
    for header, entry_id, length in zip(made, ids, lengths, strict=True):
        assert [header] == entry_frames.message_headers(
            consumer_id, ledger_id, partition, entry_id, [length], count
        )
