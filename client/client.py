"""The client: where a user begins.

    async with Client("pulsar://127.0.0.1:6650") as client:
        async with client.producer("orders") as producer:
            await producer.send(b"...")

One client per process and cluster is enough: producers and consumers share its connections. Everything belongs to the
event loop in which the client was entered.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from itertools import count
from random import Random
from ssl import SSLContext
from types import TracebackType
from typing import Any, TypeVar, overload

from quire.client.authentication import Authentication
from quire.client.backoff import Backoff
from quire.client.consumer import SUBSCRIPTION_TYPES, Consumer
from quire.client.context import Closable
from quire.client.crypto import Encryption, FindKey
from quire.client.dead_letter import DeadLetterPolicy
from quire.client.errors import is_final
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
from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.tasks import Tasks
from quire.runtime.tls import ClientTls

T = TypeVar("T")


class Client:
    """A user of a cluster. `service_url` may name several hosts: `pulsar://a:6650,b:6650`.

    `tls` goes with `pulsar+ssl://`: files, which are read again when they change, or a context; without it the system's
    authorities are trusted.
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
        self.lookup = Lookup(service_url, self.settings, authentication or Authentication(), tls, self._tasks)
        self._ids = count()
        self._open: list[Closable] = []

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close what is still open, then the connections. Raises what a producer's flush raises."""
        try:
            for one in list(self._open):
                await one.close()
        finally:
            self.lookup.close()
            await self._tasks.stop()

    # -- What users make --

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
        """A producer, to be entered. `name` must be unique on the topic (needed for deduplication over restarts).

        `access`: `shared`, `exclusive`, `exclusive-with-fencing` or `wait-for-exclusive`. Of a topic with exclusive
        access there is one producer; one that another has fenced raises `Fenced` or `PublishFailed` from then on.
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
        """A consumer, to be entered. `topics`: a name, several, or a pattern (`re.compile("orders-.*")`).

        `type`: `exclusive`, `shared`, `failover` or `key-shared`. `start`: where the subscription begins if it is
        new, `EARLIEST` or `LATEST`. One that is not `durable` ends with its last consumer. Without `create` a topic
        that is not there is an error, `NotFound`.

        `priority`: consumers of level 0 come first. `key_ranges`: the key hashes (of 0 to 65535) that a key-shared
        consumer wants, instead of a share. `compacted`: of each key what the last compaction kept. `keys` finds the
        private keys of encrypted messages by name.
        """
        _choose("type", type, SUBSCRIPTION_TYPES)
        if start not in (EARLIEST, LATEST):
            raise ConfigurationError("a subscription starts at EARLIEST or LATEST; seek to go elsewhere")
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
        """A reader, to be entered; it begins after `start`, or at it if `inclusive`.

        With `compacted` it reads of each key what the topic's last compaction kept, then what came after that.
        """
        name = self._name("reader")
        how = SubscribeAs(name, SUBSCRIPTION_TYPES["exclusive"], name, start, inclusive, False, compacted)
        consumer = Consumer(self, [topic], how, settings or ConsumerSettings(), schema, keys=keys)
        return Reader(consumer, start, inclusive)

    async def connect(self) -> None:
        """Be connected to the service URL, which producers and consumers see to by themselves.

        Raises, at the first attempt, what says why that cannot be.
        """
        await self.lookup.connect()

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """How many partitions a topic has; 0: it is not partitioned. Tries again while no broker answers.

        Raises `NotFound` for one that is not there, unless its use may `create` it.
        """
        name = full_name(topic)
        backoff = Backoff(self.settings.backoff_first_ms, self.settings.backoff_max_ms, self.rng)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.settings.operation_timeout_ms / 1000
        while True:
            try:
                return await self.lookup.partitions(name, create=create)
            except QuireError as error:
                wait_s = backoff.next_s()
                if is_final(error, established=False) or loop.time() + wait_s > end_s:
                    raise
            await asyncio.sleep(wait_s)

    async def topics(self, namespace: str = "public/default") -> list[str]:
        """The full names of a namespace's topics, partitions singly."""
        return await self.lookup.topics(namespace)

    # -- For producers and consumers --

    def next_id(self) -> int:
        """An id for a producer or consumer, unique in this client."""
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
        raise ConfigurationError(f"{what} is one of {', '.join(table)}, not {given!r}")
