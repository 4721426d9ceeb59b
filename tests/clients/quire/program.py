"""Quire's own client in every mode it knows: `program.py SERVICE_URL HTTP_URL KEYS SCENARIO...`.

It plays what the programs of the stock clients play, and says it as they do; see `tests/clients/python/program.py`. All
scenarios share one event loop, some at a time.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from world import (
    PATIENCE_S,
    World,
    by_key,
    everything,
    follow,
    met,
    publish,
    publish_at_once,
    received_in_entries,
    refusal,
    rest,
    take,
    tell,
    text,
    turns,
    until,
)

from quire.client import (
    AUTO,
    EARLIEST,
    LATEST,
    STRING,
    AvroSchema,
    Consumer,
    ConsumerSettings,
    DeadLetterPolicy,
    Encryption,
    Int,
    KeyValueSchema,
    Producer,
    ProducerSettings,
    PublishFailed,
)

AT_ONCE = 6
LARGE_BYTES = 11 << 20
"""More than two of the largest messages that a server takes."""

SLOW_BATCHES = ProducerSettings(batch_delay_ms=5_000)


# -- subscription types ------------------------------------------------------------------------------------


async def exclusive(world: World) -> dict[str, Any]:
    consumer = await world.subscribe()
    second = await refusal(world.subscribe())
    await publish(await world.producer(), range(20))
    return {"received": await take(consumer, 20), "second": second}


async def failover(world: World) -> dict[str, Any]:
    active = await world.subscribe(type="failover", name="a")
    standby = await world.subscribe(type="failover", name="b")
    producer = await world.producer()
    await publish(producer, range(10))
    first, idle = await take(active, 10), await rest(standby)
    await active.close()
    await publish(producer, range(10, 20))
    return {"first": first, "idle": idle, "second": await take(standby, 10)}


async def priority(world: World) -> dict[str, Any]:
    low = await world.subscribe(type="failover", name="a", priority=1)
    producer = await world.producer()
    await publish(producer, range(5))
    before = await take(low, 5)
    await low.flush_acks()
    high = await world.subscribe(type="failover", name="b", priority=0)
    await publish(producer, range(5, 15))
    first, idle = await take(high, 10), await rest(low)
    await high.close()
    await publish(producer, range(15, 20))
    return {"before": before, "first": first, "idle": idle, "second": await take(low, 5)}


async def shared(world: World) -> dict[str, Any]:
    few = ConsumerSettings(prefetch_messages_max=5)
    both = [await world.subscribe(type="shared", settings=few) for _ in range(2)]
    await publish(await world.producer(), range(40))
    found = await turns(both, 40)
    return {
        "received": sorted(int(value) for _, value in found),
        "consumers": len({place for place, _ in found}),
    }


async def key_shared(world: World) -> dict[str, Any]:
    both = [await world.subscribe(type="key-shared", name=name) for name in "ab"]
    return await by_key(both, await world.producer())


async def sticky(world: World) -> dict[str, Any]:
    async def member(first: int, last: int) -> Consumer[Any]:
        return await world.subscribe(type="key-shared", key_ranges=[(first, last)])

    both = [await member(0, 32767), await member(32768, 65535)]
    overlap = await refusal(member(30000, 40000))
    return {**await by_key(both, await world.producer()), "overlap": overlap}


# -- publishing ----------------------------------------------------------------------------------------------


async def batching(world: World) -> dict[str, Any]:
    producer = await world.producer(settings=SLOW_BATCHES)
    await publish_at_once(producer, [("", str(number)) for number in range(20)])
    return await received_in_entries(await world.subscribe(), 20)


async def key_batching(world: World) -> dict[str, Any]:
    settings = ProducerSettings(batch_delay_ms=5_000, batch_by_key=True)
    mixed = [(key, f"{key}{number}") for key in "ab" for number in range(5)]
    await publish_at_once(await world.producer(settings=settings), mixed)
    found = await received_in_entries(await world.subscribe(type="key-shared"), 10)
    return {"received": sorted(found["received"]), "entries": found["entries"]}


async def compression(world: World) -> dict[str, Any]:
    facts = {}
    for name in ("lz4", "zlib", "zstd", "snappy"):
        producer = await world.producer(f"-{name}", settings=ProducerSettings(compression=name))
        values = [f"{number} " + "quire " * 100 for number in range(20)]
        await publish_at_once(producer, [("", value) for value in values])
        facts[name] = await everything(world, f"-{name}") == values
    return facts


async def chunking(world: World) -> dict[str, Any]:
    large = bytes(range(256)) * (LARGE_BYTES // 256)
    consumer = await world.subscribe()
    producer = await world.producer(settings=ProducerSettings(chunking=True))
    await producer.send(large)
    await producer.send(b"small")
    first = await consumer.receive(PATIENCE_S)
    await consumer.ack(first)
    payload = first.payload or b""
    return {"size": len(payload), "same": payload == large, "then": (await take(consumer, 1))[0]}


async def encryption(world: World) -> dict[str, Any]:
    await publish(await world.producer(encryption=Encryption(["key"], world.public)), ["secret"])
    without = await world.reader(settings=ConsumerSettings(crypto_failure="consume"))
    sealed = b"secret" not in ((await without.read(PATIENCE_S)).payload or b"")
    return {"received": await take(await world.subscribe(keys=world.private), 1), "sealed": sealed}


async def deduplication(world: World) -> dict[str, Any]:
    await world.admin("PUT", "")
    await world.admin("POST", "/deduplicationEnabled", True)
    for numbers in ((0, 1), (1, 2), (2, 3)):
        async with world.client.producer(world.topic(), name="p") as producer:
            for number in numbers:
                await producer.send(b"%d" % number, sequence_id=number)
    return {"received": await everything(world)}


async def last_sequence(world: World) -> dict[str, Any]:
    await world.admin("PUT", "")
    await world.admin("POST", "/deduplicationEnabled", True)
    first = await world.producer(name="p")
    await publish(first, range(3))
    await first.close()
    return {"last": (await world.producer(name="p")).last_sequence_id}


async def access_modes(world: World) -> dict[str, Any]:
    first = await world.producer(access="exclusive")
    facts = {
        "exclusive": await refusal(world.producer(access="exclusive")),
        "shared": await refusal(world.producer()),
    }
    waiting = asyncio.create_task(world.producer(access="wait-for-exclusive"))
    await publish(first, ["first"])
    await first.close()
    await publish(await waiting, ["second"])
    return {**facts, "received": await everything(world)}


async def fencing(world: World) -> dict[str, Any]:
    old = await world.producer(access="exclusive")
    await publish(old, ["old"])
    taker = await world.producer(access="exclusive-with-fencing")
    fenced = await refusal(publish(old, ["late"]))
    await publish(taker, ["new"])
    return {"fenced": bool(fenced), "received": await everything(world)}


async def non_persistent(world: World) -> dict[str, Any]:
    topic = world.topic(domain="non-persistent")
    consumer = await world.subscribe(topic=topic)
    await publish(await world.producer(topic=topic), range(20))
    return {"received": await take(consumer, 20)}


# -- acknowledgements and redelivery -------------------------------------------------------------------------


async def cumulative(world: World) -> dict[str, Any]:
    await publish(await world.producer(), range(10))
    consumer = await world.subscribe()
    messages = [await consumer.receive(PATIENCE_S) for _ in range(10)]
    await consumer.ack_cumulative(messages[6])
    await consumer.close()
    return {"left": await take(await world.subscribe(), 3)}


async def batch_index(world: World) -> dict[str, Any]:
    producer = await world.producer(settings=SLOW_BATCHES)
    await publish_at_once(producer, [("", str(number)) for number in range(10)])
    consumer = await world.subscribe(type="shared")
    for number in range(10):
        message = await consumer.receive(PATIENCE_S)
        if number % 2 == 0:
            await consumer.ack(message)
    await consumer.close()
    again = await world.subscribe(type="shared")
    return {"left": sorted(await take(again, 5) + await rest(again))}


async def ack_receipts(world: World) -> dict[str, Any]:
    await publish(await world.producer(), range(10))
    consumer = await world.subscribe(type="shared")
    for number in range(10):
        message = await consumer.receive(PATIENCE_S)
        if number < 5:
            await consumer.ack(message)
    await consumer.flush_acks()
    await consumer.close()
    again = await world.subscribe(type="shared")
    return {"left": sorted(await take(again, 5) + await rest(again))}


async def negative(world: World) -> dict[str, Any]:
    await publish(await world.producer(), range(5))
    consumer = await world.subscribe(type="shared", settings=ConsumerSettings(nack_delay_ms=100))
    for _ in range(5):
        message = await consumer.receive(PATIENCE_S)
        if text(message) == "2":
            await consumer.nack(message)
        else:
            await consumer.ack(message)
    again = await consumer.receive(PATIENCE_S)
    return {"again": text(again), "count": again.redelivery_count}


async def ack_timeout(world: World) -> dict[str, Any]:
    """What is not acknowledged in time comes again, and nothing else."""
    await publish(await world.producer(), range(5))
    consumer = await world.subscribe(type="shared", settings=ConsumerSettings(ack_timeout_ms=1_000))
    for _ in range(5):
        message = await consumer.receive(PATIENCE_S)
        if text(message) != "2":
            await consumer.ack(message)
    again = await consumer.receive(PATIENCE_S)
    await consumer.ack(again)
    return {"again": text(again), "count": again.redelivery_count, "more": await rest(consumer)}


async def dead_letter(world: World) -> dict[str, Any]:
    policy = DeadLetterPolicy(2, world.topic("-dead"), "s")
    settings = ConsumerSettings(nack_delay_ms=100)
    consumer = await world.subscribe(type="shared", dead_letter=policy, settings=settings)
    await publish(await world.producer(), ["poison"])
    counts = []
    for _ in range(3):
        message = await consumer.receive(PATIENCE_S)
        counts.append(message.redelivery_count)
        await consumer.nack(message)
    return {"counts": counts, "dead": await take(await world.subscribe("-dead", type="shared"), 1)}


async def retry_letter(world: World) -> dict[str, Any]:
    policy = DeadLetterPolicy(2, world.topic("-dead"), retries=True, retry_letter_topic=world.topic("-retry"))
    consumer = await world.subscribe(type="shared", dead_letter=policy)
    dead = await world.subscribe("-dead", type="shared")
    await publish(await world.producer(), ["poison"])
    deliveries = 0
    while deliveries < 3:
        await consumer.reconsume_later(await consumer.receive(PATIENCE_S), 300)
        deliveries += 1
    return {"deliveries": deliveries, "dead": await take(dead, 1)}


async def delayed(world: World) -> dict[str, Any]:
    consumer = await world.subscribe(type="shared")
    producer = await world.producer()
    start = time.time()
    await publish(producer, ["later"], deliver_at_ms=int(start * 1000) + 1000)
    await publish(producer, ["now"])
    order = await take(consumer, 2)
    return {"order": order, "early": time.time() - start < 1.0}


# -- positions and topics ------------------------------------------------------------------------------------


async def seek(world: World) -> dict[str, Any]:
    producer = await world.producer()
    ids = [(await producer.send(b"%d" % number)).message_id for number in range(5)]
    await asyncio.sleep(0.05)
    between_ms = int(time.time() * 1000)
    await asyncio.sleep(0.05)
    await publish(producer, range(5, 10))
    consumer = await world.subscribe()
    facts = {"all": await take(consumer, 10)}
    await consumer.seek(ids[3])
    facts["from_id"] = await take(consumer, 7)
    await consumer.seek(publish_time_ms=between_ms)
    facts["from_time"] = await take(consumer, 5)
    await consumer.seek(EARLIEST)
    return {**facts, "from_start": await take(consumer, 10)}


async def reader(world: World) -> dict[str, Any]:
    producer = await world.producer()
    ids = [(await producer.send(b"%d" % number)).message_id for number in range(5)]
    one = await world.reader(start=ids[1])
    after = [text(await one.read(PATIENCE_S)) for _ in range(3)]
    end = await one.has_next()
    await one.seek(EARLIEST)
    head = text(await one.read(PATIENCE_S))
    late = await world.reader(start=LATEST)
    await publish(producer, ["5"])
    facts = {"after": after, "more": end, "head": head, "late": text(await late.read(PATIENCE_S))}
    return {**facts, "all": await everything(world)}


async def pattern(world: World) -> dict[str, Any]:
    for name in "ab":
        await publish(await world.producer(f"-{name}"), [name])
    consumer = await world.subscribe(topic=re.compile(world.topic("-.*")))
    return {"received": sorted(await take(consumer, 2))}


async def discovery(world: World) -> dict[str, Any]:
    """A pattern finds a topic that comes later."""
    consumer = await world.subscribe(topic=re.compile(world.topic("-.*")))
    await publish(await world.producer("-a"), ["a"])
    return {"received": await take(consumer, 1)}


async def partitions(world: World) -> dict[str, Any]:
    await world.admin("PUT", "/partitions", 3)
    consumer = await world.subscribe()
    await publish(await world.producer(), range(30))
    messages = [await consumer.receive(PATIENCE_S) for _ in range(30)]
    return {
        "received": sorted(int(text(message)) for message in messages),
        "partitions": len({message.topic for message in messages}),
    }


async def growth(world: World) -> dict[str, Any]:
    """A producer and a consumer that stay meet new partitions."""
    await world.admin("PUT", "/partitions", 2)
    consumer, producer = await world.subscribe(), await world.producer()
    received: list[str] = []
    before = await met(2, producer, consumer, received)
    await world.admin("POST", "/partitions", 4)
    after = await met(4, producer, consumer, received)
    published = len(received)
    received += await rest(consumer)
    exact = sorted(int(one) for one in received) == list(range(published))
    return {"before": before, "after": after, "exact": exact}


async def compaction(world: World) -> dict[str, Any]:
    producer = await world.producer()
    for key, value in (("a", b"a1"), ("b", b"b1"), ("a", b"a2"), ("c", b"c1"), ("c", None)):
        await producer.send(value, key=key)
    await world.admin("PUT", "/compaction")

    async def is_done() -> bool:
        return bool((await world.admin("GET", "/compaction"))["status"] == "SUCCESS")

    await until(is_done)
    return {"view": await take(await world.subscribe(compacted=True), 2)}


async def terminated(world: World) -> dict[str, Any]:
    await publish(await world.producer(), range(3))
    await world.admin("POST", "/terminate")
    refused = await refusal(world.producer())
    return {"refused": refused, "received": await take(await world.subscribe(), 3)}


async def end_of_topic(world: World) -> dict[str, Any]:
    await publish(await world.producer(), range(3))
    await world.admin("POST", "/terminate")
    consumer = await world.subscribe()
    received = await take(consumer, 3)

    async def is_done() -> bool:
        return consumer.has_ended

    await until(is_done)
    return {"received": received, "end": consumer.has_ended}


@dataclass
class Order:
    item: str


@dataclass
class Priced:
    item: str
    cents: Int | None = None


@dataclass
class Strict:
    item: str
    euros: int


async def two_versions(world: World) -> None:
    await (await world.producer(schema=AvroSchema(Order))).send(Order("paper"))
    await (await world.producer(schema=AvroSchema(Priced))).send(Priced("ink", 7))


async def schemas(world: World) -> dict[str, Any]:
    await two_versions(world)
    refused = await refusal(world.producer(schema=AvroSchema(Strict)))
    consumer = await world.subscribe(schema=AvroSchema(Priced))
    return {
        "received": [(await consumer.receive(PATIENCE_S)).value.item for _ in range(2)],
        "refused": refused,
    }


async def auto_consume(world: World) -> dict[str, Any]:
    await two_versions(world)
    consumer = await world.subscribe(schema=AUTO)
    found = [await consumer.receive(PATIENCE_S) for _ in range(2)]
    return {
        "received": [f"{int.from_bytes(one.schema_version, 'big')} {one.value['item']}" for one in found],
    }


async def keys_and_values(world: World) -> dict[str, Any]:
    """Keys are texts, values evolve; consumers that bring no schema of their own get both."""

    async def producing(kind: type) -> Producer[Any]:
        return await world.producer(schema=KeyValueSchema(STRING, AvroSchema(kind), separated=True))

    await (await producing(Order)).send(("a", Order("paper")))
    await (await producing(Priced)).send(("b", Priced("ink")))
    refused = await refusal(producing(Strict))
    consumer = await world.subscribe(schema=AUTO)
    pairs = [(await consumer.receive(PATIENCE_S)).value for _ in range(2)]
    return {"received": [f"{key} {value['item']}" for key, value in pairs], "refused": refused}


# -- a cluster -----------------------------------------------------------------------------------------------

KILL_TOPICS = 4
ROUNDS = 50


async def kill(world: World) -> dict[str, Any]:
    for number in range(KILL_TOPICS):
        await world.admin("PUT", f"-{number}")
        await world.admin("POST", f"-{number}/deduplicationEnabled", True)
    told = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    following = [asyncio.create_task(follow(await world.subscribe(f"-{i}"))) for i in range(KILL_TOPICS)]
    patient = ProducerSettings(send_timeout_ms=600_000)
    producers = [await world.producer(f"-{i}", name=f"p{i}", settings=patient) for i in range(KILL_TOPICS)]
    count, after = 0, 0
    while after < ROUNDS:
        for producer in producers:
            await producer.send(b"%d" % count)
        count += 1
        after += told.done()
        if count == ROUNDS:
            tell({"event": "running"})
    for producer in producers:
        await producer.send(b"end")
    found = [await one for one in following]
    want = list(range(count))
    return {"exact": [one == want for one in found], "enough": count >= 2 * ROUNDS}


async def play(service_url: str, http_url: str, keys: Path, scenario: str, slots: asyncio.Semaphore) -> None:
    async with slots:
        world = World(service_url, http_url, keys, scenario)
        try:
            tell({"scenario": scenario, "facts": await globals()[scenario](world)})
        except Exception as error:
            tell({"scenario": scenario, "error": f"{type(error).__name__}: {error}"})
        try:
            await world.client.close()
        except PublishFailed:
            pass  # what a producer that was fenced had to say, it said


async def main() -> None:
    service_url, http_url, keys, *scenarios = sys.argv[1:]
    slots = asyncio.Semaphore(AT_ONCE)
    plays = [play(service_url, http_url, Path(keys), scenario, slots) for scenario in scenarios]
    await asyncio.gather(*plays)


if __name__ == "__main__":
    asyncio.run(main())
