"""Effects of a plan's events on a cluster.

`Cluster` is the common base of the kinds of histories: machines with bookies, a network, a metadata server, and other
hosts (clients, brokers) that a history adds. An event's target is the number of a host: bookies come first, then the
others. The table lists the target, if it is not obvious, and the parameters of each event.

    kill_bookie, power_cut   bookie, seconds until it is restarted
    power_fails_after        bookie, number of disk operations until its power fails
    wipe, flip, spoil        the only bookie of the history that may lose data
    lose_disk, older_disk    the same bookie, seconds, disk (0: journal, 1: entry log)
    disk_error               bookie, which operation, how many times
    disk_full, slow_disk     bookie, seconds
    cut, reset               host, other host, seconds (cut: one direction)
    isolate, slow_link       host, seconds
    pause                    host, seconds for which its process is suspended
    kill_client              a host other than a bookie, seconds until it is restarted
    metadata_cut, expire     host, seconds
    metadata_loss            seconds, probability that a call fails
    clock_jump               host, ms
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from .loop import Process
from .machine import Machine
from .metadata import MetadataServer, SimulatedStore
from .network import Network
from .oracle import Oracle
from .plan import Event, Plan
from .world import SimulatedClock, World

DISK_ERRORS: Final = (
    ("durable", "journal"),
    ("write", "journal"),
    ("write", "entries"),
    ("sync", "entries"),
    ("read", "entries"),
    ("open", "entries"),
)


DISKS: Final = ("journal", "entries")


class Host(Protocol):
    """Client or broker, with the members that faults need."""

    host: str
    process: Process | None
    store: SimulatedStore | None
    clock: SimulatedClock

    def start_if_down(self) -> None: ...

    def kill(self, restart_s: float) -> None: ...


class Cluster:
    oracle_kind = Oracle

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan, self.world = plan, world
        self.rng = world.rng("faults")
        self.network = Network(world)
        self.network.latency_s = plan.latency_ms / 1000
        self.metadata = MetadataServer(world, plan.session_timeout_ms, plan.metadata_lag_ms)
        self.metadata.loss = plan.loss
        self.oracle = self.oracle_kind(world, self.metadata)
        self.machines = [
            Machine(world, self.network, self.metadata, self.oracle, number) for number in range(plan.bookies)
        ]
        self.others: list[Host] = []
        self._paused: dict[Process, None] = {}
        self._is_over = False

    def start(self) -> None:
        for machine in self.machines:
            machine.start()
        for event in self.plan.events:
            self.world.later(event.at_s, self.happen, event)

    def happen(self, event: Event) -> None:
        if self._is_over:
            return
        self.world.note(f"-- {event.kind} {event.target} {event.first:g} {event.second:g}")
        self.world.saw(f"event {event.kind}")
        getattr(self, f"_{event.kind}")(event)

    def heal(self) -> None:
        """End all faults."""
        self._is_over = True
        self.metadata.loss = 0.0
        for process in list(self._paused):
            self._go_on(process)
        for source, target in sorted(self.network.cuts):
            self.network.heal(source, target)
        self.network.slowness.clear()
        for machine in self.machines:
            machine.heal_disks()
            machine.node.power.restore()
            if machine.process is None:
                machine.wants_up = True
                machine.start_if_down()
            if machine.store is not None:
                machine.store.back()
        for host in self.others:
            host.start_if_down()
            if host.store is not None:
                host.store.back()

    # -- hosts -----------------------------------------------------------------------------------------
    def host(self, number: int) -> Any:
        everybody = self.everybody()
        return everybody[number % len(everybody)]

    def everybody(self) -> list[Any]:
        """Return all hosts with processes: the bookies' machines, then the others."""
        return [*self.machines, *self.others]

    def machine(self, event: Event) -> Machine:
        return self.machines[event.target % len(self.machines)]

    def _lossy(self) -> Machine | None:
        return self.machines[self.plan.lossy] if self.plan.lossy >= 0 else None

    def _for(self, seconds: float, begin: Callable[[], Any], end: Callable[[], Any]) -> None:
        begin()
        self.world.later(seconds, end)

    # -- bookies ---------------------------------------------------------------------------------------
    def _kill_bookie(self, event: Event) -> None:
        if self.machine(event).process is not None:
            self.machine(event).kill(event.first)

    def _power_cut(self, event: Event) -> None:
        if self.machine(event).process is not None:
            self.machine(event).power_cut(event.first)

    def _power_fails_after(self, event: Event) -> None:
        self.machine(event).power_fails_after(int(event.first))

    def _wipe(self, event: Event) -> None:
        machine = self._lossy()
        if machine is not None and machine.is_up and not self._anybody_lacks_copies():
            machine.wipe(event.first)

    def _lose_disk(self, event: Event) -> None:
        machine = self._lossy()
        if machine is not None and machine.is_up and not self._anybody_lacks_copies():
            machine.lose_disk(DISKS[int(event.second)], event.first)

    def _older_disk(self, event: Event) -> None:
        """Copy a disk of a bookie, and restore the copy later."""
        machine = self._lossy()
        if machine is None or not machine.is_up:
            return
        put_back = machine.copy_disk(DISKS[int(event.second)], 0.2)

        def unless_more_is_lost() -> None:
            if not (self._is_over or self._anybody_lacks_copies()):
                put_back()

        self.world.later(event.first, unless_more_is_lost)

    def _anybody_lacks_copies(self) -> bool:
        """Return whether an earlier loss of data may not have been repaired yet."""
        machine = self._lossy()
        assert machine is not None
        return machine.host in self.oracle.damaged_hosts or self.world.seen["bookie wiped"] > 0

    def _flip(self, event: Event) -> None:
        machine = self._rotting()
        if machine is not None:
            machine.flip()

    def _spoil(self, event: Event) -> None:
        machine = self._rotting()
        if machine is not None:
            machine.spoil()

    def _rotting(self) -> Machine | None:
        """Return the machine whose data may rot, if any.

        There is none if all bookies are needed for an ack quorum, because a topic would then wait for an operator.
        """
        has_other = len(self.machines) > self.plan.ack_quorum
        return self._lossy() if has_other and self.world.seen["bookie wiped"] == 0 else None

    def _disk_error(self, event: Event) -> None:
        operation, disk = DISK_ERRORS[int(event.first) % len(DISK_ERRORS)]
        self.machine(event).fail_disk(operation, disk, int(event.second))

    def _disk_full(self, event: Event) -> None:
        machine = self.machine(event)
        self._for(event.first, machine.fill_up, machine.heal_disks)

    def _slow_disk(self, event: Event) -> None:
        machine = self.machine(event)
        machine.disk_slowness = 100.0
        self.world.later(event.first, machine.heal_disks)

    # -- network and processes -------------------------------------------------------------------------
    def _cut(self, event: Event) -> None:
        one, other = self.host(event.target).host, self.host(int(event.first)).host
        self._for(event.second, lambda: self.network.cut(one, other), lambda: self.network.heal(one, other))

    def _isolate(self, event: Event) -> None:
        one = self.host(event.target).host
        everybody = [each.host for each in self.everybody() if each.host != one]
        pairs = [pair for other in everybody for pair in ((one, other), (other, one))]
        for pair in pairs:
            self.network.cut(*pair)
        self.world.later(event.first, self._join, pairs)
        self._metadata_cut(event)

    def _join(self, pairs: Iterable[tuple[str, str]]) -> None:
        for pair in pairs:
            self.network.heal(*pair)

    def _reset(self, event: Event) -> None:
        self.network.reset(self.host(event.target).host, self.host(int(event.first)).host)

    def _slow_link(self, event: Event) -> None:
        host = self.host(event.target).host
        self._for(event.first, lambda: self.network.slow(host, 100.0), lambda: self.network.slow(host, 1.0))

    def _pause(self, event: Event) -> None:
        host = self.host(event.target)
        process = host.process
        if process is None or process.is_halted:
            return
        process.pause()
        self._paused[process] = None
        if host.store is not None:
            host.store.away()
        self.world.later(event.first, self._go_on, process)

    def _go_on(self, process: Process) -> None:
        if process in self._paused:
            del self._paused[process]
            process.resume()
            for host in self.everybody():
                if host.process is process and host.store is not None:
                    host.store.back()

    def _kill_client(self, event: Event) -> None:
        if self.others:
            host = self.others[event.target % len(self.others)]
            if host.process is not None:
                host.kill(event.first)

    # -- metadata and clocks ---------------------------------------------------------------------------
    def _metadata_cut(self, event: Event) -> None:
        store = self.host(event.target).store
        if store is not None:
            self._for(event.first, store.away, store.back)

    def _expire(self, event: Event) -> None:
        store = self.host(event.target).store
        if store is not None:
            self.world.saw("session expired early")
            store.expire()

    def _metadata_loss(self, event: Event) -> None:
        before = self.plan.loss
        self.metadata.loss = event.second
        self.world.later(
            event.first, lambda: setattr(self.metadata, "loss", 0.0 if self._is_over else before)
        )

    def _clock_jump(self, event: Event) -> None:
        host = self.host(event.target)
        if hasattr(host, "clock"):
            host.clock.skew_ms += int(event.first)
