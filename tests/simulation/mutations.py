"""Mistakes put into production code on purpose, by patches that a test applies: the histories must find each of them.

    @mutation
    def fences_are_not_journalled() -> Iterator[None]:
        with patch(Storage, "_fence", ...):
            yield

`python -m tests.simulation --mutation NAME` runs seeds under one until an invariant breaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest.mock import patch

from quire.bookie.ledgers import LedgerState
from quire.bookie.storage import Storage
from quire.ledger.recovery import _Recovery
from quire.ledger.recovery_core import BEYOND
from quire.ledger.writer import LedgerWriter
from quire.serving.registry import Registry
from quire.wire.bookie import ReadRequest, Status

Mutation = Callable[[], AbstractContextManager[None]]
MUTATIONS: Final[dict[str, Mutation]] = {}


def mutation(apply: Callable[[], Iterator[None]]) -> Mutation:
    """Register a patch under its function's name."""
    MUTATIONS[apply.__name__] = contextmanager(apply)
    return MUTATIONS[apply.__name__]


@mutation
def fences_are_not_journalled() -> Iterator[None]:
    """Rule 10."""

    async def fence(self: Storage, state: LedgerState) -> Status:
        state.fence()
        return Status.OK

    with patch.object(Storage, "_fence", fence):
        yield


@mutation
def only_the_first_read_of_a_recovery_fences() -> Iterator[None]:
    """Rule 9."""

    async def read(self: Any, bookie: Any, first_entry: int) -> None:
        fence = first_entry == BEYOND
        request = ReadRequest(bookie, self._record.ledger_id, first_entry, 3_000, fence)
        response = await self._parts.bookies.port(bookie).read(request)
        if response.status is Status.NO_SUCH_LEDGER:
            response.status = Status.NO_SUCH_ENTRY
        self.core.answered(bookie, first_entry, response)

    with patch.object(_Recovery, "_read", read):
        yield


@mutation
def a_failed_ledger_counts_as_empty() -> Iterator[None]:
    """What unloading a topic once did."""
    with patch.object(LedgerWriter, "was_given_blocks", property(lambda self: False)):
        yield


@mutation
def unloads_do_not_take_turns() -> Iterator[None]:
    """What unloading a topic twice at once did."""

    async def leave(self: Any, name: Any, leave: Any) -> None:
        self._topics.pop(name, None)
        self._bundle_of.pop(name, None)
        done = self._leaving[name] = asyncio.get_running_loop().create_future()
        try:
            await leave()
        finally:
            del self._leaving[name]
            done.set_result(None)

    with patch.object(Registry, "_leave", leave):
        yield
