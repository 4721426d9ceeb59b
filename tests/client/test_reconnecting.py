"""A bad network and a broker that restarts: nothing is lost, nothing comes twice, and everybody goes on.

Between client and broker stands the proxy that the cluster's tests use. A producer publishes numbers, some of them as
messages in chunks, on a topic that drops duplicates; consumers of each type and a reader follow. Meanwhile the ways are
cut in one direction or both, delayed, reset; the broker stops, and dies. Then all must be true that is promised without
any of that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest

from quire.client import (
    EARLIEST,
    Client,
    ClientSettings,
    Consumer,
    ConsumerSettings,
    Message,
    ProducerSettings,
    Reader,
)
from quire.runtime.errors import OutcomeUnknown
from quire.runtime.limits import KIB
from quire.serving.broker import Broker
from tests.cluster.proxy import Proxy
from tests.serving.conftest import BrokerHouse

TOPIC = "persistent://public/default/t"
CLIENT = ClientSettings(
    operation_timeout_ms=3_000,
    connect_timeout_ms=500,
    keep_alive_ms=200,
    backoff_first_ms=5,
    backoff_max_ms=100,
)
PRODUCER = ProducerSettings(
    batch_messages_max=7, chunking=True, send_timeout_ms=120_000, in_flight_messages_max=200
)
CONSUMER = ConsumerSettings(prefetch_messages_max=50, ack_delay_ms=5, nack_delay_ms=20)
ENTRY_BYTES_MAX = 16 * KIB
LARGE_BYTES = 3 * ENTRY_BYTES_MAX + 100
ROUNDS = 8
GO_ON_S = 30.0
"""After the last trouble everything must come within it."""

PATIENCE_S = 90.0


def payload_of(number: int) -> bytes:
    """Every eleventh is a message in chunks."""
    text = b"%d " % number
    return text + Random(number).randbytes(LARGE_BYTES) if number % 11 == 10 else text


def number_of(message: Message[bytes]) -> int:
    payload = message.payload or b""
    number = int(payload.split(b" ", 1)[0])
    assert payload == payload_of(number)
    return number


class Road:
    """A broker behind a proxy, and what goes wrong there."""

    def __init__(self, house: BrokerHouse, proxy: Proxy, address: str, rng: Random) -> None:
        self.house = house
        self.port = house.port
        self.proxy = proxy
        self.url = f"pulsar://{address}"
        self.rng = rng
        self.broker: Broker

    async def start(self) -> None:
        self.house.port = self.port
        self.broker = await self.house.start(
            advertise=self.url, deduplication=True, message_bytes_max=ENTRY_BYTES_MAX
        )

    async def trouble(self) -> None:
        """One of all that may happen; it is over when this returns."""
        happens: list[Callable[[], Awaitable[None]]] = [
            self._cut_requests,
            self._cut_answers,
            self._cut_both,
            self._delay,
            self._reset,
            self._restart,
            self._crash,
        ]
        await self.rng.choice(happens)()
        self.proxy.mend()
        await asyncio.sleep(self.rng.uniform(0.0, 0.3))

    async def _while(self) -> None:
        await asyncio.sleep(self.rng.choice((0.05, 0.3, 0.8)))

    async def _cut_requests(self) -> None:
        self.proxy.requests.cut()
        await self._while()

    async def _cut_answers(self) -> None:
        self.proxy.answers.cut()
        await self._while()

    async def _cut_both(self) -> None:
        self.proxy.cut()
        await self._while()

    async def _delay(self) -> None:
        way = self.rng.choice((self.proxy.requests, self.proxy.answers))
        way.delay_s = 0.05
        await self._while()
        way.delay_s = 0.0

    async def _reset(self) -> None:
        for _ in range(self.rng.choice((1, 3))):
            self.proxy.reset()
            await asyncio.sleep(self.rng.choice((0.0, 0.02)))

    async def _restart(self) -> None:
        await self.house.stop(self.broker)
        await self.start()

    async def _crash(self) -> None:
        await self.house.kill(self.broker)
        await self.start()


@pytest.fixture(params=range(6))
async def road(house: BrokerHouse, request: pytest.FixtureRequest) -> AsyncIterator[Road]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        house.port = free.getsockname()[1]
    proxy = Proxy(f"127.0.0.1:{house.port}")
    made = Road(house, proxy, await proxy.start(), Random(request.param))
    await made.start()
    yield made
    await proxy.stop()


@pytest.fixture
async def client(road: Road) -> AsyncIterator[Client]:
    async with Client(road.url, settings=CLIENT, rng=Random(1)) as made:
        yield made


async def publish(client: Client, stop: asyncio.Event) -> int:
    """Numbers until it is told to stop, and one more; how many."""
    number = 0
    async with client.producer("t", name="p", settings=PRODUCER) as producer:
        while not stop.is_set():
            await producer.enqueue(payload_of(number), key=str(number % 5))
            number += 1
            await asyncio.sleep(0.001)
    return number


class Seen:
    """What the members of one subscription were given, in order; they are done when they have all of `count`."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.distinct: set[int] = set()
        self.count = -1

    @property
    def is_done(self) -> bool:
        return self.count == len(self.distinct)

    def add(self, message: Message[bytes]) -> None:
        self.numbers.append(number_of(message))
        self.distinct.add(self.numbers[-1])

    @property
    def first_times(self) -> list[int]:
        return list(dict.fromkeys(self.numbers))


async def follow(consumer: Consumer[bytes], seen: Seen) -> None:
    while not seen.is_done:
        try:
            message = await consumer.receive(0.2)
        except TimeoutError:
            continue
        seen.add(message)
        await consumer.ack(message)
    try:
        await consumer.flush_acks()
    except OutcomeUnknown:
        await consumer.flush_acks()


async def read(reader: Reader[bytes], seen: Seen) -> None:
    while not seen.is_done:
        try:
            seen.add(await reader.read(0.2))
        except TimeoutError:
            continue


async def test_nothing_is_lost_and_nothing_comes_twice(road: Road, client: Client) -> None:
    stop = asyncio.Event()
    views = {name: Seen() for name in ("exclusive", "shared", "key-shared", "reader")}
    async with (
        asyncio.timeout(PATIENCE_S),
        client.consumer("t", "exclusive", start=EARLIEST, settings=CONSUMER) as alone,
        client.consumer("t", "shared", type="shared", start=EARLIEST, settings=CONSUMER) as one,
        client.consumer("t", "shared", type="shared", start=EARLIEST, settings=CONSUMER) as two,
        client.consumer("t", "key-shared", type="key-shared", start=EARLIEST, settings=CONSUMER) as keyed,
        client.reader("t", start=EARLIEST, settings=CONSUMER) as reader,
    ):
        publishing = asyncio.create_task(publish(client, stop))
        following = [
            asyncio.create_task(follow(alone, views["exclusive"])),
            asyncio.create_task(follow(one, views["shared"])),
            asyncio.create_task(follow(two, views["shared"])),
            asyncio.create_task(follow(keyed, views["key-shared"])),
            asyncio.create_task(read(reader, views["reader"])),
        ]
        for _ in range(ROUNDS):
            await road.trouble()
        stop.set()
        count = await publishing
        for view in views.values():
            view.count = count
        done, waiting = await asyncio.wait(following, timeout=GO_ON_S)
        missing = {name: sorted(set(range(count)) - view.distinct) for name, view in views.items()}
        assert not waiting, f"these numbers of {count} did not come: {missing}"
        for one in done:
            await one
    want = list(range(count))
    assert views["reader"].numbers == want, "each once, in order"
    assert views["exclusive"].first_times == want
    assert sorted(views["shared"].distinct) == sorted(views["key-shared"].distinct) == want
    assert await stored(client) == want


async def stored(client: Client) -> list[int]:
    """All that the topic holds."""
    found = []
    async with client.reader("t", start=EARLIEST) as reader:
        while await reader.has_next():
            found.append(number_of(await reader.read(10)))
    return found
