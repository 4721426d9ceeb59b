"""The owner of each bundle, as its node says: read once, then known until its watch says that it changed.

A lookup of a bundle that was looked up before costs no metadata operation. What a change overtakes while it
is read is returned and not remembered. To wait for the end of a dead owner's node is to wait for its next change.
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
    """`changed` is called with each bundle whose node changed."""

    def __init__(self, store: MetadataStore, changed: Callable[[str], None]) -> None:
        self._store = store
        self._tell = changed
        self._known: dict[str, OwnerRecord] = {}
        self._watched: set[str] = set()
        self._changes: Counter[str] = Counter()
        self._next_change: dict[str, asyncio.Future[None]] = {}

    def known(self, bundle: str) -> OwnerRecord | None:
        """What was read last, without asking the store."""
        return self._known.get(bundle)

    async def find(self, bundle: str) -> OwnerRecord | None:
        """The owner's record; None when the bundle has no owner. Raises `Unavailable`."""
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
        self._tell(bundle)

    def changes(self, bundle: str) -> int:
        """How often the node was seen to change; for `change_after`."""
        return self._changes[bundle]

    async def change_after(self, changes: int, bundle: str, timeout_s: float) -> None:
        """Return when the node changed since it had changed `changes` times, or after `timeout_s`."""
        if changes != self._changes[bundle]:
            return
        waiting = self._next_change.get(bundle)
        if waiting is None:
            waiting = self._next_change[bundle] = asyncio.get_running_loop().create_future()
        await asyncio.wait([waiting], timeout=timeout_s)

    def forget(self, bundle: str) -> None:
        """Read it again when it is asked for next."""
        self._known.pop(bundle, None)

    def forget_all(self) -> None:
        self._known.clear()


def path_of(bundle: str) -> str:
    """The node of a bundle's owner; `bundle` is `tenant/namespace/range`."""
    tenant, namespace, part = bundle.split("/")
    return paths.owner(tenant, namespace, part)
