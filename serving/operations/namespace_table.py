"""Table of namespaces for operators, with sums over their loaded topics, and search for topics by a part of the name.

Each broker adds up its own loaded topics, without reads. The number of topics requires a list of names from the
metadata store, so it is determined for `COUNTED_MAX` namespaces at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from quire.serving.model.ports import SegmentView
from quire.serving.names import TopicName
from quire.serving.operations.fan_out import FanOut
from quire.serving.operations.topic_table import NAMES_A_TURN, TOPICS_A_TURN
from quire.serving.ownership.peers import reader_of
from quire.serving.registry.registry import Registry
from quire.serving.registry.topic_loader import subscriptions_of
from quire.serving.topic.services import Services
from quire.serving.topic.topic import AnyTopic

LOADED_PATH: Final = "/quire/v1/namespaces/loaded"
COUNTED_MAX: Final = 100


class NamespaceNumbers(Struct, rename="camel"):
    """Sums over the loaded topics of a namespace; partitions count as topics. Rates are per second."""

    topics_loaded: int = 0
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    backlog: int = 0
    """Estimated number of messages in the largest backlog of each topic."""
    storage_size: int = 0

    def add(self, other: NamespaceNumbers) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class LoadedNamespaces(Struct, rename="camel"):
    """Numbers by namespace, and the error texts of brokers that did not answer."""

    namespaces: dict[str, NamespaceNumbers]
    silent: list[str] = []


class NamespaceTable:
    def __init__(self, registry: Registry, services: Services, fan_out: FanOut) -> None:
        self._registry = registry
        self._services = services
        self._fan_out = fan_out

    async def loaded_here(self) -> LoadedNamespaces:
        """Return the sums over this broker's loaded topics."""
        now_s, found = self._services.clock.monotonic(), dict[str, NamespaceNumbers]()
        async for some in self._services.slices.parts(self._registry.all(), TOPICS_A_TURN):
            for topic in some:
                name = topic.topic_name
                sums = found.setdefault(f"{name.tenant}/{name.namespace}", NamespaceNumbers())
                sums.add(_numbers(topic, now_s))
        return LoadedNamespaces(found)

    async def loaded(self) -> LoadedNamespaces:
        """Return the sums over all brokers."""
        answers = await self._fan_out.ask_brokers("GET", LOADED_PATH)
        every = [await self.loaded_here(), *map(reader_of(LoadedNamespaces), answers.said)]
        found: dict[str, NamespaceNumbers] = {}
        for one in every:
            for name, numbers in one.namespaces.items():
                found.setdefault(name, NamespaceNumbers()).add(numbers)
        return LoadedNamespaces(found, answers.silent)

    async def topics(self, tenant: str, namespace: str) -> int:
        """Return the number of persistent topics, without partitions."""
        return len(await self._names(tenant, namespace, ""))

    async def search(self, tenant: str, namespace: str, contains: str, limit: int) -> list[str]:
        """Return the full names of at most `limit` persistent topics whose name contains a text."""
        names = await self._names(tenant, namespace, contains.lower())
        return [str(name) for name in sorted(names)[:limit]]

    async def _names(self, tenant: str, namespace: str, contains: str) -> Sequence[TopicName]:
        every = await self._registry.records.names(tenant, namespace)
        there, found = set(every), list[TopicName]()
        async for some in self._services.slices.parts(every, NAMES_A_TURN):
            found += [one for one in some if contains in one.local.lower() and one.parent not in there]
        return found


def _numbers(topic: AnyTopic, now_s: float) -> NamespaceNumbers:
    subscriptions = [one.stats.summary() for one in subscriptions_of(topic)]
    rate, throughput = topic.received.per_second(now_s)
    views: Sequence[SegmentView] = topic.log.segments()
    return NamespaceNumbers(
        1,
        rate,
        throughput,
        sum(one.msg_rate_out for one in subscriptions),
        max((one.backlog for one in subscriptions), default=0),
        sum(view.bytes for view in views),
    )
