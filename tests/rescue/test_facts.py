"""Facts about bookies that do not answer, or not for good: an error is never taken for absence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from quire.ledger import labels
from quire.metadata.records import BookieRecord, LedgerRecord
from quire.rescue import facts
from quire.rescue.ledger_plan import plan_ledgers
from quire.runtime.errors import CorruptionError, Unavailable
from quire.testing.objects import MemoryObjectStore
from quire.tiering.archive import PREFIX, name_of
from quire.wire.bookie import (
    BookieId,
    LedgerInfo,
    LedgerInfoRequest,
    LedgerList,
    ListLedgersRequest,
    ReadRequest,
    ReadResponse,
    Status,
)
from quire.wire.ledger_ids import label_id

BOOKIE = BookieId("6579c41d-eef4-4448-873b-cbfd3e90c981", 1)
NOT_NOW = [Status.UNREACHABLE, Status.BUSY, Status.WRONG_BOOKIE, Status.READ_ONLY]


class Bookie:
    """The only bookie of a directory: it holds ledgers with their labels, and `answer` may refuse a request."""

    def __init__(self, ledgers: int = 1) -> None:
        self.ledgers = [*range(ledgers), *(label_id(each) for each in range(ledgers))]
        self.answer: Callable[[Any], Any] = lambda request: None
        self.info = LedgerInfo(Status.OK, last_entry=0)
        self.asked = 0

    def available(self) -> list[BookieRecord]:
        return [BookieRecord(uuid=BOOKIE.uuid, incarnation=1, address="127.0.0.1:1")]

    def port(self, bookie: BookieId) -> Any:
        return self

    async def ask(self, request: Any) -> Any:
        self.asked += 1
        refused = self.answer(request)
        if refused is not None:
            return request.refused(refused)
        match request:
            case ListLedgersRequest(_, first, count):
                rows = [each for each in self.ledgers if each >= first][:count]
                return LedgerList(Status.OK, rows, [])
            case LedgerInfoRequest():
                return self.info
            case ReadRequest(_, label, _, _):
                ledger_id = label - label_id(0)
                return ReadResponse(Status.OK, blocks=[labels.make(LedgerRecord(ledger_id=ledger_id), 0)])
        raise AssertionError(request)


async def ask(bookie: Bookie) -> facts.BookieFacts:
    (found,) = await facts.ask_bookies(bookie, lambda *_: None)  # type: ignore[arg-type]
    return found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "AGAIN_S", 0.0)


@pytest.mark.parametrize("status", [*NOT_NOW, Status.IO_ERROR])
async def test_a_bookie_that_does_not_list_its_ledgers_is_not_an_empty_one(status: Status) -> None:
    bookie = Bookie()
    bookie.answer = lambda request: status
    with pytest.raises(Unavailable, match="does not list its ledgers"):
        await ask(bookie)


async def test_all_pages_of_a_bookies_list_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_LISTED", 3)
    for count in (2, 3, 4, 7):
        found = await ask(Bookie(count))
        assert found.ledgers == set(range(count)) == set(found.labels)


@pytest.mark.parametrize("status", NOT_NOW)
@pytest.mark.parametrize("kind", [LedgerInfoRequest, ReadRequest])
async def test_a_label_that_cannot_be_read_now_is_asked_for_again_and_never_left_out(
    status: Status, kind: type
) -> None:
    bookie, left = Bookie(), [facts.ATTEMPTS - 1]

    def for_a_while(request: Any) -> Status | None:
        if not isinstance(request, kind) or not left[0]:
            return None
        left[0] -= 1
        return status

    bookie.answer = for_a_while
    assert set((await ask(bookie)).labels) == {0}
    bookie.answer = lambda request: status if isinstance(request, kind) else None
    with pytest.raises(Unavailable, match="does not respond"):
        await ask(bookie)


@pytest.mark.parametrize("status", [Status.IO_ERROR, Status.NO_SUCH_ENTRY, Status.LIMBO])
async def test_a_damaged_label_is_named(status: Status) -> None:
    bookie = Bookie()
    bookie.answer = lambda request: status if isinstance(request, ReadRequest) else None
    found = await ask(bookie)
    assert not found.labels and found.ledgers == {0}
    assert len(found.unreadable) == 1 and "label of ledger 0" in found.unreadable[0]
    with pytest.raises(CorruptionError):
        await facts.read_label(bookie, BOOKIE, label_id(0))  # type: ignore[arg-type]


async def test_a_fence_alone_is_no_ledger_whose_label_is_missing() -> None:
    bookie = Bookie()
    bookie.ledgers = [7]
    assert (await ask(bookie)).ledgers == {7}, "it has an entry"
    bookie.info = LedgerInfo(Status.OK, fenced=True)
    found = await ask(bookie)
    assert not found.ledgers and found.empty == {7}
    plan = plan_ledgers([found], {}, ())
    assert not plan.nameless and plan.greatest_id == 7, "its id is not given again"
    bookie.info = LedgerInfo(Status.OK, lac=3, fenced=True)
    assert (await ask(bookie)).ledgers == {7}, "entries were confirmed elsewhere"
    for status in (Status.LIMBO, *NOT_NOW):
        bookie.info = LedgerInfo(status)
        assert (await ask(bookie)).ledgers == {7}


async def test_a_tombstone_on_a_label_is_the_ledgers_end() -> None:
    bookie = Bookie()
    bookie.answer = lambda request: Status.DELETED if isinstance(request, LedgerInfoRequest) else None
    assert not (await ask(bookie)).labels


async def test_an_object_of_another_cluster_is_skipped_and_named_by_its_name_alone() -> None:
    objects = MemoryObjectStore()
    own, theirs = str(UUID(int=1)), str(UUID(int=2))
    names = [name_of(7, own, "a"), name_of(7, theirs, "b"), f"{PREFIX}{7:016x}-{'0' * 32}"]
    for name in names:
        await objects.put_whole(name, [b"a segment"])
    found, unreadable = await facts.ask_archive(objects, {}, lambda *_: None, own)
    assert found.foreign == [f"object {names[1]} belongs to cluster {theirs}, and is skipped"]
    assert sorted(found.unlabelled) == sorted([names[0], names[2]]) and not unreadable
