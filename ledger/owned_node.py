"""A node of the metadata store that one owner changes by version: a ledger's record, the list of a state log.

A put whose outcome is unknown is put again: if it conflicts now and the value is as we wrote it, the first put was
done. Any other conflict means that somebody else owns the node now (`Fenced`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from quire.metadata.store import Delete, MetadataStore, Put, Step
from quire.runtime.errors import (
    AlreadyExists,
    Fenced,
    NotFound,
    OutcomeUnknown,
    QuireError,
    Unavailable,
    VersionConflict,
)


class OwnedNode:
    """`version` -1: it is yet to be made. For errors: `what` it is, and what to do `then` when its value is unknown."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        what: str,
        version: int,
        *,
        then: str,
        attempts_max: int,
        retry_s: float,
    ) -> None:
        self.path = path
        self._store = store
        self._what = what
        self._then = then
        self.version = version
        self._attempts_max = attempts_max
        self._retry_s = retry_s

    async def put(
        self,
        value: bytes,
        atomically_with: Sequence[Step] = (),
        given_up: Callable[[], QuireError | None] = lambda: None,
    ) -> None:
        """Make `value` the node's, with those steps. Raises `Fenced`, `OutcomeUnknown`, or why it is given up."""
        in_doubt = False
        for _ in range(self._attempts_max):
            if (error := given_up()) is not None:
                raise error
            try:
                self.version = await self._replace(value, atomically_with)
                return
            except (VersionConflict, AlreadyExists, NotFound) as conflict:
                if in_doubt and await self._is_written(value):
                    return
                raise self._fenced(conflict) from conflict
            except OutcomeUnknown:
                in_doubt = True
            except Unavailable:
                pass
            await asyncio.sleep(self._retry_s)
        raise OutcomeUnknown(f"{self._what}: the metadata store does not answer; {self._then}")

    async def delete(self, atomically_with: Sequence[Step]) -> None:
        """Remove it and do `atomically_with`, all or nothing. Raises `Fenced`, and what the store raises."""
        assert self.version >= 0
        try:
            await self._store.transact([Delete(self.path, self.version), *atomically_with])
        except (VersionConflict, NotFound) as conflict:
            raise self._fenced(conflict) from conflict

    async def _replace(self, value: bytes, atomically_with: Sequence[Step]) -> int:
        """The new version."""
        if self.version < 0:
            await self._store.create(self.path, value)
            return 0
        if not atomically_with:
            return await self._store.put(self.path, value, self.version)
        await self._store.transact([Put(self.path, value, self.version), *atomically_with])
        return self.version + 1

    async def _is_written(self, value: bytes) -> bool:
        """After a put in doubt and a conflict: was it our own put that changed the version?"""
        try:
            node = await self._store.get(self.path)
        except QuireError:
            return False
        if node.value != value:
            return False
        self.version = node.version
        return True

    def _fenced(self, conflict: QuireError) -> Fenced:
        return Fenced(f"{self._what} was taken over: {conflict}")
