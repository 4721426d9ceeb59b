"""A connection that has ended is freed at once: garbage in circles waits for the collector, which hardly ever runs."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Iterator

import pytest

from quire.runtime.settings import parse_address
from quire.serving.broker import Broker
from quire.wire import commands
from tests.serving.session.test_connection import entry, producer, subscribe

ACTS = {
    "nothing": b"",
    "garbage": bytes(1000),
    "half a frame": b"\x00\x01\x00\x00" + bytes(1000),
    "pings": commands.PING * 1000,
    "lists": b"".join(commands.ask_topics(number, "public/default") for number in range(300)),
    "a watcher": commands.watch_topics(1, 1, "public/default", "persistent://public/default/.*"),
    "a consumer": subscribe(1) + commands.flow(1, 10),
    "a producer": producer(1, 1) + b"".join(b"".join(commands.send(1, n, 1, entry())) for n in range(100)),
    "acknowledgements": subscribe(1) + commands.ack(1, [commands.message_id(5, n) for n in range(20_000)]),
    "a command from the other side": commands.success(1),
}


@pytest.fixture
def _uncollected() -> Iterator[None]:
    """Nor do log records, which tests keep, hold the frames of errors."""
    gc.collect()
    gc.disable()
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
    gc.enable()


@pytest.mark.usefixtures("_uncollected")
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("greets", [True, False])
async def test_a_connection_that_has_ended_is_freed(broker: Broker, act: str, greets: bool) -> None:
    address = parse_address(broker.service_url.partition("://")[2])
    seen: list[weakref.ref[object]] = []
    for _ in range(3):
        reader, writer = await asyncio.open_connection(*address)
        if greets:
            writer.write(commands.connect("c"))
            await reader.read(1)
        writer.write(ACTS[act])
        async with asyncio.timeout(60):
            while not broker.sessions.connections and not reader.at_eof():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        seen += map(weakref.ref, broker.sessions.connections)
        await asyncio.sleep(0.01)
        writer.transport.abort()
        async with asyncio.timeout(60):
            while broker.sessions.connections:
                await broker.sessions._keep_alive()
                await asyncio.sleep(0.01)
    async with asyncio.timeout(60):
        while any(one() is not None for one in seen):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
