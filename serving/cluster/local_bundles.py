"""The bundles of this broker, as ownership gives and takes them, and as operators and other brokers send them on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final
from urllib.parse import quote

from quire.runtime.errors import ConfigurationError, NotFound, QuireError
from quire.runtime.tasks import Tasks
from quire.serving.cluster.addresses import Addresses
from quire.serving.cluster.offloading import Offloading
from quire.serving.cluster.peers import Peers
from quire.serving.cluster.port import BundleLoad, Handover, NotOwner, Owner, Ownership
from quire.serving.cluster.registry import Registry
from quire.serving.cluster.splits import Splits
from quire.serving.names import TopicName
from quire.serving.topic.topic import AnyTopic

BUNDLES = "/quire/v1/brokers/bundles"

CLOSED_A_TURN: Final = 100
"""Topics of a bundle that are closed, or dropped: some milliseconds."""

_log = logging.getLogger(__name__)


class LocalBundles:
    """A `BundleHost`."""

    def __init__(
        self,
        tasks: Tasks,
        registry: Registry,
        ownership: Ownership,
        offloading: Offloading | None,
        peers: Peers,
        addresses: Addresses,
    ) -> None:
        self._tasks = tasks
        self._registry = registry
        self._bundles = registry.bundles
        self._ownership = ownership
        self._offloading = offloading
        self._peers = peers
        self.addresses = addresses
        self._splits = Splits(registry, ownership)
        self._bundles.on_failed = self._state_log_failed
        registry.catalogue.namespaces.on_change(self._namespace_changed)

    # -- what ownership asks ---------------------------------------------------------------------------

    def gained(self, bundle: str) -> None:
        # What a hand-over that was broken off left here: others may have gone on since.
        self.drop([bundle])
        if self._offloading is not None:
            self._offloading.adopt()

    async def hand_over(self, bundle: str) -> Handover:
        found = map(self._registry.find, self._registry.in_bundle(bundle))
        used = [topic.name for topic in found if topic is not None and topic.is_used]
        topics = await self.close_topics(bundle)

        def disconnect_clients(service_url: str) -> None:
            self._drop_topics(topics, service_url)

        try:
            await self._bundles.close_one(bundle)
        except BaseException:
            disconnect_clients("")
            raise
        return Handover(used, disconnect_clients)

    async def ask_to_take(self, new_owner: Owner, bundle: str, topics: Iterable[str]) -> None:
        await self._ask("take", NotOwner(bundle, new_owner), bundle, {"topics": list(topics)})

    def drop(self, bundles: Collection[str]) -> None:
        topics = self._registry.remove_bundles(bundles)
        for bundle in bundles:
            self._bundles.drop(bundle)
        self._drop_topics(topics)

    def bundle_loads(self) -> Mapping[str, BundleLoad]:
        return self._registry.bundle_loads()

    def divisible(self) -> Collection[str]:
        return self._splits.divisible()

    async def split(self, bundle: str, at: str = "") -> tuple[str, str]:
        return await self._splits.split(bundle, at)

    # -- the topics of a bundle ------------------------------------------------------------------------

    async def close_topics(self, bundle: str) -> list[AnyTopic]:
        """Close them, also those that are being loaded. Their clients stay until `_drop_topics`."""
        topics = await self._registry.when_loaded(bundle)
        closing: list[asyncio.Future[None]] = []
        for count, topic in enumerate(topics, 1):
            closing.append(asyncio.ensure_future(self._close(topic)))
            if count % CLOSED_A_TURN == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*closing)
        return topics

    async def _close(self, topic: AnyTopic) -> None:
        try:
            await self._registry.close(topic.topic_name, topic.close)
        except QuireError as error:
            _log.warning("%s was not closed cleanly, it will be recovered: %s", topic.name, error)
        except Exception:
            # Its clients must be let go all the same, and those of all others.
            _log.exception("%s was not closed cleanly, it will be recovered", topic.name)

    def _drop_topics(self, topics: list[AnyTopic], service_url: str = "") -> None:
        """Drop topics that the registry has no more; of thousands some in each turn of the loop, the first ones now.

        Those that have to wait can do no harm: their state log is closed, and the next owner fences their ledgers. The
        list becomes empty, for to free thousands at once would take its time, too.
        """
        for topic in topics[:CLOSED_A_TURN]:
            topic.drop(service_url)
        del topics[:CLOSED_A_TURN]
        if topics:
            asyncio.get_running_loop().call_soon(self._drop_topics, topics, service_url)

    # -- state logs that end ---------------------------------------------------------------------------

    def _state_log_failed(self, bundle: str) -> None:
        async def unload() -> None:
            self._drop_topics(await self.close_topics(bundle))

        self._tasks.start(unload(), f"unload bundle {bundle}")

    def _namespace_changed(self, tenant: str, namespace: str) -> None:
        bundles = self._bundles.of_namespace(tenant, namespace)
        if bundles:
            work = self._drop_if_deleted(tenant, namespace, bundles)
            self._tasks.start(work, f"see whether {tenant}/{namespace} is gone")

    async def _drop_if_deleted(self, tenant: str, namespace: str, bundles: Iterable[str]) -> None:
        """A namespace that is deleted has no topics, and its state logs go."""
        try:
            await self._registry.catalogue.namespaces.get(tenant, namespace)
        except NotFound:
            for bundle in bundles:
                self._bundles.drop(bundle)
        except QuireError as error:
            _log.info("whether %s/%s is gone cannot be told now: %s", tenant, namespace, error)

    # -- what operators and other brokers ask ----------------------------------------------------------

    async def take(self, bundle: str, topics: Iterable[str]) -> None:
        """Own a bundle without an owner and load these topics of it. Raises `NotOwner`, `Unavailable`.

        The clients of a topic that cannot be loaded hear of that when they come.
        """
        await self._ownership.take(bundle)
        loads = (self._registry.open(TopicName.parse(topic), take=False) for topic in topics)
        await asyncio.gather(*loads, return_exceptions=True)

    async def forget(self, bundle: str, *, accept_loss: bool) -> None:
        """Have a bundle whose state log cannot be read forget its subscriptions and what was sent with deduplication.

        Raises `NotOwner`, `InUse` when it can be read, and `ConfigurationError` unless the loss is accepted.
        """
        if not accept_loss:
            raise ConfigurationError(
                f"bundle {bundle} would forget all of its subscriptions: say accept_loss"
            )
        await self._ownership.require(bundle, take=False)
        await self._bundles.forget(bundle)

    async def unload(self, bundle: str) -> None:
        """Have it closed by its owner, if it has one."""
        try:
            await self._ownership.release(bundle, "an operator asked for it")
        except NotOwner as error:
            await self._ask("unload", error, bundle)
        except NotFound:
            pass

    async def unload_namespace(self, tenant: str, namespace: str) -> None:
        """Unload each of its bundles; the least loaded broker has it next. Raises `NotFound`."""
        record = await self._registry.catalogue.namespaces.get(tenant, namespace)
        for low, high in pairwise(record.boundaries):
            await self.unload(f"{tenant}/{namespace}/{low}_{high}")

    async def _ask(self, what: str, elsewhere: NotOwner, bundle: str, body: Any = None) -> None:
        await self._peers.ask("PUT", elsewhere, f"{BUNDLES}/{quote(bundle)}/{what}", body)
