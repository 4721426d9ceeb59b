"""Consuming and acknowledging, with the time from when each message was due until it arrived."""

from __future__ import annotations

import time
from typing import Final

from quire.client import Consumer, Message
from quire.perf.pacer import Window
from quire.perf.payload import due_of
from quire.perf.tally import Tally

CONSUME: Final = "consume"


async def consume(consumer: Consumer[bytes], tallies: dict[str, Tally], window: Window) -> None:
    """Receive and acknowledge messages until cancelled."""
    while True:
        message = consumer.receive_nowait() or await consumer.receive()
        arrived(message, tallies, window)
        await consumer.ack(message)


def arrived(message: Message[bytes], tallies: dict[str, Tally], window: Window) -> None:
    """Count a message that has just arrived.

    A message that was published before the begin has no latency, because it waited for the consumer.
    """
    now_ns = window.ns(time.monotonic())
    payload = message.payload
    due_ns = due_of(payload)
    is_of_this_run = due_ns is not None and due_ns >= window.ns(window.begin)
    counts_from = due_ns if is_of_this_run and due_ns is not None else now_ns
    if counts_from < window.ns(window.measured):
        tallies[CONSUME].all_messages += 1
        return
    latency_ns = now_ns - counts_from if is_of_this_run else None
    tallies[CONSUME].count(len(payload or b""), now_ns, latency_ns)
