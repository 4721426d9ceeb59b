"""Application process with Quire's client: producers that number their messages, consumers that acknowledge them.

`facts` records an application's receipts, messages and confirmed acknowledgements, also after the application died.
After a crash or an unknown outcome, a producer with deduplication resumes at the first message without a receipt, with
the same sequence ids. A producer without deduplication continues with the next message.

The topic with keys has other subscriptions: one is key-shared, and one seeks back and forth, by id and by time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from quire.client import (
    EARLIEST,
    LATEST,
    Client,
    ClientSettings,
    ConsumerSettings,
    Message,
    MessageId,
    ProducerSettings,
)
from quire.client.consumer import Consumer
from quire.client.producer import Producer
from quire.runtime.errors import QuireError

from .facts import KEYS, LED, PARTED, REMADE, Facts, Place, Seek, kinds_of
from .faults import Cluster
from .host import SimulatedHost
from .loop import Process
from .world import EPOCH_MS, SimulatedClock

CLIENT: Final = ClientSettings(
    operation_timeout_ms=5_000,
    connect_timeout_ms=1_000,
    keep_alive_ms=2_000,
    backoff_max_ms=500,
    partitions_poll_ms=1_000,
)
CONSUMER: Final = ConsumerSettings(prefetch_messages_max=20, nack_delay_ms=100)
RESENT: Final = 3
"""Number of messages with receipts that a restarted application sends again."""

RECEIVE_S: Final = 0.5
PAUSE_S: Final = 0.2
CLIENT_TYPES: Final = {"seeking": "exclusive"}
"""Types of the subscriptions whose names are not their types."""


class Application(SimulatedHost):
    def __init__(
        self, cluster: Cluster, facts: Facts, number: int, topics: list[str], service_url: str
    ) -> None:
        super().__init__(cluster, f"application-{number}")
        self.facts = facts
        self.number = number
        self.clock = SimulatedClock(self.world.loop)
        self.topics = topics
        self.service_url = service_url
        self.stops_producing = self.stops = False
        self.producing = 0
        self.is_deduplicated = False
        self.trims = cluster.plan.retention_ms >= 0 or cluster.plan.retention_bytes >= 0

    def work(self, process: Process) -> Coroutine[Any, Any, None]:
        self.producing = 0
        return self._run(process)

    async def _run(self, process: Process) -> None:
        client = Client(self.service_url, settings=CLIENT, clock=self.clock, rng=self.rng)
        works = [self._produce(client, topic) for topic in self.topics]
        works += [
            self._consume(client, topic, kind)
            for topic in self.topics
            for kind in kinds_of(topic)
            if kind != "seeking" or self.number == 0  # so that no other application's acks follow a seek
        ]
        if self.cluster.plan.keyed or self.trims:
            works += [
                self._read_along(client, topic)
                for topic in self.topics
                if topic not in (PARTED, REMADE) and self.rng.random() < 0.4
            ]
        await asyncio.gather(*works)
        await client.close()

    # -- producing -------------------------------------------------------------------------------------
    async def _produce(self, client: Client, topic: str) -> None:
        name = f"{self.host}-{topic}"
        batching = self.rng.random() < 0.5
        if topic == KEYS:  # with batches by key, a producer's numbers do not grow
            settings = ProducerSettings(
                send_timeout_ms=4_000, batching=batching and not self.is_deduplicated, batch_by_key=True
            )
        else:
            settings = ProducerSettings(send_timeout_ms=4_000, batching=batching)
        access = "exclusive-with-fencing" if topic == LED else "shared"
        if not self.is_deduplicated and self.number % 2:
            name = ""  # the broker assigns one: a reconnection with it replaces the former connection
        needs_subscriptions = self.trims or topic == PARTED
        self.producing += 1
        while not self.stops_producing:
            if needs_subscriptions and not self._all_subscribed(topic):
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                async with client.producer(topic, name=name, access=access, settings=settings) as producer:
                    self._go_back(topic)
                    await self._send_for(
                        producer, topic, self.rng.choice((0.5, 3.0)) if topic == LED else 1e9
                    )
            except QuireError as error:
                self.world.note(f"{self.host} cannot produce to {topic}: {type(error).__name__} {error}")
                await asyncio.sleep(PAUSE_S)
        self.producing -= 1

    def _go_back(self, topic: str) -> None:
        """Go back to messages that have receipts, as a program does whose own record of its progress is outdated.

        This is done only for topics in which brokers detect the duplicates: not for topics with several partitions,
        that are deleted, or whose payloads depend on the epoch.
        """
        if self.cluster.plan.resent and self.is_deduplicated and topic not in (LED, PARTED, REMADE):
            key = f"{self.host}-{topic}"
            self.facts.next_number[key] = max(0, self.facts.next_number[key] - RESENT)

    async def _send_for(self, producer: Producer[bytes], topic: str, seconds: float) -> None:
        until = self.world.loop.time() + seconds
        while not self.stops_producing and self.world.loop.time() < until:
            await self._send_some(producer, topic)
            await asyncio.sleep(self.rng.choice((0.01, 0.2, 0.5)))

    async def _send_some(self, producer: Producer[bytes], topic: str) -> None:
        key = f"{self.host}-{topic}"
        first = self.facts.next_number[key]
        count = self.rng.choice((1, 2, 10))
        epoch = producer.topic_epoch
        payloads = [self._payload(topic, number, epoch) for number in range(first, first + count)]
        if not self.is_deduplicated or topic == LED:
            self.facts.next_number[key] = first + count
        taken = []
        for number, payload in enumerate(payloads, first):
            of = f"key-{number % 5}" if topic == KEYS else None
            self.facts.sends(topic, payload, of, self.clock.now_ms())
            taken.append(await producer.enqueue(payload, sequence_id=number + 1, key=of))
        failure: QuireError | None = None
        for number, (payload, publication) in enumerate(zip(payloads, taken, strict=True), first):
            try:
                receipt = await publication
            except QuireError as error:
                failure = failure or error
                self.world.saw(f"publish {type(error).__name__}")
                continue
            if (topic, payload) in self.facts.receipts and topic not in (PARTED, REMADE):
                self.world.saw("sent again with a receipt")
                again = (
                    f"{topic}: {payload[:40]!r} has a receipt, and was stored again at {receipt.message_id}"
                )
                is_stored = self.is_deduplicated and receipt.message_id.ledger_id >= 0
                self.world.check(not is_stored, "duplicates", again)
            self.facts.received(topic, payload, receipt)
            if self.is_deduplicated and failure is None and topic != LED:
                self.facts.next_number[key] = number + 1
        if failure is not None:
            raise failure

    def _all_subscribed(self, topic: str) -> bool:
        """Return whether all subscriptions of the topic exist, so that trimming waits for their acknowledgements."""
        return all((topic, kind) in self.facts.subscribed for kind in kinds_of(topic))

    def _payload(self, topic: str, number: int, epoch: int | None) -> bytes:
        """Return the payload of a message, which depends only on the application, topic, number and topic epoch."""
        text = f"{self.host} {topic} {number} {-1 if epoch is None else epoch} ".encode()
        return text + bytes(number * 37 % 700)

    def _goes_on(self) -> bool:
        return not self.stops

    # -- consuming -------------------------------------------------------------------------------------
    async def _consume(self, client: Client, topic: str, kind: str) -> None:
        while not self.stops:
            if topic == PARTED and not self.facts.partitions:
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                names, start = await self._where(client, topic)
                async with client.consumer(
                    names, kind, type=CLIENT_TYPES.get(kind, kind), start=start, settings=CONSUMER
                ) as consumer:
                    self.facts.subscribed.add((topic, kind))
                    until = self.world.loop.time() + self.rng.choice((2.0, 10.0, 60.0))
                    while self._goes_on() and self.world.loop.time() < until:
                        await self._receive_some(consumer, topic, kind)
            except QuireError as error:
                self.world.note(
                    f"{self.host} cannot consume {topic} as {kind}: {type(error).__name__} {error}"
                )
                self.world.saw(f"consume {type(error).__name__}")
                await asyncio.sleep(PAUSE_S * 3)

    async def _where(self, client: Client, topic: str) -> tuple[list[str], MessageId]:
        """Return the names to subscribe to, and a new subscription's start: for partitions, stock clients' default."""
        if topic != PARTED:
            return [topic], EARLIEST
        count = await client.partitions(topic)
        return [f"{topic}-partition-{number}" for number in range(count)], LATEST

    async def _receive_some(self, consumer: Consumer[bytes], topic: str, kind: str) -> None:
        messages: list[Message[bytes]] = []
        seek: Seek | None = None
        if kind == "seeking" and not self.stops_producing and self.rng.random() < 0.1:
            seek = await self._seek(consumer, topic, kind)
        try:
            messages.append(await consumer.receive(RECEIVE_S))
        except TimeoutError:
            return
        if seek is not None:
            self.facts.check_seek(topic, kind, seek, messages[0])
        while len(messages) < 20 and (message := consumer.receive_nowait()) is not None:
            messages.append(message)
        asked = []
        self.world.note(
            f"{self.host} is given {topic} as {kind}: {', '.join(str(one.id) for one in messages)}"
        )
        for message in messages:
            self.cluster.oracle.given(*message.id.place[:2], f"{self.host} as {kind} of {topic}")
            if kind == "shared" and self.rng.random() < 0.05:
                await consumer.nack(message)
                continue
            self.facts.gives(topic, kind, [message])
            asked.append(message)
        if kind in (
            "exclusive",
            "shared",
        ):  # do not repeat acks that were answered: it would hide that an ack was lost
            asked = [one for one in asked if one.id.place not in self.facts.acknowledged[topic, kind]]
        if not asked or self.rng.random() < 0.1:
            return
        if (
            kind == "failover" and topic != PARTED
        ):  # with several topics, a cumulative ack covers only the topic of its message
            self.facts.asks_up_to(topic, kind, asked[-1])
            await consumer.ack_cumulative(asked[-1])
        else:
            self.facts.asks(topic, kind, asked)
            for message in asked:
                await consumer.ack(message)
        if self.rng.random() < 0.5:
            await self._flush(consumer, topic, kind, asked)

    async def _flush(self, consumer: Consumer[bytes], topic: str, kind: str, asked: list[Any]) -> None:
        seeks = self.facts.seeks[topic, kind]
        try:
            await consumer.flush_acks()
        except QuireError as error:
            self.world.saw(f"acks {type(error).__name__}")
        else:
            self.world.saw("acks answered")
            ids = ", ".join(str(message.id) for message in asked)
            self.world.note(f"{self.host} knows that its acks of {topic} as {kind} are there: {ids}")
            if seeks == self.facts.seeks[topic, kind]:
                self.facts.acknowledged[topic, kind].update(message.id.place for message in asked)

    async def _seek(self, consumer: Consumer[bytes], topic: str, kind: str) -> Seek | None:
        """Seek to a message or to a recent time, and return the seek; None if the topic has no messages yet."""
        ids = [found for _, found in self.facts.of(topic)]
        if not ids:
            return None
        target, back_ms = self.rng.choice(ids), self.rng.choice((0, 500, 3_000))
        time_ms = EPOCH_MS + int(self.world.loop.time() * 1000) - back_ms
        seek = Seek(time_ms=time_ms) if self.rng.random() < 0.4 else Seek(place=target.place)
        self.world.note(f"{self.host} seeks {topic} as {kind} to {seek}")
        self.facts.seeks_to(topic, kind, seek)
        if seek.time_ms >= 0:
            await consumer.seek(publish_time_ms=time_ms)
        else:
            await consumer.seek(target)
        self.facts.sought(topic, kind, seek)
        return seek

    # -- reading ---------------------------------------------------------------------------------------
    async def _read_along(self, client: Client, topic: str) -> None:
        """Run readers without subscriptions one after another, each from the topic's beginning for a while."""
        while not self.stops:
            tape: list[tuple[Place, bytes]] = []
            try:
                async with client.reader(topic, start=EARLIEST, settings=CONSUMER) as reader:
                    self.facts.tapes.append((topic, tape))
                    until = self.world.loop.time() + self.rng.choice((1.0, 5.0))
                    while self.world.loop.time() < until:
                        message = await reader.read(RECEIVE_S)
                        self.cluster.oracle.given(
                            *message.id.place[:2], f"a reader of {topic} at {self.host}"
                        )
                        tape.append((message.id.place, bytes(message.payload or b"")))
            except TimeoutError:
                pass
            except QuireError as error:
                self.world.note(f"{self.host} cannot read {topic}: {type(error).__name__} {error}")
            await asyncio.sleep(PAUSE_S)
