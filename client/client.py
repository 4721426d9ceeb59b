"""The client, from which an application creates producers, consumers and readers.

    async with Client("pulsar://127.0.0.1:6650") as client:
        async with client.producer("orders") as producer:
            await producer.send(b"...")

One client per process and cluster is enough: producers and consumers share its connections. All of them must be used in
the event loop in which the client was entered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from random import Random
from ssl import SSLContext
from types import TracebackType
from typing import Any, TypeVar, overload

from quire.client.authentication import Authentication
from quire.client.consumer import SUBSCRIPTION_TYPES, Consumer
from quire.client.context import Closable
from quire.client.crypto import Encryption, FindKey
from quire.client.dead_letter import DeadLetterPolicy
from quire.client.lookup import Lookup
from quire.client.messages import EARLIEST, LATEST, MessageId
from quire.client.pattern import Pattern
from quire.client.producer import ACCESS_MODES, Producer
from quire.client.reader import Reader
from quire.client.routing import full_name
from quire.client.schema import BYTES, Schema
from quire.client.settings import ClientSettings, ConsumerSettings, ProducerSettings
from quire.client.subscribe import SubscribeAs
from quire.runtime.clock import Clock, SystemClock
from quire.runtime.errors import ConfigurationError
from quire.runtime.tasks import Tasks
from quire.runtime.tls import ClientTls

T = TypeVar("T")


class Client:
    """Client of a cluster. `service_url` may list several hosts: `pulsar://a:6650,b:6650`.

    For `pulsar+ssl://`, `tls` gives certificate files, which are read again when they change, or an SSL context;
    without it the operating system's certificate authorities are trusted.
    """

    def __init__(
        self,
        service_url: str,
        *,
        authentication: Authentication | None = None,
        tls: ClientTls | SSLContext | None = None,
        settings: ClientSettings | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self.settings = settings or ClientSettings()
        self.settings.validate()
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or Random()
        self.service_url = service_url
        self._tasks = Tasks("client")
        self.lookup = Lookup(
            service_url, self.settings, authentication or Authentication(), tls, self._tasks, self.rng
        )
        self._ids = count()
        self._open: list[Closable] = []

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all producers, consumers and connections. Raises the error of a producer's flush."""
        try:
            for one in list(self._open):
                await one.close()
        finally:
            self.lookup.close()
            await self._tasks.stop()

    # -- Creating producers, consumers and readers --

    @overload
    def producer(
        self,
        topic: str,
        *,
        name: str = "",
        access: str = "shared",
        encryption: Encryption | None = None,
        settings: ProducerSettings | None = None,
    ) -> Producer[bytes]: ...

    @overload
    def producer(
        self,
        topic: str,
        *,
        schema: Schema[T],
        name: str = "",
        access: str = "shared",
        encryption: Encryption | None = None,
        settings: ProducerSettings | None = None,
    ) -> Producer[T]: ...

    def producer(
        self,
        topic: str,
        *,
        schema: Schema[Any] = BYTES,
        name: str = "",
        access: str = "shared",
        encryption: Encryption | None = None,
        settings: ProducerSettings | None = None,
    ) -> Producer[Any]:
        """Return a producer, to be entered with `async with`.

        `name` must be unique on the topic; deduplication across restarts requires it. `access` is `shared`,
        `exclusive`, `exclusive-with-fencing` or `wait-for-exclusive` ([PIP-68]). A topic with exclusive access has one
        producer; after it was fenced, that producer raises `Fenced` or `PublishFailed`.

        [PIP-68]: https://github.com/apache/pulsar/wiki/PIP-68%3A-Exclusive-Producer
        """
        _choose("access", access, ACCESS_MODES)
        return Producer(
            self,
            topic,
            schema,
            settings=settings or ProducerSettings(),
            name=name,
            access=access,
            encryption=encryption,
        )

    @overload
    def consumer(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        subscription: str,
        *,
        type: str = "exclusive",
        start: MessageId = LATEST,
        name: str = "",
        durable: bool = True,
        create: bool = True,
        priority: int = 0,
        key_ranges: Sequence[tuple[int, int]] = (),
        compacted: bool = False,
        keys: FindKey | None = None,
        dead_letter: DeadLetterPolicy | None = None,
        settings: ConsumerSettings | None = None,
    ) -> Consumer[bytes]: ...

    @overload
    def consumer(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        subscription: str,
        *,
        schema: Schema[T],
        type: str = "exclusive",
        start: MessageId = LATEST,
        name: str = "",
        durable: bool = True,
        create: bool = True,
        priority: int = 0,
        key_ranges: Sequence[tuple[int, int]] = (),
        compacted: bool = False,
        keys: FindKey | None = None,
        dead_letter: DeadLetterPolicy | None = None,
        settings: ConsumerSettings | None = None,
    ) -> Consumer[T]: ...

    def consumer(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        subscription: str,
        *,
        schema: Schema[Any] = BYTES,
        type: str = "exclusive",
        start: MessageId = LATEST,
        name: str = "",
        durable: bool = True,
        create: bool = True,
        priority: int = 0,
        key_ranges: Sequence[tuple[int, int]] = (),
        compacted: bool = False,
        keys: FindKey | None = None,
        dead_letter: DeadLetterPolicy | None = None,
        settings: ConsumerSettings | None = None,
    ) -> Consumer[Any]:
        """Return a consumer, to be entered with `async with`.

        `topics` is one name, several, or a pattern (`re.compile("orders-.*")`). `type` is `exclusive`, `shared`,
        `failover` or `key-shared`. `start`, `EARLIEST` or `LATEST`, is where a new subscription begins. A subscription
        that is not `durable` ends with its last consumer. Without `create`, a missing topic raises `NotFound`.

        `priority`: consumers of level 0 get messages first. `key_ranges`: the ranges of key hashes
        (0 to 65535) for a key-shared consumer, instead of ranges that the broker assigns. `compacted`: read the
        messages that the last compaction kept for each key. `keys` returns the private key for a key name, to decrypt
        messages.
        """
        _choose("type", type, SUBSCRIPTION_TYPES)
        if start not in (EARLIEST, LATEST):
            raise ConfigurationError(
                "a subscription can only start at EARLIEST or LATEST; use seek for another position"
            )
        how = SubscribeAs(
            subscription,
            SUBSCRIPTION_TYPES[type],
            name or self._name("consumer"),
            start,
            durable=durable,
            create=create,
            compacted=compacted,
            priority=priority,
            key_ranges=tuple(key_ranges),
        )
        which = Pattern(topics) if isinstance(topics, re.Pattern) else topics
        return Consumer(
            self,
            [which] if isinstance(which, str) else which,
            how,
            settings or ConsumerSettings(),
            schema,
            keys=keys,
            dead_letter=dead_letter,
        )

    @overload
    def reader(
        self,
        topic: str,
        *,
        start: MessageId = LATEST,
        inclusive: bool = False,
        compacted: bool = False,
        keys: FindKey | None = None,
        settings: ConsumerSettings | None = None,
    ) -> Reader[bytes]: ...

    @overload
    def reader(
        self,
        topic: str,
        *,
        schema: Schema[T],
        start: MessageId = LATEST,
        inclusive: bool = False,
        compacted: bool = False,
        keys: FindKey | None = None,
        settings: ConsumerSettings | None = None,
    ) -> Reader[T]: ...

    def reader(
        self,
        topic: str,
        *,
        schema: Schema[Any] = BYTES,
        start: MessageId = LATEST,
        inclusive: bool = False,
        compacted: bool = False,
        keys: FindKey | None = None,
        settings: ConsumerSettings | None = None,
    ) -> Reader[Any]:
        """Return a reader, to be entered with `async with`; it starts after `start`, or at it if `inclusive`.

        With `compacted` it reads the messages that the topic's last compaction kept, then the later ones.
        """
        if not isinstance(start, MessageId):
            raise ConfigurationError(
                f"a reader must start at EARLIEST, LATEST or a message id, not {start!r}"
            )
        name = self._name("reader")
        how = SubscribeAs(name, SUBSCRIPTION_TYPES["exclusive"], name, start, inclusive, False, compacted)
        consumer = Consumer(self, [topic], how, settings or ConsumerSettings(), schema, keys=keys)
        return Reader(consumer, start, inclusive)

    async def connect(self) -> None:
        """Connect to the service URL now, instead of when the first producer or consumer is created.

        Raises the error of the first attempt.
        """
        await self.lookup.connect()

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Return the number of partitions of a topic, or 0 if it is not partitioned.

        Retries while no broker answers. If the topic does not exist, it is created with `create` where the broker
        allows that, else `NotFound` is raised.
        """
        return await self.lookup.partitions(full_name(topic), create=create)

    async def topics(self, namespace: str = "public/default") -> list[str]:
        """Return the full names of a namespace's topics, with each partition listed separately."""
        return await self.lookup.topics(namespace)

    # -- For producers and consumers --

    def next_id(self) -> int:
        """Return an id for a producer or consumer, unique in this client."""
        return next(self._ids)

    def register(self, one: Closable) -> None:
        self._open.append(one)

    def unregister(self, one: Closable) -> None:
        if one in self._open:
            self._open.remove(one)

    def _name(self, what: str) -> str:
        return f"{what}-{self.rng.getrandbits(40):010x}"


def _choose(what: str, given: str, table: Mapping[str, object]) -> None:
    if given not in table:
        raise ConfigurationError(f"{what} must be one of {', '.join(table)}, not {given!r}")
