"""A process with Quire's own client: producers that number their messages, consumers that acknowledge them.

What an application was told is a fact that outlives it (`Facts`): a receipt, a message, an answered acknowledgement. A
producer of a topic with deduplication begins again, after a crash or an unknown outcome, at the first message without a
receipt, under the same sequence ids; one of another topic goes on with the next message.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any, Final

from quire.client import EARLIEST, Client, ClientSettings, ConsumerSettings, Message, ProducerSettings
from quire.client.consumer import Consumer
from quire.client.messages import MessageId, Receipt
from quire.client.producer import Producer
from quire.runtime.errors import QuireError

from .faults import Cluster
from .loop import Process
from .metadata import SimulatedStore
from .world import SimulatedClock, World

CLIENT: Final = ClientSettings(
    operation_timeout_ms=5_000, connect_timeout_ms=1_000, keep_alive_ms=2_000, backoff_max_ms=500
)
CONSUMER: Final = ConsumerSettings(prefetch_messages_max=20, nack_delay_ms=100)
RECEIVE_S: Final = 0.5
PAUSE_S: Final = 0.2
TYPES: Final = ("exclusive", "failover", "shared")


class Facts:
    """What applications were told, of all topics; the keys are (topic, payload) and (topic, subscription)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.receipts: dict[tuple[str, bytes], MessageId] = {}
        self.delivered: defaultdict[tuple[str, str], set[bytes]] = defaultdict(set)
        self.acknowledged: defaultdict[tuple[str, str], set[tuple[int, int, int]]] = defaultdict(set)
        """Where messages are whose acks were answered: never to be delivered again."""
        self.next_number: defaultdict[str, int] = defaultdict(int)

    def received(self, topic: str, payload: bytes, receipt: Receipt) -> None:
        if receipt.message_id.ledger_id >= 0:
            self.world.saw("receipt")
            self.receipts[topic, payload] = receipt.message_id
        else:
            self.world.saw("duplicate dropped")

    def undelivered(self, topic: str, subscription: str) -> set[bytes]:
        """Messages with a receipt that the subscription has not been given."""
        given = self.delivered[topic, subscription]
        return {payload for of, payload in self.receipts if of == topic and payload not in given}


class Application:
    """See the top of the file. A `Host`."""

    store: SimulatedStore | None = None

    def __init__(
        self, cluster: Cluster, facts: Facts, number: int, topics: list[str], service_url: str
    ) -> None:
        self.cluster, self.world, self.facts = cluster, cluster.world, facts
        self.host = f"application-{number}"
        self.rng = self.world.rng(self.host)
        self.clock = SimulatedClock(self.world.loop)
        self.topics = topics
        self.service_url = service_url
        self.process: Process | None = None
        self.stops_producing = self.stops = False
        self.producing = 0
        self.is_deduplicated = False
        self._lives = 0

    def start_if_down(self) -> None:
        if self.process is None:
            self._lives += 1
            self.producing = 0
            self.process = Process(self.world.loop, f"{self.host}/{self._lives}", self.host)
            self.process.start(self._run(self.process))

    def kill(self, restart_s: float) -> None:
        process, self.process = self.process, None
        if process is not None:
            self.world.note(f"{process} was killed")
            self.world.hidden_kept.append(process)
            process.kill()
            self.cluster.network.died(process, silently=self.rng.random() < 0.3)
            self.world.later(restart_s, self.start_if_down)

    async def _run(self, process: Process) -> None:
        client = Client(self.service_url, settings=CLIENT, clock=self.clock, rng=self.rng)
        works = [self._produce(client, topic) for topic in self.topics]
        works += [self._consume(client, topic, TYPES[i % 3]) for topic in self.topics for i in range(3)]
        await asyncio.gather(*works)
        await client.close()

    # -- producing -------------------------------------------------------------------------------------
    async def _produce(self, client: Client, topic: str) -> None:
        name = f"{self.host}-{topic}"
        settings = ProducerSettings(send_timeout_ms=4_000, batching=self.rng.random() < 0.5)
        self.producing += 1
        while not self.stops_producing:
            try:
                async with client.producer(topic, name=name, settings=settings) as producer:
                    while not self.stops_producing:
                        await self._send_some(producer, topic)
                        await asyncio.sleep(self.rng.choice((0.01, 0.2, 0.5)))
            except QuireError as error:
                self.world.note(f"{self.host} cannot produce to {topic}: {type(error).__name__} {error}")
                await asyncio.sleep(PAUSE_S)
        self.producing -= 1

    async def _send_some(self, producer: Producer, topic: str) -> None:
        key = f"{self.host}-{topic}"
        first = self.facts.next_number[key]
        count = self.rng.choice((1, 2, 10))
        payloads = [self._payload(topic, number) for number in range(first, first + count)]
        if not self.is_deduplicated:
            self.facts.next_number[key] = first + count
        taken = [
            await producer.enqueue(payload, sequence_id=first + i + 1) for i, payload in enumerate(payloads)
        ]
        failure: QuireError | None = None
        for number, (payload, publication) in enumerate(zip(payloads, taken, strict=True), first):
            try:
                receipt = await publication
            except QuireError as error:
                failure = failure or error
                self.world.saw(f"publish {type(error).__name__}")
                continue
            self.facts.received(topic, payload, receipt)
            if self.is_deduplicated and failure is None:
                self.facts.next_number[key] = number + 1
        if failure is not None:
            raise failure

    def _payload(self, topic: str, number: int) -> bytes:
        """The same for the same number, whenever it is made."""
        text = f"{self.host} {topic} {number} ".encode()
        return text + bytes(number * 37 % 700)

    def _goes_on(self) -> bool:
        return not self.stops

    # -- consuming -------------------------------------------------------------------------------------
    async def _consume(self, client: Client, topic: str, kind: str) -> None:
        while not self.stops:
            try:
                async with client.consumer(
                    topic, kind, type=kind, start=EARLIEST, settings=CONSUMER
                ) as consumer:
                    until = self.world.loop.time() + self.rng.choice((2.0, 10.0, 60.0))
                    while self._goes_on() and self.world.loop.time() < until:
                        await self._receive_some(consumer, topic, kind)
            except QuireError as error:
                self.world.note(
                    f"{self.host} cannot consume {topic} as {kind}: {type(error).__name__} {error}"
                )
                self.world.saw(f"consume {type(error).__name__}")
                await asyncio.sleep(PAUSE_S * 3)

    async def _receive_some(self, consumer: Consumer, topic: str, kind: str) -> None:
        messages: list[Message] = []
        try:
            messages.append(await consumer.receive(RECEIVE_S))
        except TimeoutError:
            return
        while len(messages) < 20 and (message := consumer.receive_nowait()) is not None:
            messages.append(message)
        given, asked = self.facts.delivered[topic, kind], []
        self.world.note(
            f"{self.host} is given {topic} as {kind}: {', '.join(str(one.id) for one in messages)}"
        )
        for message in messages:
            if kind == "shared" and self.rng.random() < 0.05:
                await consumer.nack(message)
                continue
            given.add(bytes(message.payload or b""))
            asked.append(message)
        if kind in (
            "exclusive",
            "shared",
        ):  # else an ack that was lost would be made good before anybody looks
            asked = [one for one in asked if one.id.place not in self.facts.acknowledged[topic, kind]]
        if not asked or self.rng.random() < 0.1:
            return
        if kind == "failover":
            await consumer.ack_cumulative(asked[-1])
        else:
            for message in asked:
                await consumer.ack(message)
        if self.rng.random() < 0.5:
            await self._flush(consumer, topic, kind, asked)

    async def _flush(self, consumer: Consumer, topic: str, kind: str, asked: list[Any]) -> None:
        try:
            await consumer.flush_acks()
        except QuireError as error:
            self.world.saw(f"acks {type(error).__name__}")
        else:
            self.world.saw("acks answered")
            ids = ", ".join(str(message.id) for message in asked)
            self.world.note(f"{self.host} knows that its acks of {topic} as {kind} are there: {ids}")
            self.facts.acknowledged[topic, kind].update(message.id.place for message in asked)
