"""Splits a bundle of this broker in two, so that a part of its load can go elsewhere: without a pause for its topics.

1. The broker owns both new bundles as well; nobody asks for them yet. Loads of topics of the old one wait.
2. In one step the state of the upper topics goes over into a bundle of its own (`Bundle.divide`): loaded topics, their
   clients and their cursors stay as they are. Until 3 is done none of them hears that anything is durable.
3. One transaction changes the namespace's boundaries, lists both state logs and marks the old one as split.
4. The old bundle's node stays for a while, and leads brokers here that have not heard of the boundaries yet. One that
   takes the old bundle later all the same finds its state log marked, and cannot open it.

A crash before 3 leaves one bundle, after it two. Where it is not known whether 3 was done, both state logs are dead, as
after any failure of one, and the topics are loaded again from what is true.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Final

from quire.metadata.records import NamespaceRecord
from quire.metadata.store import Step
from quire.runtime.errors import ConfigurationError, InUse, NotFound
from quire.serving.cluster.bundles import Bundle, hash_of
from quire.serving.cluster.port import Ownership
from quire.serving.cluster.registry import Registry

BUNDLES_MAX: Final = 128
"""In a namespace, as in Pulsar: each costs a state log, two nodes, and a watch at each broker that was asked for it."""


class Splits:
    def __init__(self, registry: Registry, ownership: Ownership) -> None:
        self._registry = registry
        self._namespaces = registry.catalogue.namespaces
        self._ownership = ownership

    async def split(self, bundle: str, at: str = "") -> tuple[str, str]:
        """The bundles that it is now; `at`: where the second begins; without it, so that each has half of the topics.

        Raises `NotOwner`, `NotFound`, `InUse`, `ConfigurationError`, what changing the metadata raises, and what the
        state logs died of meanwhile.
        """
        await self._ownership.require(bundle, take=True)
        namespace, edges = await self._edges(bundle)
        at = self._between(bundle, edges, at)
        place = bundle.rpartition("/")[0]
        low, high = f"{place}/{edges[0]}_{at}", f"{place}/{at}_{edges[1]}"
        with self._registry.ownership.is_splitting(bundle):
            await self._registry.when_loaded(bundle)
            await self._ownership.split(
                bundle, (low, high), lambda: self._divide(namespace, bundle, low, high)
            )
        return low, high

    def divisible(self) -> set[str]:
        """The bundles that have more than one topic loaded."""
        return {bundle for bundle, load in self._registry.bundle_loads().items() if load.topics > 1}

    async def _edges(self, bundle: str) -> tuple[NamespaceRecord, tuple[str, str]]:
        tenant, name, span = bundle.split("/")
        namespace = await self._namespaces.get(tenant, name)
        low, _, high = span.partition("_")
        if (low, high) not in pairwise(namespace.boundaries):
            raise NotFound(f"namespace {tenant}/{name} has no bundle {span}")
        if len(namespace.boundaries) > BUNDLES_MAX:
            raise InUse(f"namespace {tenant}/{name} has {BUNDLES_MAX} bundles, and no more are made of them")
        return namespace, (low, high)

    def _between(self, bundle: str, edges: tuple[str, str], at: str) -> str:
        low, high = edges
        if not at:
            hashes = sorted(hash_of(str(name)) for name in self._registry.in_bundle(bundle))
            at = hashes[len(hashes) // 2] if len(hashes) > 1 else ""
            if not low < at < high:
                at = f"{(int(low, 16) + int(high, 16)) // 2:08x}"
        if not low < at < high:
            raise ConfigurationError(f"bundle {bundle} cannot be split at {at}, which is not inside of it")
        return at

    async def _divide(self, namespace: NamespaceRecord, bundle: str, low: str, high: str) -> None:
        registry, tenant, name = self._registry, namespace.tenant, namespace.name
        span_low, at, span_high = *low.rpartition("/")[2].split("_"), high.rpartition("_")[2]

        def given(part: Bundle) -> None:
            registry.move_to(part, of=bundle)

        async def steps() -> list[Step]:
            return [await self._namespaces.split(tenant, name, span_low, at, span_high)]

        await registry.bundles.split(namespace, (bundle, low, high), given, steps)
        registry.rename_bundle(bundle, low)
        await asyncio.shield(self._namespaces.refresh(tenant, name))
