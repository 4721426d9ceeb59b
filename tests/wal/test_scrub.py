"""A person sees what WALs hold, whether it is whole, and what nobody needs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quire.metadata.open import open_store as open_metadata
from quire.objects.open import open_for_log
from quire.runtime.clock import SystemClock
from quire.runtime.errors import Unavailable
from quire.wal import scrub, wal_object
from quire.wal.own_record import OwnRecord
from quire.wal.storage import WalStorage
from quire.wal.view import View
from tests.cli.running import quire
from tests.wal.blocks import made
from tests.wal.context import wal_context
from tests.wal.node import Asked, Node


async def test_every_rotten_byte_is_found_and_no_sound_one() -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    await node.wal.flush()
    await node.wal.emptied()
    await node.add(made(1, 1))
    found = await scrub.verify(node.context, node.uuid)
    assert (found.ledgers, found.sets, found.data_objects, found.damage) == (2, 1, 1, [])
    assert found.bytes == 3 * len(made(1, 0))
    for name, (content, _) in list(node.store.faults.objects.items()):
        if "/set-" not in name and "/sets-" not in name:
            node.store.faults.flip(name, len(content) // 2)
            assert len((await scrub.verify(node.context, node.uuid)).damage) == 1
            node.store.faults.flip(name, len(content) // 2)
    (name,) = [name for name in node.store.faults.objects if "/set-" in name]
    node.store.faults.flip(name, 150)
    assert "set-" in (await scrub.verify(node.context, node.uuid)).damage[0]
    await node.wal.stop()


async def test_what_becomes_a_set_while_it_is_read_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await Node().start()
    await node.add(made(1, 0), made(2, 0))
    looked = View.refresh

    async def refresh(self: View) -> None:
        await looked(self)
        await node.wal.flush()  # as soon as somebody has looked at the record
        await node.wal.emptied()

    monkeypatch.setattr(View, "refresh", refresh)
    found = await scrub.verify(node.context, node.uuid)
    assert (found.ledgers, found.sets, found.data_objects, found.damage) == (2, 1, 0, [])
    await node.wal.stop()


async def test_what_is_never_seen_whole_is_not_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    entries = iter(range(1, 9))
    looked = View.refresh

    async def refresh(self: View) -> None:
        await looked(self)
        await node.wal.flush()  # what was just seen goes, and something else comes
        await node.wal.emptied()
        await node.add(made(1, next(entries)))

    monkeypatch.setattr(View, "refresh", refresh)
    with pytest.raises(Unavailable, match="goes on faster than it is read"):
        await scrub.verify(node.context, node.uuid)
    await node.wal.stop()


async def test_what_no_record_names_is_a_stray_when_it_is_old() -> None:
    node = await Node().start()
    await node.add(made(1, 0))
    await node.wal.flush()
    await node.add(made(1, 1))
    await node.wal.emptied()
    gone = "0a0b0c0d-0000-4000-8000-000000000007"
    fence = wal_object.encode_fence(gone, 3, 0, "somebody")
    await node.store.put_whole(wal_object.data_name(gone, 3), (fence,))
    names = [
        wal_object.set_name(node.uuid, 7, "x"),
        wal_object.data_name(node.uuid, 0),
        wal_object.data_name(gone, 2),
    ]
    for name in names:
        await node.store.put_whole(name, (bytes(200),))
    now_ms = SystemClock().now_ms()
    assert await scrub.strays(node.context, now_ms) == []
    old = await scrub.strays(node.context, now_ms + 2 * scrub.GRACE_MS)
    assert sorted(info.name for info in old) == sorted(names)
    ancient = await scrub.strays(node.context, now_ms + scrub.FENCE_MS + scrub.GRACE_MS)
    assert sorted(info.name for info in ancient) == sorted([*names, wal_object.data_name(gone, 3)])
    await node.wal.stop()


def test_the_commands(tmp_path: Path) -> None:
    stores = ("--metadata", f"sqlite://{tmp_path}/metadata.db", "--wal", f"file://{tmp_path}/bucket")

    async def write() -> str:
        metadata = await open_metadata(stores[1])
        objects = open_for_log(stores[3], 4)
        context = wal_context(objects, metadata)
        wal = WalStorage(context, await OwnRecord.begin(context), lambda _, why: pytest.fail(str(why)))
        wal.start()
        await Asked(wal, wal.bookie_id).add(made(1, 0))
        await wal.stop()
        await objects.close()
        await metadata.close()
        return wal.bookie_id.uuid.removeprefix("wal-")

    uuid = asyncio.run(write())
    assert [row["uuid"] for row in quire("wal", "list", *stores, "--json").json] == [uuid]
    shown = quire("wal", "show", uuid[:8], *stores, "--json").json
    assert (shown["end_seq"], shown["closed_by"]) == (1, shown["broker"]), "its writer stopped as it should"
    assert quire("wal", "verify", *stores, "--json").json[0]["ledgers"] == 1
    assert quire("wal", "scrub", *stores, "--json").json == []
    assert "ends before object 1" in quire("wal", "close", uuid, *stores).out
    (name,) = tmp_path.glob("bucket/wal/*/set-*")
    name.chmod(0o600)
    content = bytearray(name.read_bytes())
    content[130] ^= 1
    name.write_bytes(content)
    ran = quire("wal", "verify", *stores)
    assert ran.code == 4 and "set-" in ran.out
    assert quire("wal", "show", "ffff", *stores).code == 2
