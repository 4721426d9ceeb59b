"""A worker's memory stays bounded whatever a slice holds. Each case is decoded in a process of its own, which says how
much it had at most; a record batch is about `BATCH_BYTES`, or one row."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from quire.spark_source import schema
from quire.spark_source.columns import Origin
from quire.spark_source.decode import BATCH_BYTES, Decoder
from quire.spark_source.positions import Window
from quire.wire import block, compression
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_batch, encode_one, seal

TIME_MS = 1_700_000_000_000
TOPIC = "persistent://public/default/t"
WORKER_MB_MAX: Final = 600
"""Of a worker; what it reads ahead, and Spark's own part of it, are less than `BESIDE_MB`."""
BESIDE_MB: Final = 80

Made = tuple[list[bytes], list[int]]


def small_messages() -> Made:
    """A batch of 100,000, in each of some compressions."""
    messages = [OutgoingMessage(b"%d" % n, key="k") for n in range(100_000)]
    codecs = (pb.NONE, pb.ZSTD, pb.LZ4)
    return [encode_batch(messages, "p", 0, TIME_MS, codec) for codec in codecs], [100_000] * 3


def bombs() -> Made:
    """Six entries of less than a KiB that are a million empty messages each."""
    return [packed(b"\0\0\0\2\x18\0" * 1_000_000, 1_000_000)] * 6, [1_000_000] * 6


def large_bombs() -> Made:
    """Three entries that inflate to one message of 127 MiB each."""
    return [packed(bytes(127 << 20))] * 3, [1] * 3


def large_batch() -> Made:
    """Two entries that inflate to 24 messages of 5 MiB each."""
    one = pb.SingleMessageMetadata(payload_size=5 << 20).SerializeToString()
    message = len(one).to_bytes(4, "big") + one + bytes(5 << 20)
    return [packed(message * 24, 24)] * 2, [24] * 2


def large_messages() -> Made:
    """Of 5 MiB, beside small ones."""
    large = encode_one(OutgoingMessage(bytes(5 << 20)), "p", 0, TIME_MS)
    some = encode_one(OutgoingMessage(b"x"), "p", 0, TIME_MS)
    return [*[some] * 500, large, *[some] * 500, large], [1] * 1002


def tiny_messages() -> Made:
    """As many as fit into the blocks that are decoded in one go."""
    return [packed(b"\0\0\0\2\x18\0" * 100_000, 100_000, pb.NONE)] * 13, [100_000] * 13


def odd_messages() -> Made:
    """A batch that only the plain decoder takes: a property is there twice."""
    pairs = [pb.KeyValue(key="a", value="b"), pb.KeyValue(key="a", value="c")]
    one = pb.SingleMessageMetadata(payload_size=1, properties=pairs).SerializeToString()
    return [packed((len(one).to_bytes(4, "big") + one + b"x") * 150_000, 150_000)], [150_000]


def packed(payload: bytes, count: int | None = None, codec: pb.CompressionType = pb.ZSTD) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=TIME_MS)
    if count is not None:
        metadata.num_messages_in_batch = count
    if codec != pb.NONE:
        metadata.compression, metadata.uncompressed_size = codec, len(payload)
        payload = bytes(compression.compress(codec, payload))
    return seal(metadata, payload)


CASES: Final[dict[str, Callable[[], Made]]] = {
    made.__name__: made
    for made in (small_messages, bombs, large_bombs, large_batch, large_messages, tiny_messages, odd_messages)
}


@pytest.mark.parametrize("case", CASES)
def test_memory_is_bounded(case: str) -> None:
    program = "import sys; from tests.spark_source import test_memory; test_memory.decode(sys.argv[1])"
    made = subprocess.run(
        [sys.executable, "-c", program, case], capture_output=True, text=True, env=os.environ, check=False
    )
    assert made.returncode == 0, made.stderr
    rows, peak_mb, largest = map(int, made.stdout.split())
    assert rows == sum(CASES[case]()[1])
    assert peak_mb < WORKER_MB_MAX - BESIDE_MB
    assert largest <= 2 * BATCH_BYTES


def decode(case: str) -> None:
    """In a process of its own: decode all columns, and say how many rows, what memory, and the largest batch."""
    entries, counts = CASES[case]()
    blocks = bytes(block.cut(7, 0, -1, TIME_MS, 0, entries, counts))
    del entries
    decoder = Decoder(schema.COLUMNS, Origin(TOPIC, -1, 7, TOPIC), Window(), batch_rows=8192, keep_raw=False)
    rows = largest = 0
    for batch in decoder.decode(blocks):
        rows += batch.num_rows
        largest = max(largest, batch.nbytes if batch.num_rows > 1 else 0)
    # Not by getrusage, whose peak is at first that of the process which started this one.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    print(rows, int(peak[1]) // 1024, largest)


def test_record_batches_go_by_bytes() -> None:
    entries, counts = large_messages()
    blocks = bytes(block.cut(7, 0, -1, TIME_MS, 0, entries, counts))
    decoder = Decoder(schema.COLUMNS, Origin(TOPIC, -1, 7, TOPIC), Window(), batch_rows=8192, keep_raw=False)
    found = [(batch.num_rows, batch.nbytes) for batch in decoder.decode(blocks)]
    assert sum(rows for rows, _ in found) == 1002
    assert all(size <= 2 * BATCH_BYTES or rows == 1 for rows, size in found)
