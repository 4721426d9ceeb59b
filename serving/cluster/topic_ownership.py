"""Whose a topic is: `port.Ownership`, asked by a topic's name. A topic is owned with the bundle that it hashes to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from quire.runtime.errors import InUse
from quire.serving.cluster.bundles import bundle_of
from quire.serving.cluster.port import NotOwner, Owner, Ownership
from quire.serving.names import TopicName
from quire.serving.policy.namespaces import Namespaces


class TopicOwnership:
    """All raise `NotFound` for an unknown namespace."""

    def __init__(self, namespaces: Namespaces, ownership: Ownership) -> None:
        self._namespaces = namespaces
        self._ownership = ownership
        self._splitting: dict[str, asyncio.Future[None]] = {}

    async def bundle_of(self, name: TopicName) -> str:
        return bundle_of(await self._namespaces.get(name.tenant, name.namespace), name)

    async def owner_of(self, name: TopicName, *, take: bool) -> Owner:
        """See `Ownership.owner_of`."""
        return await self._ownership.owner_of(await self.bundle_of(name), take=take)

    async def is_here(self, name: TopicName) -> bool:
        """Its bundle is owned by this broker."""
        return self._ownership.holds(await self.bundle_of(name))

    async def require(self, name: TopicName, *, take: bool = True) -> str:
        """The topic's bundle. Raises `NotOwner` unless it is owned here; with `take` one without an owner is taken.

        Waits for the end of a split of it.
        """
        while True:
            bundle = await self.bundle_of(name)
            await self._ownership.require(bundle, take=take)
            split = self._splitting.get(bundle)
            if split is None:
                return bundle
            await asyncio.wait([split])

    @contextmanager
    def is_splitting(self, bundle: str) -> Iterator[None]:
        """The bundle becomes two: who asks for a topic of it that is not loaded waits.

        Raises `InUse` for a second split of it at the same time, before whose end the first may not have ended.
        """
        if bundle in self._splitting:
            raise InUse(f"bundle {bundle} is being split already")
        ended = self._splitting[bundle] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._splitting[bundle]
            ended.set_result(None)

    def still(self, name: TopicName, bundle: str) -> None:
        """Raise `NotOwner` when the topic's bundle, which was this broker's, is so no longer."""
        if not self._ownership.holds(bundle):
            raise NotOwner(f"{name} went to another broker meanwhile; look it up again")

    def lost(self, bundle: str) -> None:
        """Another broker changed a topic of the bundle: see whether the bundle is still owned here."""
        self._ownership.verify_owned(bundle)
