"""Simulated disk: a `Disk` in memory whose crashes, damage and errors follow from one seed.

`crash` has the effects that a power cut may have on a real disk:

- A random part of the sectors (512 bytes) that were written since the last sync of their file is kept: some pages, some
  sectors, all or none.
- A random part of the names that were created, renamed or removed since the last sync of their directory is kept.

`Power.fail_after(n)` lets n more operations succeed, tears the next one and switches the machine off. Then all
operations raise `DiskError` until `crash` restarts the machine. So a test can crash at every point of a history. Disks
of one machine share one `Power`.

`fail` injects errors (EIO, ENOSPC). `flip` flips a bit at rest. `spoil` makes a page unreadable until it is written
again, because a real disk reallocates the sector then. `capacity_bytes` limits the disk's size.

Tests use the disk with `LoopWorker`, which runs its work on the event loop, in order, each piece in its own iteration.
So a run is a function of the seed alone.
"""

from __future__ import annotations

import asyncio
import errno as errnos
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeVar

from quire.runtime.disk import PAGE_BYTES, Buffer, Done, File, Space, map_error, pages_up, run_on
from quire.runtime.errors import ConfigurationError, DiskError, NotFound

T = TypeVar("T")

SECTOR_BYTES: Final = 512
_SECTORS_PER_PAGE: Final = PAGE_BYTES // SECTOR_BYTES


@dataclass(slots=True)
class _Inode:
    """File with its bytes in the page cache (`live`) and on the platter (`kept`)."""

    live: bytearray = field(default_factory=bytearray)
    kept: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    """Numbers of the sectors of `live` that were written since the last sync."""
    spoiled: set[int] = field(default_factory=set)
    """Numbers of the pages that cannot be read until they are written again."""

    def cannot_read(self, offset: int, size_bytes: int) -> bool:
        pages = range(offset // PAGE_BYTES, pages_up(offset + size_bytes) // PAGE_BYTES)
        return any(page * _SECTORS_PER_PAGE not in self.dirty for page in self.spoiled if page in pages)

    def make_durable(self, sectors: set[int]) -> None:
        _resize(self.kept, len(self.live))
        for sector in sectors:
            start = sector * SECTOR_BYTES
            self.kept[start : start + SECTOR_BYTES] = self.live[start : start + SECTOR_BYTES]
        self.spoiled -= {sector // _SECTORS_PER_PAGE for sector in sectors}
        self.dirty -= sectors

    def crash(self, rng: Random) -> None:
        """Keep a random part of the dirty sectors, and at random the new size of a file that has grown."""
        how = rng.choice(("none", "all", "pages", "sectors"))
        survivors = {sector for sector in self.dirty if how != "none"}
        if how == "pages":
            pages = {page for page in {s // _SECTORS_PER_PAGE for s in self.dirty} if rng.random() < 0.5}
            survivors = {s for s in self.dirty if s // _SECTORS_PER_PAGE in pages}
        elif how == "sectors":
            survivors = {s for s in sorted(self.dirty) if rng.random() < 0.5}
        if survivors or (how != "none" and rng.random() < 0.5):
            self.make_durable(survivors)
        self.live = bytearray(self.kept)
        self.dirty.clear()


@dataclass(slots=True)
class _Fault:
    operation: str
    part_of_name: str
    error: int
    skip: int
    times: int


_NameChange = Callable[[dict[str, _Inode]], None]


@dataclass(slots=True)
class Power:
    """Power supply of all disks of a machine.

    `operations` counts the operations on these disks, so that a test can choose crash points.
    """

    operations: int = 0
    is_down: bool = False
    _fails_at: int | None = None

    def fail_after(self, operations: int) -> None:
        """Let `operations` more operations succeed, and switch the machine off at the next one."""
        self._fails_at = self.operations + operations

    def restore(self) -> None:
        self.is_down = False
        self._fails_at = None

    def step(self) -> bool:
        """Count an operation. Return False if the machine is off, so that the operation must fail."""
        if not self.is_down:
            self.is_down = self.operations == self._fails_at
            self.operations += 1
        return not self.is_down


class SimulatedDisk:
    """Simulated disk; a `Disk`."""

    def __init__(
        self,
        seed: int = 0,
        root: str = "simulated",
        capacity_bytes: int = 1 << 40,
        power: Power | None = None,
    ) -> None:
        self.root = root
        self.capacity_bytes = capacity_bytes
        self.power = power or Power()
        self._rng = Random(seed)
        self._names: dict[str, _Inode] = {}
        self._kept_names: dict[str, _Inode] = {}
        self._name_changes: list[tuple[str, _NameChange]] = []
        self._faults: list[_Fault] = []
        self._boots = 0
        self._locked = False

    # -- faults, for tests -----------------------------------------------------------------------------
    def crash(self) -> None:
        """Simulate a power cut and a restart: unsynced bytes and names are kept or lost at random.

        Files that were open raise `DiskError` from then on.
        """
        for _, change in self._name_changes:
            if self._rng.random() < 0.5:
                change(self._kept_names)
        self._names = dict(self._kept_names)
        self._name_changes.clear()
        for name in sorted(self._names):
            self._names[name].crash(self._rng)
        self._boots += 1
        self._locked = False
        self.power.restore()

    def crash_after(self, operations: int) -> None:
        """Call `Power.fail_after`, for a machine with one disk."""
        self.power.fail_after(operations)

    @property
    def operations(self) -> int:
        return self.power.operations

    def fail(self, operation: str, error: int, name: str = "", *, skip: int = 0, times: int = 1) -> None:
        """Let an operation (`write`, `durable`, `read`, `sync`, `allocate`, `open`) fail with the errno `error`.

        This applies to files whose name contains `name`: the first `skip` calls succeed, the next `times` calls fail.
        """
        self._faults.append(_Fault(operation, name, error, skip, times))

    def heal(self) -> None:
        """Remove all faults injected by `fail`."""
        self._faults.clear()

    def flip(self, name: str, offset: int, bit: int = 0) -> None:
        """Flip one bit of a file, as bit rot does."""
        inode = self._inode(name)
        for image in (inode.live, inode.kept):
            if offset < len(image):
                image[offset] ^= 1 << bit

    def spoil(self, name: str, offset: int) -> None:
        """Make the page around `offset` of a file unreadable (EIO) until it is written again."""
        self._inode(name).spoiled.add(offset // PAGE_BYTES)

    def restore(self, name: str, offset: int) -> None:
        """Make a spoiled page readable again."""
        self._inode(name).spoiled.discard(offset // PAGE_BYTES)

    def content(self, name: str) -> bytes:
        """Return the cached bytes of a file, including the bytes of spoiled pages; for tests."""
        return bytes(self._inode(name).live)

    # -- Disk --------------------------------------------------------------------------------------------
    def open(self, name: str, *, create: bool = False) -> File:
        self._step("open", name)
        if create and name not in self._names:
            inode = _Inode()
            self._change_names(name, lambda names: names.__setitem__(name, inode))
        return _SimulatedFile(self, name, self._inode(name), self._boots)

    def exists(self, name: str) -> bool:
        return name in self._names or any(other.startswith(name + "/") for other in self._names)

    def names(self, directory: str = "") -> list[str]:
        prefix = directory + "/" if directory else ""
        inside = (name[len(prefix) :] for name in self._names if name.startswith(prefix))
        return sorted({name.split("/")[0] for name in inside})

    def make_directory(self, directory: str = "") -> None:
        self._step("open", directory)

    def rename(self, old: str, new: str) -> None:
        self._step("rename", old)
        self._inode(old)

        def change(names: dict[str, _Inode]) -> None:
            if old in names:
                names[new] = names.pop(old)

        self._change_names(new, change)

    def remove(self, name: str) -> None:
        self._step("remove", name)
        self._inode(name)

        def change(names: dict[str, _Inode]) -> None:
            names.pop(name, None)

        self._change_names(name, change)

    def sync_directory(self, directory: str = "") -> None:
        self._step("sync", directory)
        rest = []
        for name, change in self._name_changes:
            if os.path.dirname(name) == directory:
                change(self._kept_names)
            else:
                rest.append((name, change))
        self._name_changes = rest

    def read_bytes(self, name: str) -> bytes:
        self._step("read", name)
        return bytes(self._inode(name).live)

    def write_bytes(self, name: str, content: bytes) -> None:
        self._step("write", name)
        inode = _Inode(bytearray(content), bytearray(content))
        self._names[name] = inode
        self._kept_names[name] = inode

    def space(self) -> Space:
        used = sum(len(inode.live) for inode in self._names.values())
        return Space(self.capacity_bytes, max(0, self.capacity_bytes - used))

    def lock(self) -> None:
        if self._locked:
            raise ConfigurationError(
                f"data directory {self.root} is in use by another process; stop it or choose another directory"
            )
        self._locked = True

    def close(self) -> None:
        self._locked = False

    # -- inside ------------------------------------------------------------------------------------------
    def _inode(self, name: str) -> _Inode:
        try:
            return self._names[name]
        except KeyError:
            raise NotFound(f"cannot open {self.root}/{name}: No such file or directory") from None

    def _change_names(self, name: str, change: _NameChange) -> None:
        change(self._names)
        self._name_changes.append((name, change))

    def _step(self, operation: str, name: str) -> None:
        """Count one operation. Raises the error injected for it, or `DiskError` if the machine is off."""
        if not self.power.step():
            raise DiskError(f"cannot {operation} {self.root}/{name}: the machine is down")
        for fault in self._faults:
            if fault.operation == operation and fault.part_of_name in name:
                if fault.skip > 0:
                    fault.skip -= 1
                elif fault.times > 0:
                    fault.times -= 1
                    error = OSError(fault.error, os.strerror(fault.error))
                    raise map_error(error, operation, f"{self.root}/{name}")


class _SimulatedFile:
    def __init__(self, disk: SimulatedDisk, name: str, inode: _Inode, boot: int) -> None:
        self.name = f"{disk.root}/{name}"
        self._disk = disk
        self._short_name = name
        self._inode = inode
        self._boot = boot

    def write(self, buffer: Buffer, offset: int, *, durable: bool = False) -> None:
        view = memoryview(buffer)
        assert offset % PAGE_BYTES == 0 and len(view) % PAGE_BYTES == 0
        self._alive()
        self._make_room(offset + len(view))
        was_down = self._disk.power.is_down
        try:
            self._disk._step("write", self._short_name)
            if durable:
                self._disk._step("durable", self._short_name)
        except DiskError:
            if not was_down:  # a torn write: the bytes are in the cache, and a crash keeps any part of them
                self._put(view, offset)
            raise
        self._put(view, offset)
        if durable:
            self._inode.make_durable(_sectors(offset, len(view)))

    def _put(self, view: memoryview, offset: int) -> None:
        _resize(self._inode.live, max(len(self._inode.live), offset + len(view)))
        self._inode.live[offset : offset + len(view)] = view
        self._inode.dirty |= _sectors(offset, len(view))

    def read_into(self, buffer: Buffer, offset: int) -> int:
        view = memoryview(buffer)
        assert offset % PAGE_BYTES == 0 and len(view) % PAGE_BYTES == 0
        self._alive()
        self._disk._step("read", self._short_name)
        if self._inode.cannot_read(offset, len(view)):
            raise map_error(OSError(errnos.EIO, os.strerror(errnos.EIO)), "read", self.name, offset)
        found = self._inode.live[offset : offset + len(view)]
        view[: len(found)] = found
        return len(found)

    def sync(self) -> None:
        self._alive()
        self._disk._step("sync", self._short_name)
        self._inode.make_durable(set(self._inode.dirty))

    def allocate(self, size_bytes: int) -> None:
        self._alive()
        self._disk._step("allocate", self._short_name)
        self._make_room(size_bytes)
        _resize(self._inode.live, max(len(self._inode.live), size_bytes))

    def size_bytes(self) -> int:
        return len(self._inode.live)

    def close(self) -> None:
        self._boot = -1

    def _make_room(self, size_bytes: int) -> None:
        if size_bytes - len(self._inode.live) > self._disk.space().free_bytes:
            raise map_error(OSError(errnos.ENOSPC, os.strerror(errnos.ENOSPC)), "write", self.name)

    def _alive(self) -> None:
        if self._boot != self._disk._boots:
            raise DiskError(f"cannot use {self.name}: it was closed, or open before a crash")


def _sectors(offset: int, length: int) -> set[int]:
    return set(range(offset // SECTOR_BYTES, pages_up(offset + length) // SECTOR_BYTES))


def _resize(image: bytearray, size_bytes: int) -> None:
    if len(image) < size_bytes:
        image.extend(bytes(size_bytes - len(image)))
    else:
        del image[size_bytes:]


class LoopWorker:
    """`Worker` without a thread: pieces of work run on the event loop in order, each in its own iteration.

    `kill` simulates the end of the process: pending work is never done.
    """

    def __init__(self) -> None:
        self._is_dead = False

    def kill(self) -> None:
        self._is_dead = True

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        asyncio.get_running_loop().call_soon(self._step, work, done)

    def _step(self, work: Callable[[], T], done: Done[T]) -> None:
        if self._is_dead:
            return
        try:
            result = work()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)

    async def run(self, work: Callable[[], T]) -> T:
        return await run_on(self, work)

    async def close(self) -> None:
        await self.run(lambda: None)
