"""Ownership of topics by name. A topic belongs to the owner of the bundle that it hashes to (`ownership.port`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from quire.runtime.errors import InUse
from quire.serving.names import TopicName
from quire.serving.ownership.port import NotOwner, Owner, Ownership
from quire.serving.policy.namespaces import Namespaces
from quire.serving.registry.bundles import bundle_of


class TopicOwnership:
    """Ownership of topics; every method with a topic name raises `NotFound` for an unknown namespace."""

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
        """Return whether this broker owns the topic's bundle."""
        return self._ownership.holds(await self.bundle_of(name))

    async def require(self, name: TopicName, *, take: bool = True) -> str:
        """Return the topic's bundle; with `take`, acquire it if it is unowned.

        Raises `NotOwner` if another broker owns it.

        Waits for the end of a split of the bundle.
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
        """Mark a bundle as being split while the context is entered: loads of its topics wait.

        Raises `InUse` if the bundle is already being split.
        """
        if bundle in self._splitting:
            raise InUse(f"bundle {bundle} is already being split")
        ended = self._splitting[bundle] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._splitting[bundle]
            ended.set_result(None)

    def require_held(self, name: TopicName, bundle: str) -> None:
        """Raise `NotOwner` if this broker no longer owns the topic's bundle."""
        if not self._ownership.holds(bundle):
            raise NotOwner(f"{name} is now owned by another broker; look it up again")

    def lost(self, bundle: str) -> None:
        """Check whether this broker still owns the bundle, because another broker changed a topic of it."""
        self._ownership.verify_owned(bundle)
