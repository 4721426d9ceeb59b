"""Messages in chunks are rows where their last chunks lie, however slices and segments cut them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from quire.client.chunks import Joined, Joiner, cut
from quire.spark_source import chunks as chunks_module
from quire.spark_source.options import parse
from quire.spark_source.plain import UndecodableEntry
from quire.spark_source.source import QuireReader
from quire.wire import message
from quire.wire import pulsar_pb2 as pb
from quire.wire.compression import compress
from quire.wire.message import OutgoingMessage, encode_one, seal

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"


def chunked(
    producer: str, sequence_id: int, payload: bytes, bytes_max: int, codec: int = pb.NONE
) -> list[bytes]:
    """The entries of one message."""
    metadata = pb.MessageMetadata(
        producer_name=producer,
        sequence_id=sequence_id,
        publish_time=TIME_MS,
        compression=codec,
        uncompressed_size=len(payload),
        partition_key="k",
        properties=[pb.KeyValue(key="a", value="b")],
    )
    return [seal(metadata, part) for part in cut(metadata, compress(codec, payload), bytes_max)]


def small(number: int) -> bytes:
    return encode_one(OutgoingMessage(b"small %d" % number), "p", number, TIME_MS)


def read(broker: Any, slice_bytes: int = 1 << 30, **options: str) -> list[dict[str, Any]]:
    made = replace(parse({"service_url": broker.url, "topic": "t"} | options), slice_bytes=slice_bytes)
    reader = QuireReader(made)
    return [row for part in reader.partitions() for one in reader.read(part) for row in one.to_pylist()]


@pytest.mark.parametrize("codec", [pb.NONE, pb.ZSTD, pb.LZ4])
@pytest.mark.parametrize("slice_bytes", [1 << 30, 400, 1])
def test_a_message_across_slices_and_segments(
    broker: Any, archivist: Any, codec: int, slice_bytes: int
) -> None:
    payload = random.Random(7).randbytes(2500)
    parts = chunked("p", 5, payload, 1000, codec)
    entries = [
        small(0),
        parts[0],
        small(1),
        *map(small, range(2, 50)),
        parts[1],
        small(50),
        parts[2],
        small(51),
    ]
    broker.topics[TOPIC] = [
        broker.segment(1, entries[:30], per_block=4),
        broker.segment(3, entries[30:51], per_block=4),
        broker.segment(4, entries[51:], per_block=1),
    ]
    archivist.archive(broker.topics[TOPIC][0])
    rows = read(broker, slice_bytes)
    (large,) = [row for row in rows if row["value"] == payload]
    assert len(rows) == 53 and rows.index(large) == 51
    assert (large["ledger"], large["entry"], large["batch_index"]) == (4, 2, -1)
    assert (large["message_index"], large["sequence"]) == (53, 5)
    assert (large["key"], large["properties"], large["producer"]) == (b"k", [("a", "b")], "p")
    assert [row["value"] for row in read(broker, slice_bytes, start="4:2")] == [payload, b"small 51"]
    assert payload not in [row["value"] for row in read(broker, slice_bytes, end="4:2")]


def test_raw_chunks_are_rows(broker: Any) -> None:
    broker.topics[TOPIC] = [broker.segment(1, chunked("p", 5, bytes(2500), 1000))]
    rows = read(broker, chunks="raw")
    assert [dict(row["properties"])["quire.chunk.id"] for row in rows] == ["0", "1", "2"]


def test_what_is_incomplete_is_no_row(broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    one, other = chunked("p", 1, bytes(2500), 1000), chunked("p", 11, bytes(2500), 1000)
    broker.topics[TOPIC] = [
        broker.segment(1, [one[0], small(0)]),
        broker.segment(2, [one[1], one[2], small(1), *other[:2]]),
    ]
    del broker.topics[TOPIC][0]
    assert [row["value"] for row in read(broker)] == [b"small 1"]
    assert (
        f"{TOPIC}: skipping the chunked message that ends at 2:1, because its first chunk was trimmed"
        in caplog.text
    )


def test_a_beginning_that_lies_too_far_back_is_named(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = chunked("p", 1, bytes(1500), 1000)
    far = [encode_one(OutgoingMessage(bytes(1000)), "p", i, TIME_MS) for i in range(100)]
    broker.topics[TOPIC] = [broker.segment(1, [parts[0], *far]), broker.segment(2, [parts[1]])]
    assert len(read(broker)) == 101
    monkeypatch.setattr(chunks_module, "LOOK_BACK_BYTES", 20_000)
    with pytest.raises(
        UndecodableEntry, match=r"entry 2:0 of .* first chunk of message p-1 is not among the"
    ):
        read(broker)
    assert read(broker, on_undecodable="raw")[-1]["undecoded"].startswith("the first chunk")


def test_what_is_held_is_bounded(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "HELD_BYTES_MAX", 3000)
    messages = [chunked(f"p{i}", 1, bytes([i]) * 2500, 1000) for i in range(5)]
    entries = [part for parts in zip(*messages, strict=True) for part in parts]
    broker.topics[TOPIC] = [broker.segment(1, entries)]
    assert [row["value"] for row in read(broker)] == [bytes([i]) * 2500 for i in range(5)]


def expected(entries: list[bytes]) -> list[bytes | None]:
    """As a client that reads it all from the beginning."""
    joiner, found = Joiner(1000), []
    for entry in entries:
        metadata, payload = message.read_metadata(entry)
        if not message.is_chunk(metadata):
            found.append(message.decode(entry)[0].payload)
            continue
        joined = joiner.add(metadata, payload.tobytes(), pb.MessageIdData(ledgerId=0, entryId=0), 0.0)
        if isinstance(joined, Joined):
            found.append(joined.payload.tobytes())
    return found


@pytest.mark.parametrize("seed", range(6))
def test_as_a_client_that_reads_it_all(broker: Any, archivist: Any, seed: int) -> None:
    """Producers that are cut off send chunks again, begin messages anew, or never end them."""
    rng = random.Random(seed)
    producers: list[list[bytes]] = [[] for _ in range(4)]
    for name, queue in enumerate(producers):
        for number in range(8):
            parts = chunked(f"p{name}", number, rng.randbytes(rng.randint(1, 900)), rng.randint(100, 400))
            again = rng.random()
            if again < 0.2:
                parts = parts[: rng.randint(0, len(parts))] + parts
            elif again < 0.4:
                parts = parts + parts[rng.randint(1, len(parts)) :]
            elif again < 0.5:
                parts = parts[:-1]
            queue += parts
    entries = []
    while any(producers):
        queue = rng.choice([one for one in producers if one])
        entries.append(queue.pop(0))
        entries += [small(len(entries)) for _ in range(rng.choice((0, 0, 1, 20)))]
    cuts = sorted(rng.sample(range(1, len(entries)), 4))
    for ledger_id, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(entries)], strict=True)):
        segment = broker.segment(ledger_id, entries[begin:end], per_block=rng.randint(1, 9))
        if rng.random() < 0.5:
            archivist.archive(segment)
        broker.topics.setdefault(TOPIC, []).append(segment)
    for slice_bytes in (1 << 30, 700):
        assert [row["value"] for row in read(broker, slice_bytes)] == expected(entries)
