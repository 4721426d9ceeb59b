"""What the scenarios of `program.py` have: a client, an admin interface, keys, topics of their own, and small deeds."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from quire.client import (
    EARLIEST,
    Client,
    ClientSettings,
    Consumer,
    Message,
    Producer,
    Reader,
    Refused,
    keys_from,
)
from quire.runtime.errors import Fenced, QuireError
from quire.wire import pulsar_pb2 as pb

PATIENCE_S = 20.0
QUIET_S = 0.3
POLLING = ClientSettings(partitions_poll_ms=200)


class World:
    """What a scenario has: a client, an admin interface, keys, and topics named after it."""

    def __init__(self, service_url: str, http_url: str, keys: Path, scenario: str) -> None:
        self.http_url = http_url
        self.public = keys_from({"key": keys / "public.pem"})
        self.private = keys_from({"key": keys / "private.pem"})
        self.name = f"quire-{scenario}"
        self.client = Client(service_url, settings=POLLING)

    def topic(self, suffix: str = "", domain: str = "persistent") -> str:
        return f"{domain}://public/default/{self.name}{suffix}"

    async def producer(self, suffix: str = "", **options: Any) -> Producer[Any]:
        made = self.client.producer(options.pop("topic", self.topic(suffix)), **options)
        await made.start()
        return made

    async def subscribe(self, suffix: str = "", **options: Any) -> Consumer[Any]:
        options = {"start": EARLIEST, **options}
        topic = options.pop("topic", self.topic(suffix))
        made = self.client.consumer(topic, "s", **options)
        await made.start()
        return made

    async def reader(self, suffix: str = "", **options: Any) -> Reader[Any]:
        made = self.client.reader(self.topic(suffix), **{"start": EARLIEST, **options})
        await made.start()
        return made

    async def admin(self, method: str, path: str, body: object = None) -> Any:
        """`path` follows the topic's name."""
        return await asyncio.to_thread(self._admin, method, path, body)

    def _admin(self, method: str, path: str, body: object) -> Any:
        url = f"{self.http_url}/admin/v2/persistent/public/default/{self.name}{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else None


def text(message: Message[Any]) -> str:
    return (message.payload or b"").decode()


async def publish(producer: Producer[Any], values: Iterable[object], **options: Any) -> None:
    for value in values:
        await producer.send(str(value).encode(), **options)


async def publish_at_once(producer: Producer[Any], values: Iterable[tuple[str, str]]) -> None:
    """(key, value): as few batches as the producer makes of them."""
    for key, value in values:
        producer.send_nowait(value.encode(), key=key or None)
    await producer.flush()


async def take(consumer: Consumer[Any], count: int) -> list[str]:
    found = []
    for _ in range(count):
        message = await consumer.receive(PATIENCE_S)
        await consumer.ack(message)
        found.append(text(message))
    return found


async def rest(consumer: Consumer[Any]) -> list[str]:
    """What comes until nothing comes any more."""
    found = []
    while (message := await maybe(consumer)) is not None:
        await consumer.ack(message)
        found.append(text(message))
    return found


async def maybe(consumer: Consumer[Any]) -> Message[Any] | None:
    try:
        return await consumer.receive(QUIET_S)
    except TimeoutError:
        return None


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Return once it holds, or patience is at its end."""
    deadline = time.monotonic() + PATIENCE_S
    while not await holds() and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def refusal(attempt: Awaitable[object]) -> str:
    """What the error says, by the name that the protocol has for it; empty when nobody refused."""
    try:
        await attempt
    except QuireError as error:
        name = "ProducerFenced" if isinstance(error, Fenced) else type(error).__name__
        if isinstance(error, Refused):
            name = pb.ServerError.Name(error.code)  # type: ignore[arg-type]
        return f"{name}: {error}"
    return ""


async def everything(world: World, suffix: str = "", **options: Any) -> list[str]:
    reader = await world.reader(suffix, **options)
    found = []
    while await reader.has_next():
        found.append(text(await reader.read(PATIENCE_S)))
    await reader.close()
    return found


async def turns(consumers: Sequence[Consumer[Any]], count: int) -> list[tuple[int, str]]:
    """(which consumer, value) of `count` messages, taken from the consumers by turns."""
    found: list[tuple[int, str]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for place, consumer in enumerate(consumers):
            if (message := await maybe(consumer)) is not None:
                await consumer.ack(message)
                found.append((place, text(message)))
    return found


async def by_key(consumers: Sequence[Consumer[Any]], producer: Producer[Any]) -> dict[str, Any]:
    """Ten keys, five messages each: every key stays with one consumer, in order."""
    for number in range(5):
        for key in "abcdefghij":
            await producer.send(f"{key}{number}".encode(), key=key)
    found = await turns(consumers, 50)
    homes: dict[str, set[int]] = {}
    order: dict[str, str] = {}
    for place, value in found:
        homes.setdefault(value[0], set()).add(place)
        order[value[0]] = order.get(value[0], "") + value[1]
    return {
        "count": len(found),
        "orders": sorted(set(order.values())),
        "apart": all(len(one) == 1 for one in homes.values()),
        "consumers": len({place for place, _ in found}),
    }


async def received_in_entries(consumer: Consumer[Any], count: int) -> dict[str, Any]:
    values, entries = [], set()
    for _ in range(count):
        message = await consumer.receive(PATIENCE_S)
        await consumer.ack(message)
        values.append(text(message))
        entries.add(message.id[:2])
    return {"received": values, "entries": len(entries)}


async def met(wanted: int, producer: Producer[Any], consumer: Consumer[Any], received: list[str]) -> int:
    """Publishes and receives numbers until so many partitions were used; how many were."""
    topics: set[str] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(topics) < wanted and time.monotonic() < deadline:
        await publish(producer, [len(received)])
        message = await consumer.receive(PATIENCE_S)
        await consumer.ack(message)
        received.append(text(message))
        topics.add(message.topic)
    return len(topics)


async def follow(consumer: Consumer[Any]) -> list[int]:
    """The numbers up to the end, each where it came first."""
    seen: dict[int, None] = {}
    while True:
        message = await consumer.receive()
        await consumer.ack(message)
        if text(message) == "end":
            return list(seen)
        seen.setdefault(int(text(message)))


def tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
