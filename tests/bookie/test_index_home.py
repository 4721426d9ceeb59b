"""Damage of LMDB's pages that ends whoever reads them is found by a process that may die of it, and heals."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from quire.bookie.index import IndexRow
from quire.bookie.index_home import IN_USE, LmdbHome, read_all
from quire.bookie.index_lmdb import LmdbIndex
from quire.bookie.settings import BookieSettings
from quire.runtime.disk import PAGE_BYTES, RealDisk
from quire.runtime.errors import CorruptionError
from quire.wire.bookie import BookieId

from .node import OK, Node, one

LEDGERS = 200
"""So many that the index is a tree of several pages."""
_FLAGS_AT, _LEAF = 10, 2
_FIRST_NODE_AT, _KEY_SIZE_AT, _KEY_AT = 16, 6, 8
_ROW_KEY_BYTES = 16


def settings_in(folder: Path) -> BookieSettings:
    return BookieSettings(journal=str(folder / "journal"), entry_log=str(folder / "entries"))


async def filled(folder: Path) -> BookieId:
    """The directories of a bookie that was stopped, with a block of each ledger."""
    node = await Node.start(settings_in(folder))
    assert await node.add(*(one(ledger, 0) for ledger in range(1, LEDGERS + 1))) == [OK] * LEDGERS
    await node.storage.stop()
    return node.id


def damage(data: Path) -> None:
    """Turn the bit that says of a leaf of rows that it is one; the first leaf, by its key, is left alone."""
    content = bytearray(data.read_bytes())
    leaves: dict[int, bytes] = {}
    for page in range(0, len(content), PAGE_BYTES):
        node = page + _u16(content, page + _FIRST_NODE_AT)
        if _u16(content, page + _FLAGS_AT) == _LEAF and _u16(content, node + _KEY_SIZE_AT) == _ROW_KEY_BYTES:
            leaves[page] = bytes(content[node + _KEY_AT :][:_ROW_KEY_BYTES])
    for page, key in leaves.items():
        if key > min(leaves.values()):
            struct.pack_into("<H", content, page + _FLAGS_AT, 0)
    data.write_bytes(content)


def _u16(content: bytearray, at: int) -> int:
    found: int = struct.unpack_from("<H", content, at)[0]
    return found


def start_elsewhere(folder: Path) -> int:
    """A start in a process of its own: its return code."""
    program = (
        "import asyncio, sys\n"
        "from quire.bookie.settings import BookieSettings\n"
        "from quire.bookie.storage import Storage\n"
        "async def main(journal, entries):\n"
        "    await Storage(BookieSettings(journal=journal, entry_log=entries)).start()\n"
        "asyncio.run(main(*sys.argv[1:]))\n"
    )
    given = settings_in(folder)
    command = [sys.executable, "-c", program, given.journal, given.entry_log]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode


async def test_an_index_that_ends_whoever_reads_it_is_rebuilt_by_the_next_start(tmp_path: Path) -> None:
    before = await filled(tmp_path)
    damage(tmp_path / "entries" / "index" / "data.mdb")
    assert start_elsewhere(tmp_path) == -signal.SIGABRT
    node = await Node.start(settings_in(tmp_path))
    assert node.id == BookieId(before.uuid, before.incarnation + 1), "fences may be lost"
    for ledger in range(1, LEDGERS + 1):
        assert await node.holds(ledger, 0) == one(ledger, 0)
    await node.storage.stop()
    node = await Node.start(settings_in(tmp_path))
    assert node.id.incarnation == before.incarnation + 1
    await node.storage.stop()


async def test_a_process_that_died_of_something_else_casts_no_doubt_on_the_index(tmp_path: Path) -> None:
    before = await filled(tmp_path)
    assert start_elsewhere(tmp_path) == 0, "it ends without a stop"
    assert (tmp_path / "entries" / IN_USE).exists()
    node = await Node.start(settings_in(tmp_path))
    assert node.id == before
    assert await node.holds(1, 0) == one(1, 0)
    await node.storage.stop()
    assert not (tmp_path / "entries" / IN_USE).exists()


def test_an_index_is_read_wholly_once_at_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    verify = LmdbIndex.verify

    def counted(index: LmdbIndex) -> None:
        read.append("here")
        verify(index)

    monkeypatch.setattr(LmdbIndex, "verify", counted)
    home = LmdbHome(RealDisk(tmp_path))
    home.open().close()
    assert read == ["here"], "after a clean stop nobody else reads it"
    (tmp_path / IN_USE).touch()
    home.open().close()
    assert read == ["here"], "who comes after a killed process has it read elsewhere"


def test_damage_that_another_process_met_is_met_again_and_named(tmp_path: Path) -> None:
    home = LmdbHome(RealDisk(tmp_path))
    index = home.open()
    index.commit([IndexRow(123456, 7890, 7890, 1, 0, 77, 0, 0, -1)], {}, b"mark")
    index.close()
    data = tmp_path / "index" / "data.mdb"
    content = bytearray(data.read_bytes())
    row = struct.pack(">QQ", 123456, 7890)
    at = content.rindex(row)
    while at >= 0:
        content[at + len(row) + 20] ^= 1
        at = content.rfind(row, 0, at)
    data.write_bytes(content)
    (tmp_path / IN_USE).touch()
    assert not read_all(str(tmp_path / "index"))
    with pytest.raises(CorruptionError, match="ledger 123456, entry 7890 does not match its checksum"):
        home.open()


def test_what_is_wrong_is_said_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = LmdbHome(RealDisk(tmp_path))
    home.open().close()
    (tmp_path / IN_USE).touch()
    died = subprocess.CompletedProcess([], -signal.SIGBUS)
    monkeypatch.setattr(subprocess, "run", lambda *args, **rest: died)
    with pytest.raises(CorruptionError, match=r"killed by SIGBUS.*data\.mdb"):
        home.open()
    home.discard()
    home.open().close()
