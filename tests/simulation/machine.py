"""A machine with a bookie: two simulated disks, a power switch, and a process that can be killed and started again.

    start           the whole bookie process, as `quire bookie` puts it together: storage, server, registration
    kill            the process dies; its disks keep what was written, synced or not
    power_cut       the machine dies: of what was not synced some is lost, some torn, some kept
    wipe            the disks are replaced by empty ones: another bookie comes up at the old address
    lose_disk       one of the two is: it refuses to start, and a person wipes it
    copy_disk       an older copy of one of the two is put back later

`WatchedStorage` stands between the server and the storage: it tells the oracle what goes in and out.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any, Final, TypeVar

from quire.bookie.disks import BookieDisks
from quire.bookie.journal_core import BadSegment, decode_segment_header, scan_segment
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
"""How often a supervisor looks after its process."""


def adverse_settings(rng: Random) -> BookieSettings:
    """Limits so small that short histories roll segments, memtables and logs."""
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
    """A `LoopWorker` whose works take time, in order; and that notices when the power fails under one."""

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
        """An operator drains it."""
        self._lives = 0
        self._was_down = False

    @property
    def is_up(self) -> bool:
        return self.storage is not None

    # -- its life --------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the process; a supervisor starts it again when it ends by itself."""
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
        disks = BookieDisks(
            self.node.journal, self.node.entries, self.node.home, lambda name: DiskWorker(self)
        )
        storage = Storage(self.settings, disks, clock=clock, rng=self.rng)
        try:
            await storage.start()
            self.oracle.started(self.host, storage)
            watched = WatchedStorage(storage, self.oracle, self.world)
            server = BookieServer(watched, self.host, PORT)  # type: ignore[arg-type]
            await server.start()
            reports = Reports(store, clock)
            storage.health.on_damage(lambda damage: self._damage_met(storage, damage))
            storage.health.on_damage(lambda damage: reports.met(str(storage.bookie_id), *damage))
            reports.start()
            registration = Registration(store, storage, server.address, "")
            await registration.start()
        except QuireError as error:
            self.world.note(f"{process} cannot start: {error}")
            if isinstance(error, ConfigurationError) and "mount the right disk" in str(error):
                self.world.saw("half a bookie refused")
                self._begin_anew(LOOK_S)
            elif isinstance(error, ConfigurationError) and self.is_leaving and "it was retired" in str(error):
                self.is_leaving = False  # an operator gives it empty directories
                self._begin_anew(LOOK_S)
            elif not self.look_at_power():
                self.kill(restart_s=LOOK_S)
            return
        self.storage = storage
        self.world.note(f"{process} is up as {storage.bookie_id}")
        self.world.later(LOOK_S, self._look_after, process)

    def _damage_met(self, storage: Storage, damage: Damage) -> None:
        if not self.node.power.is_down:
            self.oracle.damage_met(storage.bookie_id, *damage)

    def _look_after(self, process: Process) -> None:
        """What a supervisor does: a bookie that is broken for good is started again."""
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
        """The power failed in the middle of something: the machine goes down with it."""
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
        """One of its two disks is replaced by an empty one."""
        self._end()
        self.node.kill()
        setattr(self.node, name, SimulatedDisk(self.rng.getrandbits(32), name, power=self.node.power))
        if name == "entries":
            self.node.home = MemoryHome()
        self.oracle.damaged(self.host)
        self.world.note(f"{self.host} lost its disk for {name}")
        self.world.saw("bookie wiped")  # a person can do nothing else with the other half
        self.world.later(restart_s, self.start_if_down)

    def copy_disk(self, name: str, restart_s: float) -> Callable[[], None]:
        """Copy one of its disks while it is down for a moment. Returns what puts the copy back."""
        self.kill(restart_s)
        node, power = self.node, self.node.power
        older, home = deepcopy((getattr(node, name), node.home), {id(power): power})

        def put_back() -> None:
            if node is not self.node:
                return  # it began anew since
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

    # -- its disks -------------------------------------------------------------------------------------
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
        """No room beyond what is in use now."""
        for disk in (self.node.journal, self.node.entries):
            disk.capacity_bytes = sum(disk.space()) and disk.space().total_bytes - disk.space().free_bytes

    def flip(self) -> None:
        """Rot a bit: in the entry log, or in a journal group that is not the last one (that looks like a torn tail)."""
        place = self._place_in_journal(2) if self.rng.random() < 0.6 else self._place_in_log()
        if place is not None:
            disk, name, offset = place
            disk.flip(name, offset, self.rng.randrange(8))
            self.oracle.damaged(self.host)
            self.world.note(f"{self.host}: a bit of {disk.root}/{name} at {offset} flips")
            self.world.saw("bit flipped")

    def spoil(self) -> None:
        """Let a page of the entry log or of the journal be unreadable until it is written again."""
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
        """In a group that is none of the last `spared` ones."""
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
    """What goes into a storage and comes out of it, told to the oracle."""

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
        """What is to be told of the answer."""
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
