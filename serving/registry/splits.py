"""Split of a bundle of this broker in two, so that part of its load can move. Its topics are not interrupted.

1. The broker acquires both new bundles, which no client uses yet. Loads of topics of the old bundle wait.
2. The state of the topics in the upper part of the hash range moves to a new bundle in one step (`Bundle.divide`).
Loaded topics, their clients and their cursors are not changed. Until step 3 is done, no client gets a confirmation.
3. One transaction changes the namespace's boundaries, lists both new state logs and marks the old one as split.
4. The old bundle's node exists for another `SPLIT_KNOWN_S`, so that brokers that do not know the new boundaries yet
send clients to this broker. A broker that acquires the old bundle later finds its state log marked, and cannot open it.

After a crash before step 3 there is one bundle, afterwards there are two. If the outcome of step 3 is unknown, both
state logs accept no more writes, as after any failure of a state log, and the topics are loaded again from the durable
state.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Final

from quire.metadata.records import NamespaceRecord
from quire.metadata.store import Step
from quire.runtime.errors import ConfigurationError, InUse, NotFound
from quire.serving.ownership.port import Ownership
from quire.serving.registry.bundles import Bundle, hash_of
from quire.serving.registry.registry import Registry

BUNDLES_MAX: Final = 128
"""Maximum number of bundles of a namespace, as in Pulsar.

Each bundle costs a state log, two nodes, and a watch of each broker that looks it up.
"""


class Splits:
    def __init__(self, registry: Registry, ownership: Ownership) -> None:
        self._registry = registry
        self._namespaces = registry.catalogue.namespaces
        self._ownership = ownership

    async def split(self, bundle: str, at: str = "") -> tuple[str, str]:
        """Split a bundle at hash `at` or, if empty, so that each part has half of the loaded topics; return the parts.

        Raises `NotOwner`, `NotFound`, `InUse`, `ConfigurationError`, and the errors of the metadata store and of the
        state logs.
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
        """Return the bundles that have more than one loaded topic."""
        return {bundle for bundle, load in self._registry.bundle_loads().items() if load.topics > 1}

    async def _edges(self, bundle: str) -> tuple[NamespaceRecord, tuple[str, str]]:
        tenant, name, span = bundle.split("/")
        namespace = await self._namespaces.get(tenant, name)
        low, _, high = span.partition("_")
        if (low, high) not in pairwise(namespace.boundaries):
            raise NotFound(f"namespace {tenant}/{name} has no bundle {span}")
        if len(namespace.boundaries) > BUNDLES_MAX:
            raise InUse(f"namespace {tenant}/{name} has {BUNDLES_MAX} bundles, which is the limit")
        return namespace, (low, high)

    def _between(self, bundle: str, edges: tuple[str, str], at: str) -> str:
        low, high = edges
        if not at:
            hashes = sorted(hash_of(str(name)) for name in self._registry.in_bundle(bundle))
            at = hashes[len(hashes) // 2] if len(hashes) > 1 else ""
            if not low < at < high:
                at = f"{(int(low, 16) + int(high, 16)) // 2:08x}"
        if not low < at < high:
            raise ConfigurationError(f"bundle {bundle} cannot be split at {at}, which is outside of it")
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
