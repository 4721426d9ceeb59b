"""Fan-out of a request to each partition of a topic, whichever broker owns it, or to each other broker.

A request about a partitioned topic is sent to its partitions, which are topics of their own. For a partition of this
broker it is a function call, for others the same request of the REST interface (`peers`). A `TopicRequest` contains
both forms; the caller lists the errors of single partitions that do not fail the whole request. A partition that was
never used has no record, and is skipped.

A request about the cluster is sent to all other brokers concurrently. A broker that does not answer delays the result
for a limited time, and is listed in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from quire.metadata.records import TopicRecord
from quire.runtime.errors import NotFound, QuireError
from quire.security.tls import FollowedContext
from quire.serving.model.ports import NotAllowed
from quire.serving.names import NON_PERSISTENT, TopicName
from quire.serving.ownership.peers import Peers, topic_path
from quire.serving.ownership.port import Addresses, NotOwner, Ownership
from quire.serving.registry.registry import Registry
from quire.wire import topic_name

ASKED_AT_ONCE: Final = 100
"""Maximum number of concurrent requests to partitions, each of which may have to be loaded first."""

ASK_S: Final = 10.0
"""Time limit, in seconds, for other brokers to answer a request that causes no work."""

T = TypeVar("T")
Refusals = tuple[type[QuireError], ...]


def _unchanged(said: Any) -> Any:
    return said


@dataclass(frozen=True)
class TopicRequest(Generic[T]):
    """Request about a topic: `here` for a topic of this broker, else `method` and `path`, relative to the topic's path.

    `read` converts the JSON of another broker's response to the result type of `here`.
    """

    here: Callable[[TopicName], Awaitable[T]]
    method: str
    path: str = ""
    body: Any = None
    read: Callable[[Any], T] = _unchanged


class PartitionAnswers(NamedTuple, Generic[T]):
    """Results of partitions, and the errors of other partitions that do not fail the whole request."""

    found: dict[TopicName, T]
    refused: list[QuireError]

    def results(self) -> dict[TopicName, T]:
        """Return the results. Raises an error if every partition failed."""
        if self.refused and not self.found:
            raise self.refused[0]
        return self.found


class BrokerAnswers(NamedTuple):
    """JSON responses of other brokers, and the error texts of those that did not answer."""

    said: list[Any]
    silent: list[str]


class FanOut:
    def __init__(
        self,
        registry: Registry,
        ownership: Ownership,
        addresses: Addresses,
        to_brokers: FollowedContext | None,
    ) -> None:
        self._catalogue = registry.catalogue
        self._records = registry.records
        self.peers = Peers(to_brokers)
        self._ownership = ownership
        self._addresses = addresses

    # -- partitions ------------------------------------------------------------------------------------

    async def partitions(self, name: TopicName) -> int:
        """Return the number of partitions, 0 if the topic is not partitioned. Raises `NotFound`."""
        try:
            return await self._catalogue.partitions(name)
        except NotFound:
            # A partition that was never used has no record, but exists.
            if name.parent is None:
                raise
            await self._catalogue.covering(name)
            return 0

    async def refuse_parent(self, name: TopicName, what: str) -> None:
        """Raise `NotAllowed` if the topic is partitioned."""
        if await self.partitions(name):
            raise NotAllowed(
                f"{what} is not supported for partitioned topic {name}; send the request for one of its partitions"
            )

    async def record(self, name: TopicName) -> TopicRecord:
        """Return the record of a partitioned topic. Raises `NotFound`, and `Unavailable` if it is being deleted."""
        if not await self._catalogue.partitions(name):
            raise NotFound(f"topic {name} is not partitioned")
        return (await self._records.load(name)).record

    async def used_partitions(self, name: TopicName, record: TopicRecord) -> list[TopicName]:
        """List the partitions that have a record; all partitions of a non-persistent topic, which has no records."""
        names = [name.of_partition(index) for index in range(record.extent)]
        return list(await self._records.find_all(names)) if name.is_persistent else names

    async def ask_topic(self, name: TopicName, request: TopicRequest[T], refusals: Refusals = ()) -> list[T]:
        """Send a request to a topic, or to its used partitions.

        Raises the errors of `ask_partitions`, and an error if every partition fails.
        """
        if not await self.partitions(name):
            return [await request.here(name)]
        used = await self.used_partitions(name, await self.record(name))
        return list((await self.ask_partitions(used, request, refusals)).results().values())

    async def ask_partitions(
        self, partitions: Iterable[TopicName], request: TopicRequest[T], refusals: Refusals = ()
    ) -> PartitionAnswers[T]:
        """Send a request to the given partitions, and wait for all answers.

        Then raises the first error that is not one of `refusals`, if any.
        """
        names, slots = list(partitions), asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(partition: TopicName) -> T:
            async with slots:
                return await self._ask(partition, request)

        said = await asyncio.gather(*map(ask, names), return_exceptions=True)
        answers: PartitionAnswers[T] = PartitionAnswers({}, [])
        for name, one in zip(names, said, strict=True):
            if isinstance(one, QuireError) and isinstance(one, refusals):
                answers.refused.append(one)
            elif isinstance(one, BaseException):
                raise one
            else:
                answers.found[name] = one
        return answers

    async def _ask(self, partition: TopicName, request: TopicRequest[T]) -> T:
        """Send a request to one partition. Raises the error that the partition's owner raises."""
        try:
            return await request.here(partition)
        except NotOwner as error:
            path = topic_path(partition) + request.path
            return request.read(await self.peers.ask(request.method, error, path, request.body))

    # -- brokers ---------------------------------------------------------------------------------------

    async def ask_brokers(self, method: str, path: str, *, timeout_s: float = ASK_S) -> BrokerAnswers:
        """Send a request to all other brokers of the cluster."""
        mine = (self._addresses.http_url, self._addresses.http_url_tls)
        urls = [(one.http_url, one.http_url_tls) for one in self._ownership.brokers()]
        others = [self.peers.choose(*each) for each in urls if each != mine]
        asked = [self.peers.ask_at(method, url, path, timeout_s=timeout_s) for url in others]
        answers = BrokerAnswers([], [])
        for one in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(one, QuireError):
                answers.silent.append(str(one))
            elif isinstance(one, BaseException):
                raise one
            else:
                answers.said.append(one)
        return answers

    async def topics(self, tenant: str, namespace: str, domain: str) -> list[str]:
        """List the full names of topics, with each partition but without partitioned topics. Raises `NotFound`.

        Non-persistent topics exist only on the broker where they are used, so every broker lists its own; topics of a
        broker that does not answer are missing.
        """
        names, _ = await self._catalogue.names(tenant, namespace, domain)
        if domain != NON_PERSISTENT:
            return names
        path = f"/admin/v2/{topic_name.escaped(domain, tenant, namespace)}?here=true"
        answers = await self.ask_brokers("GET", path)
        return sorted({*names, *(name for said in answers.said for name in said)})
