"""Is this machine fit for what runs on it? Disks, limits, memory and kernel, looked at from inside the process.

    a directory   it is there and may be written; its file system keeps bytes; room, file names, time of a sync
    limits        open files, the size of a file, address space: those of this very process
    memory        what is left, of the machine and of the control group, and whether it swaps
    kernel        the queue of connections that wait, files of the whole machine
    clock         a year that cannot be

All of it is measured or read where the kernel says it: a limit in a shell is not that of a service. Calls block, for a
disk may take its time: run them on a thread. `root` is for tests alone: the kernel's files lie in `root/proc`.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from quire.runtime.findings import Finding, error, warning
from quire.runtime.limits import ENTRY_LOG_BYTES, GIB, INDEX_MAP_BYTES, KIB, MIB

OPEN_FILES_MIN: Final = 8_192
"""A busy broker has a few thousand connections, and as many files beside them."""

OPEN_FILES_SHARE_MAX: Final = 0.8
ADDRESS_BYTES_MIN: Final = INDEX_MAP_BYTES + 16 * GIB
MEMORY_BYTES_MIN: Final = GIB
MEMORY_LEFT_BYTES_MIN: Final = 256 * MIB
FREE_SHARE_MIN: Final = 0.1
FREE_NAMES_MIN: Final = 1_000
WAITING_CONNECTIONS_MIN: Final = 1_024
"""As many as our own sockets ask for (`listen`)."""

SYNC_S_MAX: Final = 0.05
"""The median of some single writes. Each publish waits for one; a disk of its own takes less than 10 ms."""

SYNCS: Final = 15
YEAR_MIN: Final = 2025
IN_MEMORY: Final = ("tmpfs", "ramfs")
ACROSS_A_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs")


@dataclass(frozen=True)
class Place:
    """A directory that a process keeps its bytes in. Below `needs_bytes` of room it takes no more of them."""

    what: str
    path: str
    needs_bytes: int = 0
    is_synced: bool = False
    """A message's receipt waits for a sync here."""


@dataclass(frozen=True)
class Machine:
    """What a process needs of its machine. `is_bookie`: it maps an index and writes large files."""

    places: Sequence[Place] = ()
    is_bookie: bool = False
    root: Path = Path("/")

    def findings(self) -> list[Finding]:
        return list(self._findings())

    def _findings(self) -> Iterator[Finding]:
        for place in self.places:
            yield from _of_place(place, self.root)
        yield from _of_limits(self.is_bookie)
        yield from _of_memory(self.root)
        yield from _of_kernel(self.root)
        if (year := time.gmtime().tm_year) < YEAR_MIN:
            yield error(f"the clock says that it is {year}", "set it, and keep it by NTP (chrony, timesyncd)")


# -- directories -------------------------------------------------------------------------------------------


def _of_place(place: Place, root: Path) -> Iterator[Finding]:
    path = _existing(Path(place.path).absolute())
    named = f"{place.what} {place.path}"
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        yield error(
            f"{named} cannot be written, for {path} is not a directory that this user may write to",
            f"make it, and give it to this user (uid {os.getuid()})",
        )
        return
    yield from _of_space(named, path, place.needs_bytes)
    kind = file_system(path, root)
    if kind in IN_MEMORY:
        yield warning(
            f"{named} lies in memory ({kind}): nothing of it outlives the machine", "put it on a disk"
        )
    if place.is_synced and kind in ACROSS_A_NETWORK:
        yield warning(
            f"{named} lies on {kind}, whose syncs wait for a network", "put it on a disk of this machine"
        )
    if place.is_synced:
        yield from _of_sync(named, path)


def _of_space(named: str, path: Path, needs_bytes: int) -> Iterator[Finding]:
    disk = os.statvfs(path)
    free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    has = f"{named} has {free // MIB} of {size // MIB} MiB free"
    todo = (
        "make room (retention, `quire archive status`, files of others on this disk; delete none of Quire's), or take "
        "a larger disk"
    )
    if free < needs_bytes:
        yield error(f"{has}; below {needs_bytes // MIB} MiB nothing new is taken", todo)
    elif free < size * FREE_SHARE_MIN:
        yield warning(has, todo)
    if disk.f_files and disk.f_favail < FREE_NAMES_MIN:
        yield error(
            f"the disk of {named} has room for {disk.f_favail} more files (inodes)",
            "delete small files on it",
        )


def _of_sync(named: str, path: Path) -> Iterator[Finding]:
    try:
        took_s = sync_s(path)
    except OSError as problem:
        yield error(
            f"a trial write in {named} failed: {problem.strerror}",
            "look at the disk and the kernel's log (dmesg)",
        )
        return
    if took_s > SYNC_S_MAX:
        yield warning(
            f"a sync in {named} takes {took_s * 1000:.0f} ms, and each publish waits for one",
            "give the journal a disk of its own (SSD or NVMe), and see who else writes to this one (iostat -x 1)",
        )


def sync_s(path: Path) -> float:
    """The median of `SYNCS` single writes of a page, each made durable. The file has no name. Raises `OSError`."""
    took, page = [], os.urandom(4 * KIB)
    with TemporaryFile(dir=path, buffering=0) as file:
        for number in range(SYNCS):
            begun = time.perf_counter()
            os.pwrite(file.fileno(), page, number * len(page))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begun)
    return sorted(took)[SYNCS // 2]


def file_system(path: Path, root: Path = Path("/")) -> str:
    """Its kind, as the kernel names it: of the deepest mount that holds `path`; "" where nobody tells."""
    best, kind = "", ""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        mounted = before.split()[4].replace("\\040", " ")
        if path.is_relative_to(mounted) and len(mounted) >= len(best):
            best, kind = mounted, after.split()[0]
    return kind


def _existing(path: Path) -> Path:
    """The directory, or the nearest one above it that is there: what is missing would be made in it."""
    return next(one for one in (path, *path.parents) if one.exists())


# -- the process -------------------------------------------------------------------------------------------


def _of_limits(is_bookie: bool) -> Iterator[Finding]:
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < OPEN_FILES_MIN:
        yield warning(
            f"this process may open {most} files, and each connection is one",
            f"raise the hard limit to {OPEN_FILES_MIN} at least: LimitNOFILE= of its unit, or ulimit -Hn",
        )
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    if 0 <= allowed < used / OPEN_FILES_SHARE_MAX:
        yield error(
            f"{used} of {allowed} files that this process may open are open",
            "raise LimitNOFILE= of its unit (ulimit -n), or find the client that opens so many connections",
        )
    if not is_bookie:
        return
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if 0 <= size < ENTRY_LOG_BYTES:
        yield error(
            f"a file of this process may have {size // MIB} MiB, and an entry log has {ENTRY_LOG_BYTES // MIB}",
            "lift the limit: LimitFSIZE=infinity of its unit, or ulimit -f unlimited",
        )
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= addresses < ADDRESS_BYTES_MIN:
        yield error(
            f"this process may have {addresses // MIB} MiB of addresses, and its index alone maps "
            f"{INDEX_MAP_BYTES // MIB}",
            "lift the limit: LimitAS=infinity of its unit, or ulimit -v unlimited; bound memory with MemoryMax=",
        )


# -- the machine -------------------------------------------------------------------------------------------


def _of_memory(root: Path) -> Iterator[Finding]:
    known = {
        name: int(rest.split()[0]) * KIB
        for name, _, rest in (line.partition(":") for line in _read(root / "proc/meminfo").splitlines())
        if rest.strip()
    }
    total, left = known.get("MemTotal", 0), known.get("MemAvailable", 0)
    group = root / "sys/fs/cgroup"
    bound, used = _number(group / "memory.max"), _number(group / "memory.current")
    cache = dict(
        line.split() for line in _read(group / "memory.stat").splitlines() if len(line.split()) == 2
    ).get("inactive_file", "0")
    if bound:
        total, left = min(total, bound), min(left, bound - used + int(cache))
    if 0 < total < MEMORY_BYTES_MIN:
        yield warning(
            f"there is {total // MIB} MiB of memory, and a process with its caches takes {MEMORY_BYTES_MIN // MIB}",
            "give it more, or fewer processes to a machine",
        )
    elif total > 0 and left < MEMORY_LEFT_BYTES_MIN:
        yield warning(
            f"{left // MIB} of {total // MIB} MiB of memory are left",
            "see what takes it (top), before the kernel ends a process to get it back",
        )
    swap, unswapped = known.get("SwapTotal", 0), known.get("SwapFree", 0)
    if swap and unswapped < swap / 2:
        yield warning(
            f"the machine has swapped {(swap - unswapped) // MIB} MiB out: whoever needs them waits for a disk",
            "add memory or take processes away; then swapoff",
        )


def _of_kernel(root: Path) -> Iterator[Finding]:
    waiting = _number(root / "proc/sys/net/core/somaxconn")
    if 0 < waiting < WAITING_CONNECTIONS_MIN:
        yield warning(
            f"the kernel lets {waiting} new connections wait (net.core.somaxconn), and drops more in a rush",
            f"sysctl -w net.core.somaxconn={4 * WAITING_CONNECTIONS_MIN}",
        )
    found = _read(root / "proc/sys/fs/file-nr").split()
    if len(found) == 3 and int(found[0]) > int(found[2]) * OPEN_FILES_SHARE_MAX:
        yield error(
            f"{found[0]} of {found[2]} files of the whole machine are open (fs.file-max)",
            "find who opens them (lsof), or sysctl -w fs.file-max=…",
        )


def _read(file: Path) -> str:
    """ "" where the kernel has no such file."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _number(file: Path) -> int:
    """0 where there is none, and for "max"."""
    text = _read(file).strip()
    return int(text) if text.isdecimal() else 0
