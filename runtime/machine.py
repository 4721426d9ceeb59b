"""Checks of the machine on which a process runs: disks, limits, memory, kernel and clock, seen from the process.

    directories   writable; file system; free space and inodes; latency of a sync
    limits        open files, file size, address space: those of this process
    memory        available memory of the machine and of the control group, and swap
    kernel        the accept queue, open files of the whole machine
    clock         an impossible year

Values are measured or read from the kernel, because a shell's limits differ from a service's. Calls may block on a
disk: run them on a thread. `root` is for tests: the kernel's files are in `root/proc`.
"""

from __future__ import annotations

import errno
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
"""A busy broker has a few thousand connections, and as many other files."""

OPEN_FILES_SHARE_MAX: Final = 0.8
ADDRESS_BYTES_MIN: Final = INDEX_MAP_BYTES + 16 * GIB
MEMORY_BYTES_MIN: Final = GIB
MEMORY_LEFT_BYTES_MIN: Final = 256 * MIB
FREE_SHARE_MIN: Final = 0.1
FREE_NAMES_MIN: Final = 1_000
WAITING_CONNECTIONS_MIN: Final = 1_024
"""Backlog that the sockets of Quire's processes request (`listen`)."""

SYNC_S_MAX: Final = 0.05
"""Maximum median latency of a write in seconds; each publish waits for one. A dedicated disk takes less than 10 ms."""

SYNCS: Final = 15
YEAR_MIN: Final = 2025
IN_MEMORY: Final = ("tmpfs", "ramfs")
ACROSS_A_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs")


@dataclass(frozen=True)
class Place:
    """Directory of a process's data. Below `needs_bytes` of free space, the process rejects new data."""

    what: str
    path: str
    needs_bytes: int = 0
    is_synced: bool = False
    """True if receipts of messages wait for a sync in this directory."""


@dataclass(frozen=True)
class Machine:
    """Requirements of a process on its machine. A bookie (`is_bookie`) also maps an index and writes large files."""

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
            yield error(
                f"the system clock is in the year {year}", "set it, and synchronize it by NTP (chrony)"
            )


# -- directories -------------------------------------------------------------------------------------------


def _of_place(place: Place, root: Path) -> Iterator[Finding]:
    path = _existing(Path(place.path).absolute())
    named = f"{place.what} {place.path}"
    if not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        yield error(
            f"{named} cannot be written, because {path} is not a directory that this user may write to",
            f"create the directory, owned by this user (uid {os.getuid()})",
        )
        return
    yield from _of_space(named, path, place.needs_bytes)
    kind = file_system(path, root)
    if kind in IN_MEMORY:
        yield warning(f"{named} is in memory ({kind}): its data do not survive a reboot", "move it to a disk")
    if place.is_synced and kind in ACROSS_A_NETWORK:
        yield warning(
            f"{named} is on {kind}, whose syncs wait for a network", "move it to a local disk of this machine"
        )
    if place.is_synced:
        yield from _of_sync(named, path)


def _of_space(named: str, path: Path, needs_bytes: int) -> Iterator[Finding]:
    disk = os.statvfs(path)
    free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    has = f"{named} has {free // MIB} of {size // MIB} MiB free"
    todo = (
        "free space (retention, `quire archive status`, other files on this disk; delete no files of Quire), or use "
        "a larger disk"
    )
    if free < needs_bytes:
        yield error(f"{has}; below {needs_bytes // MIB} MiB, new data are rejected", todo)
    elif free < size * FREE_SHARE_MIN:
        yield warning(has, todo)
    if disk.f_files and disk.f_favail < FREE_NAMES_MIN:
        yield error(
            f"the file system of {named} has only {disk.f_favail} free inodes",
            "delete unneeded small files on it, but no files of Quire",
        )


def _of_sync(named: str, path: Path) -> Iterator[Finding]:
    try:
        took_s = sync_s(path)
    except OSError as problem:
        yield error(
            f"a test write in {named} failed: {problem.strerror}",
            "check the disk, and the kernel log (dmesg)",
        )
        return
    if took_s > SYNC_S_MAX:
        yield warning(
            f"a sync in {named} takes {took_s * 1000:.0f} ms, and each publish waits for one",
            "use a dedicated disk for the journal (SSD or NVMe); `iostat -x 1` shows the load of this one",
        )


def sync_s(path: Path) -> float:
    """Return the median latency of `SYNCS` durable writes of a page to an unnamed file, in seconds.

    Raises `OSError`.
    """
    took, page = [], os.urandom(4 * KIB)
    with TemporaryFile(dir=path, buffering=0) as file:
        for number in range(SYNCS):
            begun = time.perf_counter()
            os.pwrite(file.fileno(), page, number * len(page))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begun)
    return sorted(took)[SYNCS // 2]


def file_system(path: Path, root: Path = Path("/")) -> str:
    """Return the type of the file system of `path`: of the deepest mount that contains it; "" if unknown."""
    best, kind = "", ""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        mounted = before.split()[4].replace("\\040", " ")
        if path.is_relative_to(mounted) and len(mounted) >= len(best):
            best, kind = mounted, after.split()[0]
    return kind


def _existing(path: Path) -> Path:
    """Return the directory, or its nearest existing parent, in which it would be created."""
    return next(one for one in (path, *path.parents) if os.path.exists(one))


# -- the process -------------------------------------------------------------------------------------------


def _of_limits(is_bookie: bool) -> Iterator[Finding]:
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < OPEN_FILES_MIN:
        yield warning(
            f"this process may open only {most} files, and each connection needs one",
            f"raise the hard limit to at least {OPEN_FILES_MIN}: LimitNOFILE= of its unit, or ulimit -Hn",
        )
    used = _open_files(allowed)
    if 0 <= allowed < used / OPEN_FILES_SHARE_MAX:
        yield error(
            f"{used} of the {allowed} files that this process may open are open",
            "raise LimitNOFILE= of its unit (ulimit -n), or find the client with that many connections",
        )
    if not is_bookie:
        return
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if 0 <= size < ENTRY_LOG_BYTES:
        yield error(
            f"files of this process are limited to {size // MIB} MiB, but an entry log has {ENTRY_LOG_BYTES // MIB}",
            "remove the limit: LimitFSIZE=infinity of its unit, or ulimit -f unlimited",
        )
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= addresses < ADDRESS_BYTES_MIN:
        yield error(
            (
                f"the address space limit of this process is {addresses // MIB} MiB, but its index alone maps "
                f"{INDEX_MAP_BYTES // MIB} MiB"
            ),
            "remove the limit: LimitAS=infinity of its unit, or ulimit -v unlimited; limit memory by MemoryMax=",
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
            f"the memory is {total // MIB} MiB, but a process with its caches needs {MEMORY_BYTES_MIN // MIB} MiB",
            "add memory, or run fewer processes on this machine",
        )
    elif total > 0 and left < MEMORY_LEFT_BYTES_MIN:
        yield warning(
            f"only {left // MIB} of {total // MIB} MiB of memory are available",
            "find the processes that use it (top), before the kernel's OOM killer ends one",
        )
    swap, unswapped = known.get("SwapTotal", 0), known.get("SwapFree", 0)
    if swap and unswapped < swap / 2:
        yield warning(
            f"{(swap - unswapped) // MIB} MiB are swapped out: processes that need them wait for a disk",
            "add memory, or run fewer processes; then turn swap off (swapoff)",
        )


def _of_kernel(root: Path) -> Iterator[Finding]:
    waiting = _number(root / "proc/sys/net/core/somaxconn")
    if 0 < waiting < WAITING_CONNECTIONS_MIN:
        yield warning(
            f"the accept queue is limited to {waiting} connections (net.core.somaxconn); more are dropped in a burst",
            f"sysctl -w net.core.somaxconn={4 * WAITING_CONNECTIONS_MIN}",
        )
    found = _read(root / "proc/sys/fs/file-nr").split()
    if len(found) == 3 and int(found[0]) > int(found[2]) * OPEN_FILES_SHARE_MAX:
        yield error(
            f"{found[0]} of {found[2]} files of the machine are open (fs.file-max)",
            "find the process that opens them (lsof), or sysctl -w fs.file-max=…",
        )


def _open_files(allowed: int) -> int:
    """Return how many files this process has open, `allowed` if not one more can be opened, or 0 if unknown."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError as problem:
        return allowed if problem.errno == errno.EMFILE else 0


def _read(file: Path) -> str:
    """Read a kernel file; return "" if it does not exist."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _number(file: Path) -> int:
    """Read a number; return 0 for a missing file, and for "max"."""
    text = _read(file).strip()
    return int(text) if text.isdecimal() else 0
