"""Whether a process reaches the bookies, and whose matter it is when it does not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from quire.ledger import reach
from quire.ledger.directory import LocalDirectory
from quire.ledger.reach import Reach
from quire.metadata.records import BookieRecord
from quire.wire.bookie import AddDone, AddRequest, LedgerInfo, LedgerInfoRequest, Request, Status


@dataclass
class Port:
    """A bookie that answers, refuses, or says nothing. A `BookiePort`."""

    status: Status | None = Status.NO_SUCH_LEDGER

    def add(self, request: AddRequest, done: AddDone) -> None:
        raise AssertionError("nothing is written")

    async def ask(self, request: Request[Any]) -> Any:
        assert isinstance(request, LedgerInfoRequest)
        if self.status is None:
            await asyncio.Event().wait()
        return LedgerInfo(self.status)


class Three:
    """Bookies, of which two must acknowledge."""

    def __init__(self) -> None:
        self.ports = [Port(), Port(), Port()]
        self.read_only: set[int] = set()
        self.told: list[str] = []
        directory = LocalDirectory()
        for number, port in enumerate(self.ports):
            directory.join(self._record(number), port)
        self.reach = Reach(directory, 2, lambda: self.told.append(self.reach.why_not))

    def _record(self, number: int) -> Any:
        return lambda: BookieRecord(f"uuid-{number}", "1", read_only=number in self.read_only)


@pytest.mark.parametrize("silence", [None, Status.UNREACHABLE])
async def test_a_process_that_reaches_fewer_than_must_acknowledge_cannot_write(
    monkeypatch: pytest.MonkeyPatch, silence: Status | None
) -> None:
    monkeypatch.setattr(reach, "ANSWER_S", 0.01)
    three = Three()
    await three.reach.look()
    three.ports[0].status = silence
    await three.reach.look()
    assert three.told == [], "two of three answer, which is enough"
    three.ports[1].status = silence
    await three.reach.look()
    await three.reach.look()
    assert len(three.told) == 1 and three.told[0].startswith(
        "1 of 3 writable bookies answer this process, the ack quorum is 2"
    )
    three.ports[1].status = Status.LIMBO
    await three.reach.look()
    assert three.told[1:] == [""], "whatever it says, it was reached"


async def test_where_too_few_take_writes_it_is_not_for_want_of_reaching_them() -> None:
    three = Three()
    three.read_only = {0, 1}
    three.ports[2].status = Status.UNREACHABLE
    await three.reach.look()
    assert three.told == []
    three.read_only = {0}
    await three.reach.look()
    assert three.told[0].startswith("1 of 2 writable bookies")
