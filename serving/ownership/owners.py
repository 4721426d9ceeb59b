"""Cache of bundle owners: each bundle's ownership node is read once, and cached until a watch reports its change.

So a repeated lookup of a bundle costs no metadata operation. A record that changes while it is read is returned, but
not cached. A caller can also wait for the next change of a node, for example until a dead owner's node is deleted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from quire.metadata import paths
from quire.metadata.records import OwnerRecord, decode
from quire.metadata.store import MetadataStore
from quire.runtime.errors import NotFound


class Owners:
    """Cache of bundle owners. `changed` is called with the name of each bundle whose ownership node changed."""

    def __init__(self, store: MetadataStore, changed: Callable[[str], None]) -> None:
        self._store = store
        self._on_changed = changed
        self._known: dict[str, OwnerRecord] = {}
        self._watched: set[str] = set()
        self._changes: Counter[str] = Counter()
        self._next_change: dict[str, asyncio.Future[None]] = {}

    def known(self, bundle: str) -> OwnerRecord | None:
        """Return the cached record without a request to the store; None if it is not cached."""
        return self._known.get(bundle)

    async def find(self, bundle: str) -> OwnerRecord | None:
        """Return the owner's record, or None if the bundle has no owner. Raises `Unavailable`."""
        known = self._known.get(bundle)
        if known is not None:
            return known
        path = path_of(bundle)
        self.watch(bundle)
        changes = self._changes[bundle]
        try:
            found = decode(OwnerRecord, (await self._store.get(path)).value, path)
        except NotFound:
            return None
        if changes == self._changes[bundle]:
            self._known[bundle] = found
        return found

    def watch(self, bundle: str) -> None:
        if bundle not in self._watched:
            self._watched.add(bundle)
            self._store.watch(path_of(bundle), lambda _: self._node_changed(bundle))

    def _node_changed(self, bundle: str) -> None:
        self._changes[bundle] += 1
        waiting = self._next_change.pop(bundle, None)
        if waiting is not None:
            waiting.set_result(None)
        self._known.pop(bundle, None)
        self._on_changed(bundle)

    def changes(self, bundle: str) -> int:
        """Return how many changes of the bundle's ownership node this broker has seen; pass it to `change_after`."""
        return self._changes[bundle]

    async def change_after(self, changes: int, bundle: str, timeout_s: float) -> None:
        """Wait until the bundle's ownership node has changed more than `changes` times, at most `timeout_s` seconds."""
        if changes != self._changes[bundle]:
            return
        waiting = self._next_change.get(bundle)
        if waiting is None:
            waiting = self._next_change[bundle] = asyncio.get_running_loop().create_future()
        await asyncio.wait([waiting], timeout=timeout_s)

    def forget(self, bundle: str) -> None:
        """Remove a record from the cache, so that the next lookup reads it again."""
        self._known.pop(bundle, None)

    def forget_all(self) -> None:
        self._known.clear()


def path_of(bundle: str) -> str:
    """Return the path of a bundle's ownership node; `bundle` is `tenant/namespace/range`."""
    tenant, namespace, part = bundle.split("/")
    return paths.owner(tenant, namespace, part)
