"""One contract for the real disk (direct and through the page cache) and the simulated one; then crashes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.runtime.disk import (
    PAGE_BYTES,
    Disk,
    DiskThread,
    File,
    RealDisk,
    Worker,
    aligned_buffer,
    pages_up,
    read_around,
)
from quire.runtime.errors import ConfigurationError, DiskError, DiskFull, NotFound
from quire.testing.disk import SECTOR_BYTES, LoopWorker, Power, SimulatedDisk


@pytest.fixture(params=["direct", "cached", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    match request.param:
        case "direct":
            return RealDisk(tmp_path / "disk")
        case "cached":
            return RealDisk(tmp_path / "disk", direct=False)
        case _:
            return SimulatedDisk()


def page_of(*letters: bytes) -> memoryview:
    """A page-aligned buffer with one page for each letter."""
    buffer = aligned_buffer(PAGE_BYTES * len(letters))
    for letter in letters:
        buffer.write(letter * PAGE_BYTES)
    return memoryview(buffer)


def read(file: File, offset: int = 0, pages: int = 1) -> bytes:
    buffer = memoryview(aligned_buffer(PAGE_BYTES * pages))
    return bytes(buffer[: file.read_into(buffer, offset)])


# -- the contract ------------------------------------------------------------------------------------------
def test_what_was_written_is_read_again(disk: Disk) -> None:
    disk.make_directory()
    file = disk.open("a", create=True)
    file.write(page_of(b"x", b"y"), 0)
    file.write(page_of(b"z"), PAGE_BYTES, durable=True)
    assert read(file, 0, 2) == b"x" * PAGE_BYTES + b"z" * PAGE_BYTES
    file.close()
    assert read(disk.open("a"), PAGE_BYTES) == b"z" * PAGE_BYTES


def test_a_read_over_the_end_is_short(disk: Disk) -> None:
    disk.make_directory()
    file = disk.open("a", create=True)
    file.write(page_of(b"x"), 0)
    assert read(file, 0, 3) == b"x" * PAGE_BYTES
    assert read(file, 2 * PAGE_BYTES) == b""


def test_allocated_room_reads_as_zeros_and_never_shrinks(disk: Disk) -> None:
    disk.make_directory()
    file = disk.open("a", create=True)
    file.allocate(4 * PAGE_BYTES)
    assert file.size_bytes() == 4 * PAGE_BYTES
    assert read(file, PAGE_BYTES, 2) == bytes(2 * PAGE_BYTES)
    file.allocate(PAGE_BYTES)
    assert file.size_bytes() == 4 * PAGE_BYTES
    file.sync()


def test_an_open_does_not_create_or_empty(disk: Disk) -> None:
    disk.make_directory()
    with pytest.raises(NotFound):
        disk.open("a")
    disk.open("a", create=True).write(page_of(b"x"), 0)
    assert read(disk.open("a", create=True)) == b"x" * PAGE_BYTES


def test_names_are_listed_renamed_and_removed(disk: Disk) -> None:
    disk.make_directory()
    assert disk.names("sub") == []
    disk.make_directory("sub")
    for name in ("sub/b", "sub/a", "c"):
        disk.open(name, create=True).write(page_of(name[-1:].encode()), 0)
    assert disk.names("sub") == ["a", "b"]
    assert "c" in disk.names()
    disk.rename("sub/a", "sub/b")
    assert disk.names("sub") == ["b"]
    assert read(disk.open("sub/b")) == b"a" * PAGE_BYTES
    disk.remove("c")
    assert not disk.exists("c")
    with pytest.raises(NotFound):
        disk.remove("c")
    with pytest.raises(NotFound):
        disk.rename("sub/a", "sub/c")
    disk.sync_directory("sub")


def test_a_small_file_is_replaced_whole(disk: Disk) -> None:
    disk.make_directory()
    with pytest.raises(NotFound):
        disk.read_bytes("cookie")
    disk.write_bytes("cookie", b"one")
    disk.write_bytes("cookie", b"two and more")
    assert disk.read_bytes("cookie") == b"two and more"


def test_space_is_told(disk: Disk) -> None:
    disk.make_directory()
    space = disk.space()
    assert 0 < space.free_bytes <= space.total_bytes


def test_a_real_directory_is_locked_until_closed(tmp_path: Path) -> None:
    first, second = RealDisk(tmp_path), RealDisk(tmp_path)
    first.lock()
    with pytest.raises(ConfigurationError, match="in use"):
        second.lock()
    first.close()
    second.lock()
    second.close()


def test_a_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file/sub"):
        RealDisk(tmp_path / "file" / "sub").make_directory()


# -- the simulated disk's crashes ------------------------------------------------------------------------
def made_durable(name: str = "a", seed: int = 0, power: Power | None = None) -> SimulatedDisk:
    disk = SimulatedDisk(seed, power=power)
    file = disk.open(name, create=True)
    file.write(page_of(b"o", b"o"), 0)
    file.sync()
    disk.sync_directory()
    return disk


def test_what_was_synced_survives_and_open_files_do_not() -> None:
    for seed in range(20):
        disk = made_durable(seed=seed)
        file = disk.open("a")
        disk.crash()
        with pytest.raises(DiskError):
            read(file)
        assert read(disk.open("a"), 0, 2) == b"o" * 2 * PAGE_BYTES


def test_a_durable_write_survives_and_its_neighbours_need_not() -> None:
    for seed in range(20):
        disk = made_durable(seed=seed)
        disk.open("a").write(page_of(b"n"), PAGE_BYTES, durable=True)
        disk.crash()
        assert read(disk.open("a"), PAGE_BYTES) == b"n" * PAGE_BYTES


def test_unsynced_bytes_are_kept_dropped_or_torn() -> None:
    outcomes = set()
    for seed in range(60):
        disk = made_durable(seed=seed)
        disk.open("a").write(page_of(b"n", b"n"), 0)
        disk.crash()
        after = read(disk.open("a"), 0, 2)
        for start in range(0, len(after), SECTOR_BYTES):
            assert after[start : start + SECTOR_BYTES] in (b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES)
        outcomes.add("old" if b"n" not in after else "new" if b"o" not in after else "torn")
    assert outcomes == {"old", "new", "torn"}


def test_unsynced_names_may_be_lost_and_removed_ones_may_come_back() -> None:
    created, removed = set(), set()
    for seed in range(30):
        disk = made_durable(seed=seed)
        disk.open("b", create=True)
        disk.remove("a")
        disk.crash()
        created.add(disk.exists("b"))
        removed.add(disk.exists("a"))
    assert created == removed == {True, False}


def test_the_power_fails_once_for_all_disks_of_a_machine() -> None:
    power = Power()
    one, two = made_durable(power=power), made_durable(power=power)
    file = one.open("a")
    power.fail_after(1)
    file.write(page_of(b"n"), 0)
    with pytest.raises(DiskError):
        two.open("a")
    with pytest.raises(DiskError):
        file.sync()
    one.crash()
    two.crash()
    assert read(one.open("a"), PAGE_BYTES) == b"o" * PAGE_BYTES


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40), crash_at=st.integers(0, 60))
def test_a_random_history_keeps_what_was_answered(seed: int, steps: int, crash_at: int) -> None:
    rng = Random(seed)
    disk = SimulatedDisk(seed)
    file = disk.open("a", create=True)
    file.allocate(8 * PAGE_BYTES)
    file.sync()
    disk.sync_directory()
    acknowledged = [b"\0"] * 8
    possible = [{b"\0"} for _ in range(8)]
    disk.crash_after(crash_at)
    try:
        for step in range(steps):
            place, letter = rng.randrange(8), bytes([65 + step % 26])
            possible[place].add(letter)
            file.write(page_of(letter), place * PAGE_BYTES, durable=True)
            acknowledged[place], possible[place] = letter, {letter}
    except DiskError:
        pass
    disk.crash()
    file = disk.open("a")
    for place in range(8):
        found = read(file, place * PAGE_BYTES)
        assert {found[i : i + 1] for i in range(len(found))} <= possible[place], seed


def test_the_same_seed_crashes_the_same_way() -> None:
    def run() -> bytes:
        disk = made_durable(seed=7)
        disk.open("a").write(page_of(b"n", b"n"), 0)
        disk.crash()
        return disk.content("a")

    assert run() == run()


# -- injected faults ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("operation", "act"),
    [
        ("write", lambda file: file.write(page_of(b"n"), 0)),
        ("durable", lambda file: file.write(page_of(b"n"), 0, durable=True)),
        ("sync", lambda file: file.sync()),
        ("read", lambda file: read(file)),
        ("allocate", lambda file: file.allocate(1 << 20)),
    ],
)
def test_an_injected_error_comes_when_it_was_told(operation: str, act: Callable[[File], object]) -> None:
    disk = made_durable()
    file = disk.open("a")
    disk.fail(operation, errno.EIO, "a", skip=1)
    act(file)
    with pytest.raises(DiskError, match="Input/output error"):
        act(file)
    act(file)


def test_a_full_disk_refuses_what_does_not_fit_and_keeps_what_is_there() -> None:
    disk = SimulatedDisk(capacity_bytes=4 * PAGE_BYTES)
    file = disk.open("a", create=True)
    file.allocate(3 * PAGE_BYTES)
    with pytest.raises(DiskFull):
        file.allocate(5 * PAGE_BYTES)
    with pytest.raises(DiskFull):
        disk.open("b", create=True).write(page_of(b"x", b"x"), 0)
    file.write(page_of(b"x"), 2 * PAGE_BYTES)


def test_a_flipped_bit_is_seen_now_and_after_a_crash() -> None:
    disk = made_durable()
    disk.flip("a", 5, 0)
    assert read(disk.open("a"))[5] == ord("o") ^ 1
    disk.crash()
    assert read(disk.open("a"))[5] == ord("o") ^ 1


# -- workers -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [lambda: DiskThread("test"), LoopWorker], ids=["thread", "loop"])
async def test_a_worker_runs_in_order_and_answers_on_the_loop(make: Callable[[], Worker]) -> None:
    worker = make()
    order: list[object] = []
    finished = asyncio.Event()

    def failing() -> None:
        raise DiskError("no")

    worker.submit(lambda: order.append("work") or 1, lambda result, error: order.append((result, error)))
    worker.submit(failing, lambda result, error: (order.append(type(error)), finished.set()))
    assert order in ([], ["work"])  # never answered before submit returns
    await finished.wait()
    assert order == ["work", (1, None), DiskError]
    with pytest.raises(DiskError):
        await worker.run(failing)
    assert await worker.run(lambda: 42) == 42
    await worker.close()


def test_pages() -> None:
    assert [pages_up(n) for n in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]


# -- pages that cannot be read -----------------------------------------------------------------------------
def spoiled_disk(*pages: int) -> SimulatedDisk:
    """A file of four pages, of which some cannot be read."""
    disk = SimulatedDisk()
    disk.open("a", create=True).write(page_of(b"a", b"b", b"c", b"d"), 0, durable=True)
    disk.sync_directory()
    for page in pages:
        disk.spoil("a", page * PAGE_BYTES + 7)
    return disk


def test_a_page_that_cannot_be_read_fails_every_read_of_it_until_it_is_written() -> None:
    disk = spoiled_disk(1)
    disk.crash()
    file = disk.open("a")
    with pytest.raises(DiskError, match="Input/output error"):
        read(file, 0, pages=4)
    assert read(file) == b"a" * PAGE_BYTES
    file.write(page_of(b"n"), PAGE_BYTES)
    assert read(file, 0, pages=2) == b"a" * PAGE_BYTES + b"n" * PAGE_BYTES
    file.sync()
    disk.crash()
    assert read(disk.open("a"), 0, pages=2) == b"a" * PAGE_BYTES + b"n" * PAGE_BYTES


def test_what_can_be_read_around_a_bad_page_is() -> None:
    file = spoiled_disk(1, 2).open("a")
    buffer = aligned_buffer(6 * PAGE_BYTES)
    buffer[:] = b"x" * len(buffer)
    size_bytes, unreadable = read_around(file, buffer, 0, 2)
    assert size_bytes == 4 * PAGE_BYTES and set(unreadable) == {PAGE_BYTES, 2 * PAGE_BYTES}
    assert f"offset {PAGE_BYTES}" in str(unreadable[PAGE_BYTES])
    whole = b"a" * PAGE_BYTES + bytes(2 * PAGE_BYTES) + b"d" * PAGE_BYTES
    assert buffer[:size_bytes] == whole
    with pytest.raises(DiskError):
        read_around(file, buffer, 0, 1)
    assert read_around(spoiled_disk().open("a"), buffer, PAGE_BYTES, 0) == (3 * PAGE_BYTES, {})
