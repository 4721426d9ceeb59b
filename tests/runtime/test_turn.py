"""The end of a turn: one call for all that was put off, in order; what fails fails alone."""

from __future__ import annotations

import asyncio
import logging

import pytest

from quire.runtime.turn import EndOfTurn


async def test_what_is_asked_for_at_the_end_of_a_turn_belongs_to_it(caplog: pytest.LogCaptureFixture) -> None:
    end, done = EndOfTurn(), list[str]()

    def first() -> None:
        done.append("first")
        end.call(lambda: done.append("asked for by the first"))
        raise ValueError("a mistake")

    asyncio.get_running_loop().call_soon(done.append, "of the turn itself")
    end.call(first)
    asyncio.get_running_loop().call_soon(done.append, "of the turn, but later")
    end.call(lambda: done.append("second"))
    assert done == []
    with caplog.at_level(logging.CRITICAL):
        await asyncio.sleep(0)
    whole = ["of the turn itself", "first", "second", "asked for by the first", "of the turn, but later"]
    assert done == whole
    end.call(lambda: done.append("next turn"))
    await asyncio.sleep(0)
    assert done == [*whole, "next turn"]
