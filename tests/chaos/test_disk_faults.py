"""Damage and failures of disks: an error that names file and offset, never silence, never "no such entry".

Flipped bits are put into the files of a real data directory between two lives of the server. A full disk is a small
filesystem in memory where the machine lets us mount one; an I/O error comes from the simulated disk.
"""

from __future__ import annotations

import asyncio
import errno
import re
import subprocess
import urllib.error
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from quire.wire import commands
from quire.wire.message import OutgoingMessage, encode_one
from tests.machine_speed import times_slower
from tests.mounted import mounted

from .load import number_of, payload_of
from .machine import Machine
from .raw import Position, Raw, Refused
from .server import SMALL, Server

pytestmark = pytest.mark.chaos
ROOM_S = 60.0 + 30.0 * times_slower()
"""Greatest wait for room on a full disk: the interval of checkpoints, and time for the work on a busy machine."""

TOPICS = ("persistent://public/default/first", "persistent://public/default/second")
MESSAGES = 200
DAMAGED = 100
LOG_BYTES = 1 << 24
"""More than a server writes."""
"""The message of the first topic into which a bit is flipped."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path, **{**SMALL, "flush_interval_ms": "1h", "archive_lag_ms": "1h"})
    yield made
    await made.kill()


async def publish(raw: Raw, topic: str, numbers: range, extra: bytes = b"") -> None:
    """One message at a time, each with its receipt: so each is a group of the journal."""
    await raw.producer(topic)
    for number in numbers:
        entry = encode_one(OutgoingMessage(payload_of(number) + extra), "faults", number, 1)
        raw.write(*commands.send(1, number, 1, entry))
        assert await raw.receipts.get() is not None


async def fill(server: Server) -> None:
    """Start the server and publish to both topics, the first one first."""
    await server.start()
    raw = await Raw.open(server.address)
    for topic in TOPICS:
        await publish(raw, topic, range(MESSAGES))
        raw = await Raw.open(server.address)


async def read(raw: Raw, topic: str, *, quiet_s: float = 10.0) -> list[int]:
    """The numbers of a topic's messages from its start up to its end, or up to where nothing more comes."""
    await raw.subscribe(topic, "reader", durable=False, start=(-1, -1), permits=100_000)
    answer = await raw.ask(lambda request_id: commands.ask_last_message_id(1, request_id))
    last: Position = commands.position(answer.last_message_id)
    found: list[int] = []
    position = (-1, -1)
    while position < last:
        try:
            async with asyncio.timeout(quiet_s):
                one = await raw.delivered.get()
        except TimeoutError:
            break
        assert one is not None
        position = one.position
        found += map(number_of, one.payloads)
    await raw.close()
    return found


def flip(path: Path, part: bytes) -> None:
    """Turn one bit of the file, in the first place where `part` is."""
    content = bytearray(path.read_bytes())
    at = content.find(part)
    assert at >= 0, f"{path} does not hold {part!r}"
    content[at + len(part) - 1] ^= 4
    path.write_bytes(content)


def file_with(directory: Path, part: bytes) -> Path:
    """The file below `directory` that holds `part`."""
    return next(path for path in sorted(directory.rglob("*")) if path.is_file() and part in path.read_bytes())


def names_place(text: str, path: Path) -> bool:
    """Whether a message names the file and an offset in it."""
    return re.search(re.escape(str(path)) + r" at offset \d+", text) is not None


# -- flipped bits ----------------------------------------------------------------------------------------


async def test_a_flipped_bit_in_the_journal_is_damage_until_an_operator_gives_up_what_is_lost(
    server: Server,
) -> None:
    await fill(server)
    await server.kill()
    segment = file_with(server.data / "journal", payload_of(DAMAGED))
    flip(segment, payload_of(DAMAGED))
    await server.start()
    assert names_place(server.tail(), segment)
    with pytest.raises(Refused) as refused:
        await read(await Raw.open(server.address), TOPICS[0])
    assert names_place(str(refused.value), segment)
    for ledger_id in limbo_ledgers(server):
        await server.rest("POST", f"/quire/v1/ledgers/{ledger_id}/recover?accept_loss=true")
    left = [number for number in range(MESSAGES) if number != DAMAGED]
    assert await read(await Raw.open(server.address), TOPICS[0]) == left
    assert await read(await Raw.open(server.address), TOPICS[1]) == list(range(MESSAGES))


def limbo_ledgers(server: Server) -> list[int]:
    """State log, first topic, second topic: ledgers are numbered in the order of their making."""
    found = re.findall(r"all (\d+) ledgers are now in limbo", server.tail())
    return list(range(101, 101 + int(found[-1])))


async def test_an_invalid_last_group_is_the_torn_tail(server: Server) -> None:
    """It was never answered, as far as a start can know; everything before it is there."""
    await fill(server)
    await server.kill()
    last = payload_of(MESSAGES - 1)
    segment = file_with(server.data / "journal", last)
    content = bytearray(segment.read_bytes())
    content[content.rfind(last) + 2] ^= 1
    segment.write_bytes(content)
    await server.start()
    assert await read(await Raw.open(server.address), TOPICS[0]) == list(range(MESSAGES))
    assert await read(await Raw.open(server.address), TOPICS[1]) == list(range(MESSAGES - 1))
    assert "damage" not in server.tail()


async def test_a_flipped_bit_in_an_entry_log_stops_its_reader_and_no_other(server: Server) -> None:
    await fill(server)
    await server.stop()
    file = file_with(server.data / "entries" / "logs", payload_of(DAMAGED))
    flip(file, payload_of(DAMAGED))
    await server.start()
    assert await read(await Raw.open(server.address), TOPICS[0], quiet_s=0.5) == list(range(DAMAGED))
    assert names_place(server.tail(), file)
    assert names_place(await blocks_error(server, 0), file)
    assert await read(await Raw.open(server.address), TOPICS[1]) == list(range(MESSAGES))


async def blocks_error(server: Server, segment: int, entry: int = DAMAGED) -> str:
    """What the interface for Spark says of an entry of the first topic."""
    path = f"/quire/v1/topics/{TOPICS[0].replace('://', '/')}"
    ledger_id = (await server.rest("GET", f"{path}/segments"))["segments"][segment]["ledger_id"]
    with pytest.raises(urllib.error.HTTPError) as caught:
        await server.rest("GET", f"{path}/blocks?ledger={ledger_id}&entry={entry}")
    assert caught.value.code == 500
    return caught.value.read().decode()


def flip_every_page(content: bytearray) -> None:
    for at in range(0, len(content), 64):
        content[at] ^= 1


def cut_short(content: bytearray) -> None:
    del content[len(content) // 2 :]


def overwrite(content: bytearray) -> None:
    content[:] = b"\xa5" * len(content)


@pytest.mark.parametrize("damage", [flip_every_page, cut_short, overwrite])
async def test_a_damaged_index_is_rebuilt(server: Server, damage: Callable[[bytearray], None]) -> None:
    await fill(server)
    await server.stop()
    file = server.data / "entries" / "index" / "data.mdb"
    content = bytearray(file.read_bytes())
    damage(content)
    file.write_bytes(content)
    await server.start()
    assert "rebuilt the index" in server.tail()
    for topic in TOPICS:
        assert await read(await Raw.open(server.address), topic) == list(range(MESSAGES))


async def test_a_flipped_bit_in_the_archive_stops_its_reader(server: Server) -> None:
    server.settings |= {"segment_bytes_max": "16KiB", "archive_lag_ms": "0", "flush_interval_ms": "50ms"}
    await fill(server)
    path = f"/admin/v2/{TOPICS[0].replace('://', '/')}/internalStats"
    async with asyncio.timeout(ROOM_S):
        while (await server.rest("GET", path))["ledgers"][0]["state"] != "released":
            await server.rest("POST", "/quire/v1/archive/run")
    await server.stop()
    damaged = 5
    file = file_with(server.data / "archive", payload_of(damaged))
    flip(file, payload_of(damaged))
    await server.start()
    # What is read at once is proven at once, so a few messages before the damage are kept back with it.
    found = await read(await Raw.open(server.address), TOPICS[0], quiet_s=0.5)
    assert found == list(range(len(found))) and len(found) <= damaged
    name = str(file.relative_to(server.data / "archive"))
    assert re.search(re.escape(name) + r" at offset \d+", server.tail(100_000))
    assert name in await blocks_error(server, 0, damaged)
    assert await read(await Raw.open(server.address), TOPICS[1]) == list(range(MESSAGES))


# -- a full disk -----------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """256 MiB at `tmp_path/data`."""
    with mounted(tmp_path / "data", "size=256m") as place:
        yield place


async def test_a_full_disk_stops_writing_and_nothing_else(small: Path, tmp_path: Path) -> None:
    server = Server(tmp_path, **{**SMALL, "flush_interval_ms": "100ms", "archive_lag_ms": "1h"})
    await server.start()
    try:
        raw = await Raw.open(server.address)
        written = await publish_until_full(raw, server)
        assert written > 10
        assert (await server.rest("GET", "/health/live"))["live"]
        assert (await read_when_room(server.address, TOPICS[0]))[:written] == list(range(written))
        assert "is full" in server.tail(LOG_BYTES) or "No space left" in server.tail(LOG_BYTES)
        again = await Raw.open(server.address)
        with pytest.raises(Refused, match="is full"):
            await again.producer(TOPICS[0])
        grow = ["mount", "-o", "remount,size=768m", str(small)]
        await asyncio.to_thread(subprocess.run, grow, check=True)
        async with asyncio.timeout(ROOM_S):
            while True:  # writing goes on when there is room again
                try:
                    await again.producer(TOPICS[0])
                    break
                except Refused as error:
                    assert "is full" in str(error)
                    await asyncio.sleep(0.1)
        await server.kill()
        await server.start()
        assert (await read(await Raw.open(server.address), TOPICS[0]))[:written] == list(range(written))
    finally:
        await server.kill()


async def read_when_room(address: tuple[str, int], topic: str) -> list[int]:
    """Read, repeatedly while the topic is refused.

    Blocks that were accepted at the mark may take the disk below a quarter of its reserve, where even a topic's next
    ledger is refused, until a checkpoint frees the journal.
    """
    async with asyncio.timeout(ROOM_S):
        while True:
            try:
                return await read(await Raw.open(address), topic)
            except Refused as error:
                assert "is full" in str(error)
                await asyncio.sleep(0.2)


async def publish_until_full(raw: Raw, server: Server) -> int:
    """Fill the disk with messages of 500 KiB. Return the number of receipts.

    On a slow machine a receipt may take seconds, so the disk is full only when the server says so.
    """
    await raw.producer(TOPICS[0])
    for number in range(1 << 30):
        metadata = OutgoingMessage(payload_of(number), properties={"padding": "x" * 500_000})
        raw.write(*commands.send(1, number, 1, encode_one(metadata, "faults", number, 1)))
        for _ in range(20):
            try:
                async with asyncio.timeout(3):
                    receipt = await raw.receipts.get()
            except TimeoutError:
                receipt = None
            if receipt is not None:
                break
            if "is full" in server.tail(LOG_BYTES) or "No space left" in server.tail(LOG_BYTES):
                return number
        else:
            raise AssertionError(f"no receipt of message {number} in a minute:\n{server.tail()}")
    raise AssertionError("unreachable")


# -- a failing disk --------------------------------------------------------------------------------------


async def test_an_error_of_the_journal_ends_all_acknowledging_and_says_why() -> None:
    machine = Machine(1)
    await machine.boot()
    machine.broker.watch(lambda: machine.storage.health.failure)
    raw = await machine.connect()
    await publish(raw, TOPICS[0], range(10))
    assert not machine.broker.why_not_ready()
    machine.node.journal.fail("durable", errno.EIO)
    for number in range(10, 20):
        entry = encode_one(OutgoingMessage(payload_of(number)), "faults", number, 1)
        raw.write(*commands.send(1, number, 1, entry))
        for _ in range(50):
            await asyncio.sleep(0)
    assert raw.receipts.empty(), "acknowledged after an error of the journal"
    (reason,) = machine.broker.why_not_ready()
    assert (
        "the journal has failed" in reason and "journal/segment" in reason and "Input/output error" in reason
    )
    await machine.cut()
    await machine.boot()
    found = await read(await machine.connect(), TOPICS[0])
    assert found[:10] == list(range(10))
    await machine.cut()
