"""Asks each partition of a topic, whichever broker it is on.

What an operator asks of a partitioned topic is asked of its partitions, which are topics of their own: here by a plain
call, elsewhere by the same request of the REST interface (`peers`). A `TopicRequest` knows both ways; whoever makes it
says which refusals of single partitions are no failure of the whole. A partition that nobody has used yet has no
record, and is left out of what is asked of the used ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from quire.metadata.records import TopicRecord
from quire.runtime.errors import QuireError
from quire.serving.cluster.peers import Peers, topic_path
from quire.serving.cluster.port import NotOwner
from quire.serving.cluster.topic_records import TopicRecords
from quire.serving.names import TopicName

ASKED_AT_ONCE: Final = 100
"""Partitions that are asked at the same time: each may have to be loaded first."""

T = TypeVar("T")
Refusals = tuple[type[QuireError], ...]


def _as_it_is(said: Any) -> Any:
    return said


@dataclass(frozen=True)
class TopicRequest(Generic[T]):
    """What is asked of a topic: `here` of one of this broker, else by `method` at the topic's own path and `path`.

    `read` makes of the JSON of another broker's answer what `here` returns.
    """

    here: Callable[[str], Awaitable[T]]
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


class FanOut:
    """See the top of the file."""

    def __init__(self, records: TopicRecords, peers: Peers) -> None:
        self._records = records
        self._peers = peers

    async def used(self, name: TopicName, record: TopicRecord) -> list[TopicName]:
        """Those that were used, or are prepared; of a topic that keeps nothing all, for only their brokers know."""
        names = [name.of_partition(index) for index in range(record.extent)]
        return await self._records.there(names) if name.is_persistent else names

    async def ask(self, partition: TopicName, request: TopicRequest[T]) -> T:
        """Raises as the partition's own broker would."""
        try:
            return await request.here(str(partition))
        except NotOwner as error:
            path = topic_path(partition) + request.path
            return request.read(await self._peers.ask(request.method, error, path, request.body))

    async def each(
        self, partitions: Iterable[TopicName], request: TopicRequest[T], refusals: Refusals = ()
    ) -> PartitionAnswers[T]:
        """Ask all of them. Raises what one of them raises, when all are done, unless it is one of `refusals`."""
        names, slots = list(partitions), asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(partition: TopicName) -> T:
            async with slots:
                return await self.ask(partition, request)

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
