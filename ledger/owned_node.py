"""Metadata node that one owner changes by compare-and-set: a ledger's record, or a state log's list of ledgers.

A put with an unknown outcome is repeated. If it then conflicts and the node has the value of the put, the first attempt
was executed. Any other conflict means that another process owns the node now (`Fenced`).
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
    """Node with one owner. `version` is -1 before it is created.

    Error texts contain `what`, the name of the node, and `then`, the advice if the outcome of a put is unknown. A put
    is tried at most `attempts_max` times while the store does not answer; the owner may change that number.
    """

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
        self.attempts_max = attempts_max
        self._retry_s = retry_s

    async def put(
        self,
        value: bytes,
        atomically_with: Sequence[Step] = (),
        given_up: Callable[[], QuireError | None] = lambda: None,
    ) -> None:
        """Write `value` and execute the steps, in one transaction.

        `given_up` is called before each attempt; if it returns an error, this error is raised. Raises `Fenced`,
        `OutcomeUnknown`.
        """
        in_doubt, attempts = False, 0
        while attempts < self.attempts_max:
            attempts += 1
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
        """Delete the node and execute the steps, in one transaction. Raises `Fenced`, and the store's errors."""
        assert self.version >= 0
        try:
            await self._store.transact([Delete(self.path, self.version), *atomically_with])
        except (VersionConflict, NotFound) as conflict:
            raise self._fenced(conflict) from conflict

    async def _replace(self, value: bytes, atomically_with: Sequence[Step]) -> int:
        """Create or replace the node; return its new version."""
        if self.version < 0:
            await self._store.create(self.path, value)
            return 0
        if not atomically_with:
            return await self._store.put(self.path, value, self.version)
        await self._store.transact([Put(self.path, value, self.version), *atomically_with])
        return self.version + 1

    async def _is_written(self, value: bytes) -> bool:
        """Return whether a put with an unknown outcome was executed, after its repetition conflicted."""
        try:
            node = await self._store.get(self.path)
        except QuireError:
            return False
        if node.value != value:
            return False
        self.version = node.version
        return True

    def _fenced(self, conflict: QuireError) -> Fenced:
        return Fenced(f"{self._what} was taken over by another process: {conflict}")
