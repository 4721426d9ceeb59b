"""Consuming and acknowledging, with the time from when each message was due until it arrived."""

from __future__ import annotations

from typing import Final

from quire.client import Consumer, Message
from quire.perf.pacer import Window, now_ns
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
    now, payload = now_ns(), message.payload
    due = due_of(payload)
    if due is not None and due < window.begin:
        due = None
    if (now if due is None else due) < window.measured:
        tallies[CONSUME].all_messages += 1
        return
    tallies[CONSUME].count(len(payload or b""), now, None if due is None else now - due)
