"""Bundles of this broker: acquired and released by `ownership`, and moved by operators and other brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final
from urllib.parse import quote

from quire.runtime.errors import ConfigurationError, NotFound, QuireError
from quire.runtime.tasks import Tasks
from quire.serving.names import TopicName
from quire.serving.ownership.peers import Peers
from quire.serving.ownership.port import Addresses, BundleLoad, Handover, NotOwner, Owner, Ownership
from quire.serving.registry.offloading import Offloading
from quire.serving.registry.registry import Registry
from quire.serving.registry.splits import Splits
from quire.serving.topic.topic import AnyTopic

BUNDLES = "/quire/v1/brokers/bundles"

CLOSED_A_TURN: Final = 100
"""Number of topics closed or dropped in one event loop iteration; they take a few milliseconds."""

_log = logging.getLogger(__name__)


class LocalBundles:
    """Host of the bundles that this broker owns, a `BundleHost`."""

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

    # -- `BundleHost`, for ownership -----------------------------------------------------------------

    def gained(self, bundle: str) -> None:
        # an interrupted hand-over may have left topics here, and other brokers may have written to them since
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
        """Close a bundle's topics, including those being loaded. Their clients stay connected until `_drop_topics`."""
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
            _log.warning(
                "topic not closed cleanly, its next owner recovers it: topic=%s error=%s", topic.name, error
            )
        except Exception:
            # its clients, and those of all other topics, must be disconnected nevertheless
            _log.exception(
                "internal error while closing a topic, its next owner recovers it: topic=%s", topic.name
            )

    def _drop_topics(self, topics: list[AnyTopic], service_url: str = "") -> None:
        """Drop topics that were removed from the registry, `CLOSED_A_TURN` per event loop iteration, starting now.

        Topics that are not dropped yet are harmless: their state log is closed, and the next owner fences their
        ledgers. The list is emptied step by step, because freeing the memory of thousands of topics also takes long.
        """
        for topic in topics[:CLOSED_A_TURN]:
            topic.drop(service_url)
        del topics[:CLOSED_A_TURN]
        if topics:
            asyncio.get_running_loop().call_soon(self._drop_topics, topics, service_url)

    # -- failed state logs, deleted namespaces ---------------------------------------------------------

    def _state_log_failed(self, bundle: str) -> None:
        async def unload() -> None:
            self._drop_topics(await self.close_topics(bundle))

        self._tasks.start(unload(), f"unload bundle {bundle}")

    def _namespace_changed(self, tenant: str, namespace: str) -> None:
        bundles = self._bundles.of_namespace(tenant, namespace)
        if bundles:
            work = self._drop_if_deleted(tenant, namespace, bundles)
            self._tasks.start(work, f"see whether {tenant}/{namespace} was deleted")

    async def _drop_if_deleted(self, tenant: str, namespace: str, bundles: Iterable[str]) -> None:
        """Drop the namespace's state logs if it was deleted; a deleted namespace has no topics."""
        try:
            await self._registry.catalogue.namespaces.get(tenant, namespace)
        except NotFound:
            for bundle in bundles:
                self._bundles.drop(bundle)
        except QuireError as error:
            _log.info(
                "cannot determine whether a namespace was deleted: namespace=%s/%s error=%s",
                tenant,
                namespace,
                error,
            )

    # -- for operators and other brokers ---------------------------------------------------------------

    async def take(self, bundle: str, topics: Iterable[str]) -> None:
        """Acquire a bundle without an owner, and load these topics of it. Raises `NotOwner`, `Unavailable`.

        If a topic cannot be loaded, its clients get the error when they connect.
        """
        await self._ownership.take(bundle)
        loads = (self._registry.open(TopicName.parse(topic), take=False) for topic in topics)
        await asyncio.gather(*loads, return_exceptions=True)

    async def forget(self, bundle: str, *, accept_loss: bool) -> None:
        """Delete the subscriptions and deduplication state of a bundle whose state log is unreadable.

        Raises `NotOwner`, `InUse` if the log can be read, `WrongCluster` if the metadata are older than the newest
        backup copy of them, and `ConfigurationError` unless the loss is accepted.
        """
        if not accept_loss:
            raise ConfigurationError(
                f"bundle {bundle} would lose all of its subscriptions: confirm this with --accept-loss (in REST "
                "accept_loss=true)"
            )
        await self._ownership.require(bundle, take=False)
        await self._bundles.forget(bundle)

    async def unload(self, bundle: str) -> None:
        """Make the owner of a bundle, if any, hand it over."""
        try:
            await self._ownership.release(bundle, "an operator requested it")
        except NotOwner as error:
            await self._ask("unload", error, bundle)
        except NotFound:
            pass

    async def unload_namespace(self, tenant: str, namespace: str) -> None:
        """Unload each bundle of a namespace; the least loaded broker acquires it next. Raises `NotFound`."""
        record = await self._registry.catalogue.namespaces.get(tenant, namespace)
        for low, high in pairwise(record.boundaries):
            await self.unload(f"{tenant}/{namespace}/{low}_{high}")

    async def _ask(self, what: str, elsewhere: NotOwner, bundle: str, body: Any = None) -> None:
        await self._peers.ask("PUT", elsewhere, f"{BUNDLES}/{quote(bundle)}/{what}", body)
