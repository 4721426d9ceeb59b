"""The bundles of this broker, as ownership gives and takes them, and as operators and other brokers send them on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from quire.runtime.errors import NotFound
from quire.serving.cluster.addresses import Addresses
from quire.serving.cluster.bundles import Bundles
from quire.serving.cluster.offloading import Offloading
from quire.serving.cluster.peers import Peers
from quire.serving.cluster.port import BundleLoad, Handover, NotOwner, Owner, Ownership
from quire.serving.cluster.registry import Registry
from quire.serving.names import TopicName

BUNDLES = "/quire/v1/brokers/bundles"


class LocalBundles:
    """A `BundleHost`."""

    def __init__(
        self,
        registry: Registry,
        bundles: Bundles,
        ownership: Ownership,
        offloading: Offloading | None,
        peers: Peers,
        addresses: Addresses,
    ) -> None:
        self._registry = registry
        self._bundles = bundles
        self._ownership = ownership
        self._offloading = offloading
        self._peers = peers
        self._addresses = addresses

    # -- what ownership asks ---------------------------------------------------------------------------

    @property
    def service_url(self) -> str:
        return self._addresses.service_url

    @property
    def http_url(self) -> str:
        return self._addresses.http_url

    @property
    def listeners(self) -> Mapping[str, str]:
        return self._addresses.listeners

    def gained(self, bundle: str) -> None:
        # What a hand-over that was broken off left here: others may have gone on since.
        self._registry.drop_bundles({bundle})
        if self._offloading is not None:
            self._offloading.adopt()

    async def hand_over(self, bundle: str) -> Handover:
        used = self._registry.used(bundle)
        topics = await self._registry.close_bundle(bundle)

        def send_away(service_url: str) -> None:
            self._registry.let_go(topics, service_url)

        try:
            await self._bundles.close_one(bundle)
        except BaseException:
            send_away("")
            raise
        return Handover(used, send_away)

    async def invite(self, heir: Owner, bundle: str, topics: Iterable[str]) -> None:
        await self._ask("take", NotOwner(bundle, heir), bundle, {"topics": list(topics)})

    def drop(self, bundles: Collection[str]) -> None:
        self._registry.drop_bundles(bundles)

    def bundle_loads(self) -> Mapping[str, BundleLoad]:
        return self._registry.bundle_loads()

    # -- what the broker asks --------------------------------------------------------------------------

    async def close(self) -> None:
        """Close all state logs."""
        await self._bundles.close()

    @property
    def damaged(self) -> int:
        """Bundles whose state log could not be read when it was last opened."""
        return len(self._bundles.damaged)

    # -- what operators and other brokers ask ----------------------------------------------------------

    async def take(self, bundle: str, topics: Iterable[str]) -> None:
        """Own a bundle that is nobody's and load these topics of it. Raises `NotOwner`, `Unavailable`."""
        await self._ownership.take(bundle)
        await self._registry.warm(map(TopicName.parse, topics))

    async def unload(self, bundle: str) -> None:
        """Have it closed by its owner; one that is nobody's stays so."""
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
