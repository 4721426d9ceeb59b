"""Bookie's machine: two simulated disks, a power supply, and a process that can be killed and restarted.

    start           start the whole bookie process, composed as by `quire bookie`: storage, server, registration
    kill            kill the process; the disks keep all writes, synced or not
    power_cut       cut the power; of the unsynced writes some are lost, some torn, some kept
    wipe            replace both disks by empty ones, so that another bookie starts at the old address
    lose_disk       replace one disk by an empty one; the bookie refuses to start, and an operator wipes it
    copy_disk       copy one disk, to restore the copy later

`WatchedStorage` is between the server and the storage, and reports requests and responses to the oracle.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any, Final, TypeVar

from quire.bookie.disks import BookieDisks
from quire.bookie.identity import peek
from quire.bookie.journal_core import BadSegment, decode_segment_header, scan_segment
from quire.bookie.membership import enter_cluster
from quire.bookie.registration import Registration
from quire.bookie.scrub import Damage
from quire.bookie.server import BookieServer
from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.metadata.underreplicated import Reports
from quire.runtime.disk import PAGE_BYTES, Done
from quire.runtime.errors import ConfigurationError, QuireError
from quire.runtime.limits import KIB
from quire.testing.disk import LoopWorker, SimulatedDisk
from quire.testing.node import SMALL_SETTINGS, MemoryHome, SimulatedNode
from quire.wire.bookie import (
    AddDone,
    AddRequest,
    DeleteRequest,
    ReadRequest,
    Request,
    Status,
    WriteLacRequest,
)

from .loop import Process
from .metadata import MetadataServer, SimulatedStore
from .network import Network
from .oracle import Oracle
from .world import SimulatedClock, World

R = TypeVar("R")

PORT: Final = 3181
SYNC_S: Final = 0.0006
LOOK_S: Final = 1.0
"""Interval at which a supervisor checks its process."""


def adverse_settings(rng: Random) -> BookieSettings:
    """Return settings with limits so small that short histories roll segments, memtables and entry logs."""
    memtable_bytes = rng.choice((4, 16, 64)) * KIB
    return replace(
        SMALL_SETTINGS,
        memtable_bytes=memtable_bytes,
        journal_segment_bytes=rng.choice((80, 128)) * KIB,
        journal_group_bytes_max=rng.choice((32, 64)) * KIB,
        entry_log_bytes=rng.choice((128, 256)) * KIB,
        flush_interval_ms=rng.choice((300, 2_000, 20_000)),
        read_cache_bytes=rng.choice((1, 512, 512, 512)) * KIB,
    )


class DiskWorker(LoopWorker):
    """`LoopWorker` whose pieces of work take time, and which detects a power failure during one of them."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._free_at = 0.0

    def submit(self, work: Callable[[], Any], done: Done[Any]) -> None:
        machine = self._machine
        loop = machine.world.loop
        took_s = SYNC_S * (0.3 + machine.rng.expovariate(1.0)) * machine.disk_slowness
        self._free_at = max(self._free_at, loop.time()) + took_s
        loop.call_at(self._free_at, self._step, work, done)

    def _step(self, work: Callable[[], Any], done: Done[Any]) -> None:
        super()._step(work, done)
        self._machine.look_at_power()


class Machine:
    def __init__(
        self, world: World, network: Network, metadata: MetadataServer, oracle: Oracle, number: int
    ) -> None:
        self.world, self.network, self.metadata, self.oracle = world, network, metadata, oracle
        self.number = number
        self.host = f"bookie-{number}"
        self.rng = world.rng(self.host)
        self.settings = adverse_settings(self.rng)
        self.node = SimulatedNode(self.rng.getrandbits(32))
        self.disk_slowness = 1.0
        self.process: Process | None = None
        self.storage: Storage | None = None
        self.store: SimulatedStore | None = None
        self.wants_up = True
        self.is_leaving = False
        """True while an operator drains the bookie."""
        self.cluster = ""
        """Id of the cluster that the bookie joins; empty for a bookie that does not look up a cluster."""
        self.why_down = ""
        """Error with which the bookie's last start was refused."""
        self._lives = 0
        self._was_down = False

    @property
    def is_up(self) -> bool:
        return self.storage is not None

    # -- life cycle ------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the process. A supervisor restarts it if it exits by itself."""
        assert self.process is None
        self._lives += 1
        self.wants_up = True
        self.process = Process(self.world.loop, f"{self.host}/{self._lives}", self.host)
        self.store = SimulatedStore(self.metadata, self.process)
        self.process.start(self._run(self.process, self.store))

    async def _run(self, process: Process, store: SimulatedStore) -> None:
        clock = SimulatedClock(
            self.world.loop, drift=self.rng.uniform(-0.01, 0.01), skew_ms=self.rng.randrange(-500, 500)
        )
        try:
            if self.cluster:
                await self._enter_cluster(store, clock)
            storage = Storage(self.settings, self._disks(), clock=clock, rng=self.rng)
            await storage.start()
            self.oracle.started(self.host, storage)
            watched = WatchedStorage(storage, self.oracle, self.world)
            server = BookieServer(watched, self.host, PORT)  # type: ignore[arg-type]
            await server.start()
            reports = Reports(store, clock)
            storage.health.on_damage(lambda damage: self._damage_met(storage, damage))
            storage.health.on_damage(lambda damage: reports.met(str(storage.bookie_id), *damage))
            reports.start()
            registration = Registration(store, storage, server.address, "", cluster=self.cluster)
            await registration.start()
        except QuireError as error:
            self.world.note(f"{process} cannot start: {error}")
            self.why_down = str(error)
            if isinstance(error, ConfigurationError) and "mount the right disk" in str(error):
                self.world.saw("half a bookie refused")
                self._begin_anew(LOOK_S)
            elif (
                isinstance(error, ConfigurationError)
                and self.is_leaving
                and "was retired while" in str(error)
            ):
                self.is_leaving = False  # an operator gives it empty directories
                self._begin_anew(LOOK_S)
            elif not self.look_at_power():
                self.kill(restart_s=LOOK_S)
            return
        self.storage, self.why_down = storage, ""
        self.world.note(f"{process} is up as {storage.bookie_id}")
        self.world.later(LOOK_S, self._look_after, process)

    def _disks(self) -> BookieDisks:
        node = self.node
        return BookieDisks(node.journal, node.entries, node.home, lambda name: DiskWorker(self))

    async def _enter_cluster(self, store: SimulatedStore, clock: SimulatedClock) -> None:
        """Join the cluster, as `quire bookie` does. Raises `ConfigurationError`, and the metadata store's errors."""
        before = peek(self.node.journal, self.node.entries)
        await enter_cluster(store, "the store", self._disks(), clock, new_cluster=False, rng=self.rng)
        now = peek(self.node.journal, self.node.entries)
        if before is not None and now is not None and now.uuid != before.uuid:
            self.node.home = MemoryHome()  # the index is in one of the emptied directories
            self.is_leaving = False
            self.oracle.retired(self.host)

    def _damage_met(self, storage: Storage, damage: Damage) -> None:
        if not self.node.power.is_down:
            self.oracle.damage_met(storage.bookie_id, *damage)

    def _look_after(self, process: Process) -> None:
        """Restart a bookie whose storage has failed permanently, as a supervisor does."""
        if process is self.process and self.storage is not None:
            if self.storage.health.failure:
                self.world.note(f"{process} is broken: {self.storage.health.failure}")
                self.world.saw("bookie broken")
                self.kill(restart_s=LOOK_S)
            else:
                self.world.later(LOOK_S, self._look_after, process)

    def _end(self, *, silently: bool = False) -> None:
        process, self.process, self.storage = self.process, None, None
        if process is not None:
            self.world.hidden_kept.append(process)
            process.kill()
            self.network.died(process, silently=silently)

    def kill(self, restart_s: float) -> None:
        self._end()
        self.node.kill()
        self.world.note(f"{self.host} was killed")
        self.world.later(restart_s, self.start_if_down)

    def power_cut(self, restart_s: float) -> None:
        self._end(silently=self.rng.random() < 0.5)
        self.node.crash()
        self.world.note(f"{self.host} lost power")
        self.world.saw("power cut")
        self.world.later(restart_s, self.start_if_down)

    def power_fails_after(self, operations: int) -> None:
        if self.process is not None:
            self.node.power.fail_after(operations)

    def look_at_power(self) -> bool:
        """Return whether the power has failed during an operation; if so, stop the machine."""
        if self.node.power.is_down and not self._was_down:
            self._was_down = True
            self.world.later(0.0, self._power_failed)
        return self.node.power.is_down

    def _power_failed(self) -> None:
        if self._was_down:
            self._was_down = False
            self.power_cut(self.rng.choice((0.2, 2.0, 8.0)))

    def wipe(self, restart_s: float) -> None:
        self.world.note(f"{self.host} was wiped")
        self.world.saw("bookie wiped")
        self._begin_anew(restart_s)

    def lose_disk(self, name: str, restart_s: float) -> None:
        """Replace one of the two disks by an empty one."""
        self._end()
        self.node.kill()
        setattr(self.node, name, SimulatedDisk(self.rng.getrandbits(32), name, power=self.node.power))
        if name == "entries":
            self.node.home = MemoryHome()
        self.oracle.damaged(self.host)
        self.world.note(f"{self.host} lost its disk for {name}")
        self.world.saw("bookie wiped")  # an operator can only wipe the other disk, too
        self.world.later(restart_s, self.start_if_down)

    def copy_disk(self, name: str, restart_s: float) -> Callable[[], None]:
        """Stop the bookie briefly, and copy one of its disks. Return a function that restores the copy."""
        self.kill(restart_s)
        node, power = self.node, self.node.power
        older, home = deepcopy((getattr(node, name), node.home), {id(power): power})

        def put_back() -> None:
            if node is not self.node:
                return  # the bookie was wiped since
            self._end()
            node.kill()
            setattr(node, name, older)
            if name == "entries":
                node.home = home
            self.oracle.damaged(self.host)
            self.world.note(f"{self.host} has an older copy of its disk for {name}")
            self.world.saw("older disk put back")
            self.world.later(restart_s, self.start_if_down)

        return put_back

    def _begin_anew(self, restart_s: float) -> None:
        self._end()
        self.oracle.wiped(self.host)
        self.node = SimulatedNode(self.rng.getrandbits(32))
        self.world.later(restart_s, self.start_if_down)

    def start_if_down(self) -> None:
        if self.process is None and self.wants_up:
            self.start()

    # -- disks -----------------------------------------------------------------------------------------
    def fail_disk(self, operation: str, name: str, times: int) -> None:
        error = errno.ENOSPC if operation == "allocate" else errno.EIO
        disk = self.node.journal if name == "journal" else self.node.entries
        self.oracle.disk_failed(self.host)
        disk.fail(operation, error, times=times)

    def heal_disks(self) -> None:
        for disk in (self.node.journal, self.node.entries):
            disk.heal()
            disk.capacity_bytes = 1 << 40
        self.disk_slowness = 1.0

    def fill_up(self) -> None:
        """Fill the disks: limit their capacity to the space in use."""
        for disk in (self.node.journal, self.node.entries):
            disk.capacity_bytes = sum(disk.space()) and disk.space().total_bytes - disk.space().free_bytes

    def flip(self) -> None:
        """Flip a bit in the entry log, or in a journal group except the last ones, which could be torn by a crash."""
        place = self._place_in_journal(2) if self.rng.random() < 0.6 else self._place_in_log()
        if place is not None:
            disk, name, offset = place
            disk.flip(name, offset, self.rng.randrange(8))
            self.oracle.damaged(self.host)
            self.world.note(f"{self.host}: a bit of {disk.root}/{name} at {offset} flips")
            self.world.saw("bit flipped")

    def spoil(self) -> None:
        """Make a page of the entry log or of the journal unreadable until it is written again."""
        place = self._place_in_journal(0) if self.rng.random() < 0.3 else self._place_in_log()
        if place is not None:
            disk, name, offset = place
            disk.spoil(name, offset)
            self.oracle.damaged(self.host)
            self.world.note(f"{self.host}: {disk.root}/{name} cannot be read at {offset} any more")
            self.world.saw("page spoiled")

    def _place_in_log(self) -> Any:
        disk = self.node.entries
        names = [f"logs/{name}" for name in disk.names("logs")]
        names = [name for name in names if disk.content(name).rstrip(b"\0")]
        if not names:
            return None
        name = self.rng.choice(names)
        return disk, name, self.rng.randrange(len(disk.content(name).rstrip(b"\0")))

    def _place_in_journal(self, spared: int) -> Any:
        """Return a random place in a journal group that is not among the last `spared` ones."""
        disk = self.node.journal
        groups = []
        for name in disk.names():
            if name.startswith("segment-"):
                image = disk.content(name)
                header = decode_segment_header(image[:PAGE_BYTES])
                if header is not None and not isinstance(header, BadSegment):
                    groups += [
                        (found.number, name, found) for found in scan_segment(memoryview(image), header)
                    ]
        groups.sort()
        if len(groups) <= spared:
            return None
        _, name, found = self.rng.choice(groups[: len(groups) - spared])
        return disk, name, found.offset + self.rng.randrange(found.length)


class WatchedStorage:
    """Storage whose requests and responses are reported to the oracle."""

    def __init__(self, storage: Storage, oracle: Oracle, world: World) -> None:
        self._storage, self._oracle, self._world = storage, oracle, world
        self.on_flushed = storage.on_flushed

    @property
    def bytes_unflushed(self) -> int:
        return self._storage.bytes_unflushed

    def add(self, request: AddRequest, done: AddDone) -> None:
        judge = self._oracle.add_arrives(self._storage.bookie_id, request)

        def answered(statuses: Sequence[Status]) -> None:
            judge(statuses)
            done(statuses)

        self._storage.add(replace(request, is_sealed_here=False), answered)  # it came over a network

    async def ask(self, request: Request[R]) -> R:
        judge = self._arrives(request)
        response = await self._storage.ask(request)
        judge(response)
        return response

    def _arrives(self, request: object) -> Callable[[Any], None]:
        """Report a request to the oracle, and return the function that reports its response."""
        bookie, oracle = self._storage.bookie_id, self._oracle
        match request:
            case ReadRequest():
                return oracle.read_arrives(bookie, request)
            case WriteLacRequest():
                return lambda response: oracle.lac_answered(self._storage.bookie_id, request, response)
            case DeleteRequest():
                oracle.delete_arrives(bookie, request)
                return lambda response: oracle.delete_answered(self._storage.bookie_id, request, response)
        return lambda response: None
