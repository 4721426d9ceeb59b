"""What the wire's hot loops cost, in µs per entry: cutting SENDs, receipts, message headers, batches.

    python bench/wire.py
"""

import os
from collections.abc import Callable
from struct import pack
from time import perf_counter

from quire.wire import commands, varint
from quire.wire.checksum import crc32c
from quire.wire.frame import FrameCutter

ROUNDS = 7


def best_us(work: Callable[[], object], units: int) -> float:
    """The best of some rounds, in µs per unit: the figure least disturbed by what else runs."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = perf_counter()
        work()
        best = min(best, perf_counter() - begin)
    return best / units * 1e6


def entry(size: int) -> bytes:
    body = pack(">I", 20) + os.urandom(size - 10)
    return b"\x0e\x01" + pack(">I", crc32c(body)) + body


def sends(entry_size: int, count: int, first_sequence: int, producers: int = 1, messages: int = 1) -> bytes:
    one = entry(entry_size)
    return b"".join(
        b"".join(commands.send(i % producers, first_sequence + i, messages, one)) for i in range(count)
    )


def cut(stream: bytes, read_bytes: int = 1 << 20) -> FrameCutter:
    cutter = FrameCutter()
    view = memoryview(stream)
    for at in range(0, len(view), read_bytes):
        cutter.feed(view[at : at + read_bytes])
    return cutter


def row(what: str, microseconds: float, note: str = "") -> None:
    print(f"{what:<44}{microseconds:8.3f} µs   {note}")


def main() -> None:
    for size, count in ((100, 40_000), (1024, 20_000), (16 * 1024, 2_000), (128 * 1024, 300)):
        stream = sends(size, count, 300)
        cutter = cut(stream)
        row(f"cut a SEND of {size} B", best_us(lambda s=stream: cut(s), count), f"{cutter.slow_sends} slow")
    stream = sends(1024, 20_000, 3_000_000, producers=1_000)
    row("cut a SEND of 1024 B, 1000 producers in turn", best_us(lambda: cut(stream), 20_000))
    batched = sends(1024, 20_000, 300, messages=100)
    row("cut a SEND of 1024 B with num_messages", best_us(lambda: cut(batched), 20_000))
    heads = [b"\x08\x01\x10" + varint.encode(300 + i) for i in range(1_000)]
    row("a receipt", best_us(lambda: commands.receipt_run(77, 5_000, heads), 1_000))
    row("a receipt alone", best_us(lambda: commands.receipt_run(77, 5_000, heads[:1]), 1))
    lengths = [1_100] * 1_000
    row("a message header", best_us(lambda: commands.message_headers(1, 77, 0, 5_000, lengths), 1_000))


if __name__ == "__main__":
    main()
