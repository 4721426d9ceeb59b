"""How many topics a namespace has at most (Pulsar's maxTopicsPerNamespace): counted before one more is made.

Each partition counts as a topic, also one that was never used, and a topic that keeps nothing while it is in use on
this broker. Topics are counted and the new ones noted in one go, namespace by namespace, so that many who ask at once
are not all let in. Another broker may let one in at the same moment; the next is refused by both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from quire.metadata.records import NamespaceRecord
from quire.runtime.errors import TooMany
from quire.serving.cluster.topic_lists import TopicLists
from quire.serving.names import NON_PERSISTENT, TopicName
from quire.wire import pulsar_pb2 as pb

_Namespace = tuple[str, str]
NOTHING: Final[frozenset[str]] = frozenset()


class TooManyTopics(TooMany):
    server_error = pb.NotAllowedError


class TopicsLimit:
    """`used` are the topics that are loaded here; `default` holds where a namespace does not say, 0 for no limit."""

    def __init__(self, lists: TopicLists, used: Collection[TopicName], default: int) -> None:
        self._lists = lists
        self._used = used
        self._default = default
        self._counting: WeakValueDictionary[_Namespace, asyncio.Lock] = WeakValueDictionary()
        self._being_made: dict[_Namespace, frozenset[str]] = {}

    @asynccontextmanager
    async def room(self, namespace: NamespaceRecord, names: Iterable[TopicName]) -> AsyncIterator[None]:
        """Inside, topics of these names may be made. Raises `TooManyTopics`, `Unavailable`."""
        most = namespace.policies.topics_max
        most = self._default if most is None else most
        if not most:
            yield
            return
        key, wanted = (namespace.tenant, namespace.name), frozenset(map(str, names))
        async with self._counting.setdefault(key, asyncio.Lock()):
            noted = self._being_made.get(
                key, NOTHING
            )  # before the list: what is made meanwhile may not be in it
            there = noted | await self._there(*key)
            if len(there | wanted) > max(most, len(there)):
                raise TooManyTopics(
                    "topics_per_namespace",
                    f"namespace {namespace.tenant}/{namespace.name} has {len(there)} topics, and takes {most} at most: "
                    "delete some, or have maxTopicsPerNamespace raised",
                )
            self._being_made[key] = self._being_made.get(key, NOTHING) | wanted
        try:
            yield
        finally:
            left = self._being_made.pop(key, NOTHING) - wanted  # two may make the same
            if left:
                self._being_made[key] = left

    async def _there(self, tenant: str, namespace: str) -> frozenset[str]:
        """Full names of all topics, partitions one by one, and their parents not."""
        of_namespace = NON_PERSISTENT, tenant, namespace
        return await self._lists.names(tenant, namespace) | {
            str(one) for one in self._used if one[:3] == of_namespace
        }
