"""The scrub finds what rots, says so, and goes on where it stood."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quire.bookie.scrub import Scrub
from quire.bookie.settings import BookieSettings
from quire.metadata.underreplicated import Reports, damage_reports
from quire.runtime.clock import ManualClock
from quire.runtime.disk import RealDisk
from quire.runtime.limits import MIB
from quire.testing.metadata import MemoryStore
from quire.wire.bookie import Status

from .node import OK, Node, one

WEEK_MS = 7 * 86_400_000


@pytest.fixture
async def node(tmp_path: Path):
    settings = BookieSettings(
        journal=str(tmp_path / "journal"),
        entry_log=str(tmp_path / "entries"),
        journal_segment_bytes=16 * MIB,
        memtable_bytes=16 * MIB,
        entry_log_bytes=32 * MIB,
        disk_reserve_bytes=0,
    )
    started = await Node.start(settings)
    for ledger_id in (3, 5, 9):
        assert set(await started.add(*(one(ledger_id, first, 5_000) for first in range(100)))) == {OK}
    await started.storage.flush()
    yield started
    await started.storage.stop()


def scrub_of(node: Node, tmp_path: Path, clock: ManualClock) -> Scrub:
    return Scrub(node.storage, RealDisk(tmp_path / "entries"), clock, WEEK_MS)


def rot(tmp_path: Path, ledger_id: int, entry: int) -> None:
    """Flip a byte of the entry, wherever it lies in the entry logs."""
    wanted = b"%d/%d " % (ledger_id, entry) * 3
    for log in (tmp_path / "entries" / "logs").iterdir():
        content = log.read_bytes()
        at = content.find(wanted)
        if at >= 0:
            with log.open("r+b") as file:
                file.seek(at)
                file.write(b"\xff")
            return
    raise AssertionError("no entry log holds it")


async def test_a_sound_node_is_read_whole_and_nothing_is_reported(node: Node, tmp_path: Path) -> None:
    found: list[object] = []
    node.storage.health.on_damage(found.append)
    scrub = scrub_of(node, tmp_path, ManualClock())
    await scrub.run_once()
    assert (scrub.rounds, scrub.damaged, found) == (1, 0, [])
    assert scrub.bytes_read == node.storage.live_bytes() > 1_500_000


async def test_one_flipped_byte_is_found_named_and_told_to_the_cluster(node: Node, tmp_path: Path) -> None:
    store, clock = MemoryStore(), ManualClock()
    reports = Reports(store, clock)
    node.storage.health.on_damage(lambda damage: reports.met(str(node.id), *damage))
    reports.start()
    rot(tmp_path, 5, 42)
    scrub = scrub_of(node, tmp_path, clock)
    await scrub.run_once()
    assert scrub.damaged == 1
    async with asyncio.timeout(60):
        while not reports.reported:  # noqa: ASYNC110
            await asyncio.sleep(0)
    [record] = await damage_reports(store)
    assert (record.bookie, record.ledger_id, record.entry) == (str(node.id), 5, 42)
    assert "logs" in record.what and "offset" in record.what
    await reports.stop()
    assert len(await damage_reports(store)) == 1


async def test_a_reader_that_meets_damage_reports_it_too(node: Node, tmp_path: Path) -> None:
    found: list[tuple[int, int, str]] = []
    node.storage.health.on_damage(lambda damage: found.append(tuple(damage)))
    rot(tmp_path, 9, 7)
    assert await node.holds(9, 7) is Status.IO_ERROR
    assert found[0][:2] == (9, 7)


async def test_a_round_goes_on_after_a_restart_where_it_stood(node: Node, tmp_path: Path) -> None:
    clock = ManualClock()
    checked: list[int] = []
    check = node.storage.check_run

    async def note(ledger_id: int, entry: int):
        checked.append(ledger_id)
        clock.advance_ms(61_000)
        if checked.count(9):
            raise asyncio.CancelledError
        return await check(ledger_id, entry)

    node.storage.check_run = note  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await scrub_of(node, tmp_path, clock).run_once()
    node.storage.check_run = check  # type: ignore[method-assign]
    second = scrub_of(node, tmp_path, clock)
    second._note = second._load()
    await second.run_once()
    assert 0 < second.bytes_read < node.storage.live_bytes() / 2, "3 and 5 were read before"
    third = scrub_of(node, tmp_path, clock)
    assert third._load().ledger_id == -1, "the round is over"


async def test_the_rate_makes_a_round_take_most_of_the_interval(node: Node, tmp_path: Path) -> None:
    scrub = scrub_of(node, tmp_path, ManualClock())
    node.storage.live_bytes = lambda: 1_000_000 * MIB  # type: ignore[method-assign]
    assert 0.7 * WEEK_MS < 1_000_000 * MIB / scrub._bytes_per_s() * 1000 < WEEK_MS


async def test_a_round_that_was_noted_while_the_clock_was_ahead_puts_nothing_off(
    node: Node, tmp_path: Path
) -> None:
    clock = ManualClock(30 * WEEK_MS)
    scrub = scrub_of(node, tmp_path, clock)
    await scrub.run_once()
    again = scrub_of(node, tmp_path, ManualClock(20 * WEEK_MS))
    again.start()
    async with asyncio.timeout(10):
        while not again.bytes_read:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await again.stop()
