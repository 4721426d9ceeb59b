"""What is lost for good: told as such, named in whole, given up by a person, and passed over from then on."""

from __future__ import annotations

import asyncio
from dataclasses import replace as replaced

import pytest
from msgspec.structs import replace

from quire.ledger import holes, loss, states
from quire.ledger.loss import Span
from quire.ledger.state_log import StateLog, StateLogOwner
from quire.metadata import paths
from quire.metadata.records import (
    BookieIntent,
    BookieRecord,
    Hole,
    LedgerRecord,
    LedgerState,
    PersistencePolicy,
    decode,
    encode,
)
from quire.metadata.underreplicated import damage_reports
from quire.runtime.errors import LostForGood, Unavailable
from quire.testing.cluster import Listener, MemoryCluster, expected, read_all, write
from quire.wire import block
from quire.wire.bookie import BookieId, ReadRequest, ReadResponse, Status
from tests.ledger.repair_cluster import Cluster


async def closed(cluster: MemoryCluster, blocks: int = 10, count: int = 2) -> LedgerRecord:
    """A ledger with one copy of `blocks` blocks, each with `count` entries."""
    writer = await cluster.ledgers.create(
        "test",
        listener := Listener(),
        PersistencePolicy(write_quorum=len(cluster.bookies), ack_quorum=len(cluster.bookies)),
    )
    await listener.until(write(writer, blocks, count))
    return await writer.close()


async def headers_of(cluster: MemoryCluster, ledger_id: int, bytes_max: int = 1) -> list[block.BlockHeader]:
    reader = await cluster.join().open(ledger_id)
    found: list[block.BlockHeader] = []
    while blocks := await reader.read(found[-1].last_entry + 1 if found else 0, bytes_max):
        found += map(block.verify, blocks)
    return found


@pytest.mark.parametrize("how", ["rot", "limbo"])
async def test_what_the_only_copy_lost_is_lost_for_good_and_never_to_be_tried_again(how):
    cluster = MemoryCluster(1)
    record = await closed(cluster)
    lose(cluster, record.ledger_id, 6, how)
    reader = await cluster.join().open(record.ledger_id)
    with pytest.raises(
        LostForGood, match=rf"lost for good.*quire ledgers recover {record.ledger_id} --accept-loss"
    ):
        await reader.read(6, 100)


async def test_a_copy_that_is_only_silent_may_come_back():
    cluster = MemoryCluster(2)
    record = await closed(cluster)
    lose(cluster, record.ledger_id, 6, "limbo")
    cluster.bookies[1].unreachable = True
    ledgers = cluster.join()
    with pytest.raises(Unavailable, match="try again"):
        await (await ledgers.open(record.ledger_id)).read(6, 100)
    with pytest.raises(Unavailable, match=r"bookie-1.*quire bookies recover bookie-1"):
        await ledgers.give_up(record.ledger_id)
    assert not ledgers.lost() and not (await ledgers.info(record.ledger_id)).holes


async def test_looking_names_every_hole_and_changes_nothing():
    cluster = MemoryCluster(1)
    record = await closed(cluster)
    for entry in (4, 6, 14):
        lose(cluster, record.ledger_id, entry, "rot")
    found = await cluster.join().look_for_loss(record.ledger_id)
    assert [(hole.first_entry, hole.last_entry, hole.messages) for hole in found.new] == [
        (4, 7, 4),
        (14, 15, 2),
    ]
    assert all("entry log bookie-0" in why for why in found.why)
    assert await cluster.ledgers.info(record.ledger_id) == record


@pytest.mark.parametrize("how", ["rot", "limbo"])
async def test_readers_go_on_behind_what_was_given_up_and_see_where_it_was(how):
    cluster = MemoryCluster(1)
    record = await closed(cluster)
    for entry in (0, 4, 6, 18):
        lose(cluster, record.ledger_id, entry, how)
    reader = await cluster.join().open(record.ledger_id)
    with pytest.raises(LostForGood):
        await reader.read(4, 100)
    ledgers = cluster.join()
    await ledgers.give_up(record.ledger_id)
    assert block.is_blank(block.peek((await reader.read(4, 100))[0])), "a reader that was there before, too"
    headers = await headers_of(cluster, record.ledger_id)
    assert [(one.first_entry, one.last_entry) for one in headers if block.is_blank(one)] == [
        (0, 1),
        (4, 7),
        (18, 19),
    ]
    assert [one.first_entry for one in headers] == [0, 2, 4, 8, 10, 12, 14, 16, 18]
    assert [one.first_index for one in headers] == [one.first_entry for one in headers]
    assert [one.clock_ms for one in headers] == sorted(one.clock_ms for one in headers)
    assert headers == await headers_of(cluster, record.ledger_id, 1 << 20)
    entries = await read_all(ledgers, record.ledger_id)
    assert [entry for entry in entries if entry] == [
        entry for at, entry in enumerate(expected(19)) if at not in (0, 1, 4, 5, 6, 7, 18, 19)
    ]


async def test_the_messages_of_a_hole_are_told_by_the_next_block_and_at_the_ends_by_the_topic():
    cluster = MemoryCluster(1)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=1, ack_quorum=1)
    )
    for first in range(5):
        entries = [b"batch"]
        cut = block.cut(writer.ledger_id, first, first - 1, 1000 + first, 500 + 10 * first, entries, [10])
        writer.add(cut, first)
    await listener.until(4)
    record = await writer.close()
    for entry in (0, 2, 4):
        lose(cluster, record.ledger_id, entry, "rot")
    unknown = await cluster.ledgers.look_for_loss(record.ledger_id)
    assert [(hole.first_index, hole.messages) for hole in unknown.new] == [(509, 1), (520, 10), (540, 1)]
    await cluster.ledgers.give_up(record.ledger_id, Span(500, 550))
    found = (await cluster.ledgers.info(record.ledger_id)).holes
    assert [(hole.first_index, hole.messages) for hole in found] == [(500, 10), (520, 10), (540, 10)]
    headers = await headers_of(cluster, record.ledger_id)
    assert [one.first_index for one in headers] == [500, 510, 520, 530, 540]


async def test_a_hole_stays_one_when_its_blocks_come_back_and_another_is_added_to_it():
    cluster = MemoryCluster(1)
    record = await closed(cluster)
    lose(cluster, record.ledger_id, 4, "rot")
    await cluster.ledgers.give_up(record.ledger_id)
    before = await headers_of(cluster, record.ledger_id)
    cluster.bookies[0].flip(record.ledger_id, 4)
    cluster.bookies[0].ledgers[record.ledger_id].damaged.clear()
    assert await headers_of(cluster, record.ledger_id) == before
    lose(cluster, record.ledger_id, 6, "rot")
    found = await cluster.ledgers.give_up(record.ledger_id)
    assert [(hole.first_entry, hole.last_entry) for hole in found.record.holes] == [(4, 5), (6, 7)]
    again = await cluster.ledgers.give_up(record.ledger_id)
    assert again.record == found.record and not again.new


async def test_an_open_ledger_with_a_hole_before_its_lac_is_closed_at_its_end_and_keeps_what_lies_behind():
    """One rotten bit in the journal of the only bookie: recovery never looks at the hole, and cannot find the end."""
    cluster = MemoryCluster(1)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=1, ack_quorum=1)
    )
    for _ in range(6):
        await listener.until(write(writer, 1))
    lose(cluster, writer.ledger_id, 2, "limbo")
    other = cluster.join()
    with pytest.raises(LostForGood, match="LIMBO"):
        await other.recover(writer.ledger_id)
    assert list(other.lost()) == [writer.ledger_id]
    record = (await other.give_up(writer.ledger_id)).record
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, 5)
    assert [(hole.first_entry, hole.last_entry) for hole in record.holes] == [(2, 2)]
    assert [bool(entry) for entry in await read_all(other, writer.ledger_id)] == [
        True,
        True,
        False,
        True,
        True,
        True,
    ]
    assert not other.lost()


@pytest.mark.parametrize("how", ["another fragment", "former"])
async def test_what_a_bookie_has_that_the_fragment_does_not_name_is_not_lost(how, monkeypatch):
    """The bookies that came after it lost what it had taken before it was left."""
    monkeypatch.setattr(loss, "_READ_BYTES", 1)
    cluster = MemoryCluster(1)
    record = await closed(cluster)
    cluster.grow()
    fragment = states.fragment(0 if how == "former" else 6, [cluster.bookies[1].bookie])
    before = record.fragments[0]
    changed = (fragment,) if how == "former" else (before, fragment)
    former = before.bookies if how == "former" else ()
    moved = replace(record, fragments=changed, former=former)
    await cluster.store.put(paths.ledger(record.ledger_id), encode(moved), -1)
    assert not (await cluster.join().look_for_loss(record.ledger_id)).new
    cluster.bookies[0].unreachable = True
    with pytest.raises(Unavailable, match="quire bookies recover bookie-0"):
        await cluster.join().give_up(record.ledger_id)
    assert not (await cluster.ledgers.info(record.ledger_id)).holes


async def test_an_open_ledger_is_not_cut_before_a_block_that_a_bookie_has_which_was_left():
    """The last fragment's only bookie is gone for good; the one before it had taken the same blocks."""
    cluster = MemoryCluster(1)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=1, ack_quorum=1)
    )
    await listener.until(write(writer, 6))
    path = paths.ledger(writer.ledger_id)
    opened = decode(LedgerRecord, (await cluster.store.get(path)).value, path)
    moved = replace(opened, fragments=(*opened.fragments, states.fragment(3, [BookieId("gone", 1)])))
    await cluster.store.put(path, encode(moved), -1)
    found = await cluster.join().give_up(writer.ledger_id)
    assert (found.record.state, found.record.last_entry) == (LedgerState.CLOSED, 5)
    assert not found.record.holes
    assert cluster.bookies[0].ledgers[writer.ledger_id].is_fenced


async def test_a_bookie_that_an_operator_gave_up_is_not_waited_for():
    cluster = MemoryCluster(1)
    uuid = cluster.bookies[0].bookie.uuid
    known = BookieRecord(uuid=uuid, incarnation=1)
    await cluster.store.create(paths.bookie(uuid), encode(known))
    record = await closed(cluster)
    cluster.bookies[0].unreachable = True
    cluster.directory.leave(uuid)
    ledgers = cluster.join()
    with pytest.raises(Unavailable):
        await ledgers.give_up(record.ledger_id)
    await cluster.store.put(paths.bookie(uuid), encode(replace(known, intent=BookieIntent.GIVE_UP)), 0)
    found = (await ledgers.give_up(record.ledger_id)).record
    assert [(hole.first_entry, hole.last_entry) for hole in found.holes] == [(0, 19)]
    assert not any(await read_all(ledgers, record.ledger_id))


async def test_a_bookie_that_drains_and_starts_again_at_this_moment_is_not_gone():
    """It takes nothing new; what it holds is still to be copied."""
    cluster = MemoryCluster(1)
    uuid = cluster.bookies[0].bookie.uuid
    await cluster.store.create(
        paths.bookie(uuid), encode(BookieRecord(uuid=uuid, incarnation=1, intent=BookieIntent.DRAIN))
    )
    record = await closed(cluster)
    cluster.bookies[0].unreachable = True
    cluster.directory.leave(uuid)
    with pytest.raises(Unavailable, match=f"quire bookies recover {uuid}"):
        await cluster.join().give_up(record.ledger_id)
    assert not (await cluster.ledgers.info(record.ledger_id)).holes


@pytest.mark.parametrize("status", [Status.WRONG_BOOKIE, Status.READ_ONLY, Status.BUSY])
async def test_an_open_ledger_is_not_cut_because_its_bookie_cannot_answer_now(status):
    """Another one at its old address, one that cannot write the fence down: its blocks are readable later."""
    cluster = MemoryCluster(1)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=1, ack_quorum=1)
    )
    await listener.until(write(writer, 3))
    bookie, ask = cluster.bookies[0], cluster.bookies[0].ask

    async def refusing(request: ReadRequest) -> ReadResponse:
        is_fence = isinstance(request, ReadRequest) and request.fence
        return ReadResponse(status) if is_fence else await ask(request)

    bookie.ask = refusing
    other = cluster.join()
    with pytest.raises(Unavailable, match=f"{status.name}.*try again"):
        await other.recover(writer.ledger_id)
    with pytest.raises(Unavailable, match=f"{status.name}.*try again"):
        await other.give_up(writer.ledger_id)
    bookie.ask = ask
    assert (await other.recover(writer.ledger_id)).last_entry == 2
    assert not other.lost()


async def test_a_mistake_of_ours_is_no_damage():
    cluster = MemoryCluster(1)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=1, ack_quorum=1)
    )
    await listener.until(write(writer, 3))
    bookie, ask = cluster.bookies[0], cluster.bookies[0].ask

    async def raising(request: ReadRequest) -> ReadResponse:
        raise RuntimeError("a mistake")

    bookie.ask = raising
    with pytest.raises(Unavailable, match=r"a mistake.*try again"):
        await cluster.join().give_up(writer.ledger_id)
    bookie.ask = ask
    assert (await cluster.join().recover(writer.ledger_id)).last_entry == 2


async def test_what_a_bookie_can_read_the_second_time_is_in_no_hole():
    """A sector with good moments: the entry behind it is asked for, and that is in the same block."""
    cluster = MemoryCluster(1)
    record = await closed(cluster)
    bookie, ask = cluster.bookies[0], cluster.bookies[0].ask

    async def failing(request: ReadRequest) -> ReadResponse:
        if request.first_entry == 6:
            return ReadResponse(Status.IO_ERROR, detail="a bad moment")
        answer = await ask(request)
        before = [
            each for each in answer.blocks if request.first_entry > 6 or block.peek(each).first_entry < 6
        ]
        return ReadResponse(answer.status, answer.lac, before)

    bookie.ask = failing
    assert not (await cluster.join().look_for_loss(record.ledger_id)).new


async def test_a_hole_that_is_found_before_an_older_one_leaves_no_gap_of_messages():
    cluster = MemoryCluster(1)
    writer = await cluster.ledgers.create(
        "test", listener := Listener(), PersistencePolicy(write_quorum=1, ack_quorum=1)
    )
    for first in range(5):
        cut = block.cut(writer.ledger_id, first, first - 1, 1000 + first, 10 * first, [b"batch"], [10])
        writer.add(cut, first)
    await listener.until(4)
    record = await writer.close()
    lose(cluster, record.ledger_id, 3, "rot")
    await cluster.ledgers.give_up(record.ledger_id, Span(0, 50))
    lose(cluster, record.ledger_id, 2, "rot")
    await cluster.ledgers.give_up(record.ledger_id, Span(0, 50))
    headers = await headers_of(cluster, record.ledger_id)
    assert [one.first_index for one in headers] == [0, 10, 20, 30, 40]
    found = (await cluster.ledgers.info(record.ledger_id)).holes
    assert [(hole.first_index, hole.messages) for hole in found] == [(20, 10), (30, 10)]


async def test_what_was_moved_is_not_called_lost_on_the_way(caplog):
    cluster = MemoryCluster(1)
    record = await closed(cluster)
    lose(cluster, record.ledger_id, 4, "rot")
    ledgers = cluster.join()
    reader = await ledgers.open(record.ledger_id)
    await cluster.join().give_up(record.ledger_id)
    assert await reader.read(4, 100)
    assert "lost for good" not in caplog.text and not ledgers.lost()


async def test_a_ledger_of_which_nothing_is_left_is_searched_by_time_without_its_bookies():
    cluster = MemoryCluster(1)
    uuid = cluster.bookies[0].bookie.uuid
    await cluster.store.create(
        paths.bookie(uuid), encode(BookieRecord(uuid=uuid, incarnation=1, intent=BookieIntent.GIVE_UP))
    )
    record = await closed(cluster)
    cluster.bookies[0].unreachable = True
    cluster.directory.leave(uuid)
    await cluster.ledgers.give_up(record.ledger_id)
    reader = await cluster.join().open(record.ledger_id)
    [header, *_] = await headers_of(cluster, record.ledger_id)
    assert await reader.find_time(header.clock_ms) == 0
    assert await reader.find_time(header.clock_ms + 1) == record.last_entry + 1


async def test_repair_leaves_holes_alone_and_takes_the_report_away():
    cluster = Cluster(3)
    await cluster.know()
    record = await cluster.closed()
    for bookie in cluster.bookies:
        bookie.flip(record.ledger_id, 3)
        bookie.cannot_mend = True
    await cluster.report_damage(0, record.ledger_id, 3, flip=False)
    await cluster.looks(2)
    assert record.ledger_id in cluster.repair.status().lost_ledgers
    await cluster.ledgers.give_up(record.ledger_id)
    cluster.clock.advance_ms(60_000)
    await cluster.looks(2)
    assert not cluster.repair.status().lost_ledgers
    assert not await damage_reports(cluster.store)


async def test_a_state_log_goes_on_without_the_deltas_that_were_given_up():
    cluster = MemoryCluster(1)

    async def opened(into: list[bytes]) -> StateLog:
        return await StateLog.open(
            cluster.join(), "/quire/state/t/n/b", StateLogOwner(into.append, lambda: into)
        )

    cluster.settings = replace_quorum(cluster)
    state: list[bytes] = []
    log = await opened(state)
    for number in range(4):
        done = asyncio.get_running_loop().create_future()
        log.append(b"delta %d" % number, done.set_result)
        await done
    [ledger_id] = log._ids
    log.abandon()
    bookie = cluster.bookies[0]
    firsts = bookie.ledgers[ledger_id].firsts
    bookie.flip(ledger_id, firsts[2])
    with pytest.raises(LostForGood) as raised:
        await opened([])
    assert (raised.value.ledger_id, raised.value.entry) == (ledger_id, firsts[2])
    await cluster.ledgers.give_up(ledger_id)
    again: list[bytes] = []
    await opened(again)
    assert again == [b"delta 0", b"delta 2", b"delta 3"]


def test_a_long_hole_is_the_same_blocks_wherever_reading_begins():
    hole = Hole(first_entry=10, last_entry=10_000, first_index=70, messages=20_000, clock_ms=5)
    seen = []
    entry = 10
    while entry <= hole.last_entry:
        header = block.verify(blank := holes.blank_at(3, hole, entry))
        assert holes.blank_at(3, hole, header.last_entry) == blank
        seen.append((header, sum(block.message_counts(blank, header))))
        entry = header.last_entry + 1
    assert sum(count for _, count in seen) == hole.messages
    ends = [header.first_index + count for header, count in seen]
    assert [header.first_index for header, _ in seen] == [70, *ends[:-1]] and ends[-1] == 70 + 20_000


def test_holes_are_part_of_the_record():
    record = LedgerRecord(ledger_id=1, state=LedgerState.CLOSED, last_entry=9)
    given = states.given_up(record, [Hole(first_entry=3, last_entry=4), Hole(first_entry=8, last_entry=9)])
    assert decode(LedgerRecord, encode(given), "p") == given
    assert list(holes.parts(given, 0, 9)) == [(0, 2), (5, 7)]
    assert list(holes.parts(given, 4, 8)) == [(5, 7)]


def lose(cluster: MemoryCluster, ledger_id: int, entry: int, how: str) -> None:
    """The first bookie's copy of the block that holds `entry` is no more."""
    bookie = cluster.bookies[0]
    if how == "rot":
        bookie.flip(ledger_id, entry)
        return
    bookie.limbo = True
    kept = bookie.ledgers[ledger_id]
    first = kept.containing(entry)
    assert first is not None
    del kept.blocks[first]
    kept.firsts.remove(first)


def replace_quorum(cluster: MemoryCluster):
    return replaced(cluster.settings, write_quorum=1, ack_quorum=1)
