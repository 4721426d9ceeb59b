"""Asks each partition of a topic, whichever broker it is on, or each of the other brokers.

What an operator asks of a partitioned topic is asked of its partitions, which are topics of their own: here by a plain
call, elsewhere by the same request of the REST interface (`peers`). A `TopicRequest` knows both ways; its
maker says which refusals of single partitions are no failure of the whole. A partition that was never used has no
record, and is left out of what is asked of the used ones.

What is asked of the whole cluster is asked of all other brokers at once; one that does not answer delays the result
for a limited time, and is named in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from quire.metadata.records import TopicRecord
from quire.runtime.errors import NotFound, QuireError
from quire.security.tls import FollowedContext
from quire.serving.cluster.addresses import Addresses
from quire.serving.cluster.peers import Peers, topic_path
from quire.serving.cluster.port import NotOwner, Ownership
from quire.serving.cluster.registry import Registry
from quire.serving.model.ports import NotAllowed
from quire.serving.names import NON_PERSISTENT, TopicName
from quire.wire import topic_name

ASKED_AT_ONCE: Final = 100
"""Partitions that are asked at the same time: each may have to be loaded first."""

ASK_S: Final = 10.0
"""How long other brokers may take for what is no work."""

T = TypeVar("T")
Refusals = tuple[type[QuireError], ...]


def _as_it_is(said: Any) -> Any:
    return said


@dataclass(frozen=True)
class TopicRequest(Generic[T]):
    """What is asked of a topic: `here` of one of this broker, else by `method` at the topic's own path and `path`.

    `read` makes of the JSON of another broker's answer what `here` returns.
    """

    here: Callable[[TopicName], Awaitable[T]]
    method: str
    path: str = ""
    body: Any = None
    read: Callable[[Any], T] = _as_it_is


class PartitionAnswers(NamedTuple, Generic[T]):
    """What partitions answered, and the refusals of others that are no failure of the whole."""

    found: dict[TopicName, T]
    refused: list[QuireError]

    def some(self) -> dict[TopicName, T]:
        """What was answered. Raises the refusal when all refused."""
        if self.refused and not self.found:
            raise self.refused[0]
        return self.found


class BrokerAnswers(NamedTuple):
    """The JSON that other brokers answered, and why some did not."""

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
        """0 for a topic without partitions. Raises `NotFound` when there is neither."""
        try:
            return await self._catalogue.partitions(name)
        except NotFound:
            # A partition that was never used is there all the same.
            if name.parent is None:
                raise
            await self._catalogue.covering(name)
            return 0

    async def refuse_parent(self, name: TopicName, what: str) -> None:
        """Raise `NotAllowed` for a topic that has partitions."""
        if await self.partitions(name):
            raise NotAllowed(
                f"{what} of the partitioned topic {name} is not allowed; ask one of its partitions"
            )

    async def record(self, name: TopicName) -> TopicRecord:
        """Of a topic with partitions. Raises `NotFound`, and `Unavailable` while it is being deleted."""
        if not await self._catalogue.partitions(name):
            raise NotFound(f"{name} has no partitions")
        return (await self._records.load(name)).record

    async def used(self, name: TopicName, record: TopicRecord) -> list[TopicName]:
        """Those that were used, or are prepared; of a topic that keeps nothing all, for only their brokers know."""
        names = [name.of_partition(index) for index in range(record.extent)]
        return list(await self._records.find_all(names)) if name.is_persistent else names

    async def whole(self, name: TopicName, request: TopicRequest[T], refusals: Refusals = ()) -> list[T]:
        """What a topic answers, or its used partitions do. Raises as `each`, and a refusal when all refuse."""
        if not await self.partitions(name):
            return [await request.here(name)]
        used = await self.used(name, await self.record(name))
        return list((await self.each(used, request, refusals)).some().values())

    async def each(
        self, partitions: Iterable[TopicName], request: TopicRequest[T], refusals: Refusals = ()
    ) -> PartitionAnswers[T]:
        """Ask all of them. Raises what one of them raises, when all are done, unless it is one of `refusals`."""
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
        """Raises as the partition's own broker would."""
        try:
            return await request.here(partition)
        except NotOwner as error:
            path = topic_path(partition) + request.path
            return request.read(await self.peers.ask(request.method, error, path, request.body))

    # -- brokers ---------------------------------------------------------------------------------------

    async def others(self, method: str, path: str, *, timeout_s: float = ASK_S) -> BrokerAnswers:
        """Ask all other brokers of the cluster."""
        mine = (self._addresses.http_url, self._addresses.http_url_tls)
        urls = [(row["httpUrl"], row["httpUrlTls"]) for row in self._ownership.brokers()]
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
        """Full names, partitions one by one, their parents not. Raises `NotFound`.

        Topics that keep nothing are where they are used, so every broker is asked for them; one that does not answer
        now has none to show.
        """
        names, _ = await self._catalogue.names(tenant, namespace, domain)
        if domain != NON_PERSISTENT:
            return names
        path = f"/admin/v2/{topic_name.escaped(domain, tenant, namespace)}?here=true"
        answers = await self.others("GET", path)
        return sorted({*names, *(name for said in answers.said for name in said)})
