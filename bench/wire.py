"""Benchmark of the wire protocol's hot loops, in µs per entry: parsing SENDs, receipts, message headers, batches.

python -m bench.wire
"""

import os
from collections.abc import Callable
from functools import partial
from struct import pack
from time import perf_counter

from bench.report import machine, show
from quire.wire import commands, entry_frames, message, varint
from quire.wire.checksum import crc32c
from quire.wire.frame import FrameCutter

ROUNDS = 7


def best_us(work: Callable[[], object], units: int) -> float:
    """Return the time of the best of several rounds in µs per unit, which other load disturbs least."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = perf_counter()
        work()
        best = min(best, perf_counter() - begin)
    return best / units * 1e6


def entry(size: int) -> bytes:
    body = pack(">I", 20) + os.urandom(size - 10)
    return b"\x0e\x01" + pack(">I", crc32c(body)) + body


def sends(
    entry_size: int,
    count: int,
    first_sequence: int,
    producers: int = 1,
    messages: int = 1,
    *,
    tells_highest: bool = False,
) -> bytes:
    """Return `count` SEND frames; with `messages` > 1, each has a batch.

    With `tells_highest`, a frame contains its batch's highest sequence id, which only Java clients send.
    """
    one = entry(entry_size)
    firsts = range(first_sequence, first_sequence + count * messages, messages)
    return b"".join(
        b"".join(
            commands.send(i % producers, first, messages, one, first + messages - 1 if tells_highest else 0)
        )
        for i, first in enumerate(firsts)
    )


def cut(stream: bytes, read_bytes: int = 1 << 20) -> FrameCutter:
    cutter = FrameCutter()
    view = memoryview(stream)
    for at in range(0, len(view), read_bytes):
        cutter.feed(view[at : at + read_bytes])
    return cutter


def main() -> None:
    show("machine", **machine())
    for size, count in ((100, 40_000), (1024, 20_000), (16 * 1024, 2_000), (128 * 1024, 300)):
        stream = sends(size, count, 300)
        assert cut(stream).fast_sends == count
        show(f"cut a SEND of {size} B", us=best_us(partial(cut, stream), count))
    stream = sends(1024, 20_000, 3_000_000, producers=1_000)
    show("cut a SEND of 1024 B, 1000 producers in turn", us=best_us(lambda: cut(stream), 20_000))
    batched = sends(1024, 20_000, 300, messages=100)
    assert cut(batched).fast_sends == 20_000
    show("cut a batch's SEND of 1024 B", us=best_us(lambda: cut(batched), 20_000))
    java = sends(1024, 20_000, 300, producers=1_000, messages=100, tells_highest=True)
    assert cut(java).fast_sends == 20_000
    show("cut a Java batch's SEND of 1024 B, 1000 producers in turn", us=best_us(lambda: cut(java), 20_000))
    heads = [b"\x08\x01\x10" + varint.encode(300 + i) for i in range(1_000)]
    ledger = entry_frames.ledger_field(77)
    show("a receipt", us=best_us(lambda: entry_frames.receipt_run(ledger, 5_000, heads), 1_000))
    show("a receipt alone", us=best_us(lambda: entry_frames.receipt_run(ledger, 5_000, heads[:1]), 1))
    lengths = [1_100] * 1_000
    show(
        "a message header", us=best_us(lambda: entry_frames.message_headers(1, 77, 0, 5_000, lengths), 1_000)
    )
    messages = [message.OutgoingMessage(bytes(100), f"key {i}") for i in range(1_000)]
    batch = message.encode_batch(messages, "p", 0, 1)
    show("encode a message of a batch", us=best_us(lambda: message.encode_batch(messages, "p", 0, 1), 1_000))
    show("decode a message of a batch", us=best_us(lambda: message.decode(batch), 1_000))


if __name__ == "__main__":
    main()
