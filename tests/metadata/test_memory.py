"""Several sessions on one tree, and the faults that tests use."""

from __future__ import annotations

import asyncio

import pytest

from quire.metadata.store import SessionEvent
from quire.runtime.errors import NotFound, OutcomeUnknown, Unavailable
from quire.testing.metadata import MemoryStore


async def turn() -> None:
    await asyncio.sleep(0)


async def test_one_session_watches_what_another_changes_and_changes_are_merged() -> None:
    mine, other = MemoryStore(), None
    other = mine.join()
    heard: list[str] = []
    mine.watch("/a", heard.append)
    await other.create("/a", b"")
    await other.put("/a", b"", 0)
    await turn()
    assert heard == ["/a"]


async def test_ephemeral_nodes_go_with_their_own_session_only() -> None:
    mine = MemoryStore()
    other = mine.join()
    await mine.create("/up/mine", b"", ephemeral=True)
    await other.create("/up/other", b"", ephemeral=True)
    heard: list[str] = []
    other.watch("/up", heard.append)
    await mine.close()
    await turn()
    assert await other.children("/up") == ["other"]
    assert heard == ["/up"]


async def test_a_suspended_session_keeps_its_nodes_and_an_expired_one_does_not() -> None:
    mine = MemoryStore()
    other = mine.join()
    events: list[SessionEvent] = []
    heard: list[str] = []
    mine.on_session(events.append)
    mine.watch("/elsewhere", heard.append)
    await mine.create("/up", b"", ephemeral=True)
    mine.suspend()
    with pytest.raises(Unavailable):
        await mine.get("/up")
    assert (await other.get("/up")).ephemeral
    await other.create("/elsewhere", b"")
    mine.resume()
    await mine.get("/up")
    mine.expire()
    with pytest.raises(NotFound):
        await other.get("/up")
    await turn()
    assert events == [SessionEvent.SUSPENDED, SessionEvent.RESUMED, SessionEvent.LOST]
    assert "/elsewhere" in heard


async def test_a_failed_change_may_have_happened() -> None:
    store = MemoryStore()
    store.fail_next(OutcomeUnknown("lost"), happened=True)
    with pytest.raises(OutcomeUnknown):
        await store.create("/a", b"")
    assert (await store.get("/a")).version == 0
    store.fail_next(Unavailable("no"), happened=False)
    with pytest.raises(Unavailable):
        await store.put("/a", b"", 0)
    assert (await store.get("/a")).version == 0
