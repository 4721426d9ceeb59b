"""The faults of the chaos test, who suffers them, and which may come together.

`Faults.deck` is a shuffled pack with each kind of fault once, so a run that is long enough has all of them. A kind
draws its victims and its times from a random number generator of its own: they are the same from the same seed,
whatever the machine does meanwhile. (When a process notices, and what it was just doing, is not.)

What may be asked of the cluster
--------------------------------
Copies: 3, acknowledged by 2 (Qw = 3, Qa = 2). The log may lose an acknowledged block only when Qa bookies that hold it
lose their disks before the first loss was repaired. So exactly one kind of event needs care, the loss of directories:
before one, all must be whole again, that is every record names three bookies that are up (`whole`), and never do two
come together. No other fault takes anything away for good: a killed bookie has its journal, a paused one and one
behind a cut have their memory, a full one refuses, one without one of its directories does not start (it gets it
back), and clocks are asked about nothing that decides what is kept. So those may come in any number and together; what
two of them stop at the same time (two bookies of three away: no quorum) must only go on when they are over.

Without bookies there is one store, which never loses what it has answered; it may be slow, refuse, hang or be away, and
whatever of that comes together is over at the end of the round.

Two faults of one round have different victims, because what the timeline says of a fault should be true: a process
that was killed cannot be continued by another fault. Cuts are of pairs and may be beside anything.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from random import Random

from .wired import CLIENT, Wired

SHORT, LONG = (0.3, 0.9), (1.2, 2.5)
"""Of a session: one that outlives the fault, and one that does not."""

_SAID = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_SAID), _SAID)
"""What a store says that has too much to do."""

FULL_S = 10.0
"""How long a disk is full if its bookie does not mind."""


@dataclass(frozen=True)
class Fault:
    """`act` begins it, waits, and ends it: afterwards the cluster owes everything again."""

    name: str
    victims: frozenset[str]
    act: Callable[[], Awaitable[None]]
    loses_disks: bool = False

    def may_come_with(self, other: Fault) -> bool:
        return not self.victims & other.victims and not (self.loses_disks and other.loses_disks)


Kind = Callable[[Random], Fault]


class Faults:
    """`tell` gets a line for the timeline; `whole` waits until nothing lacks a copy. `only` these kinds, if any."""

    def __init__(
        self,
        cluster: Wired,
        session_s: float,
        tell: Callable[[str], None],
        whole: Callable[[], Awaitable[None]],
        only: Collection[str] = (),
    ) -> None:
        self._cluster = cluster
        self._session_s = session_s
        self._tell = tell
        self._whole = whole
        self._kinds = self._of_brokers() | (self._of_bookies() if cluster.bookies else self._of_the_store())
        if only:
            self._kinds = {name: kind for name, kind in self._kinds.items() if name in only}

    def _of_brokers(self) -> dict[str, Kind]:
        cluster = self._cluster
        return {
            "broker killed": lambda rng: self._kill(rng.choice(cluster.brokers), rng),
            "zookeeper killed": lambda rng: self._kill("zookeeper", rng),
            "gateway killed": lambda rng: self._kill("gateway", rng),
            "broker paused": lambda rng: self._pause(rng.choice(cluster.brokers), rng),
            "zookeeper paused": lambda rng: self._pause("zookeeper", rng),
            "broker-zookeeper cut": lambda rng: self._cut(cluster.brokers, ["zookeeper"], rng),
            "broker-broker cut": lambda rng: self._cut(cluster.brokers[:1], cluster.brokers[1:], rng),
            "client-broker cut": lambda rng: self._cut([CLIENT], cluster.brokers, rng),
            "gateway-broker cut": lambda rng: self._cut(["gateway"], cluster.brokers, rng),
            "broker's clock": lambda rng: self._clock(rng.choice(cluster.brokers), rng),
        }

    def _of_bookies(self) -> dict[str, Kind]:
        cluster = self._cluster
        return {
            "bookie killed": lambda rng: self._kill(rng.choice(cluster.bookies), rng),
            "bookie paused": lambda rng: self._pause(rng.choice(cluster.bookies), rng),
            "broker-bookie cut": lambda rng: self._cut(cluster.brokers, cluster.bookies, rng),
            "bookie-zookeeper cut": lambda rng: self._cut(cluster.bookies, ["zookeeper"], rng),
            "bookie's clock": lambda rng: self._clock(rng.choice(cluster.bookies), rng),
            "disk full": lambda rng: self._full(rng.choice(cluster.bookies)),
            "disks lost": lambda rng: self._lose(rng.choice(cluster.bookies), same_address=False),
            "bookie replaced": lambda rng: self._lose(rng.choice(cluster.bookies), same_address=True),
            "one disk missing": lambda rng: self._miss(rng.choice(cluster.bookies), rng),
        }

    def _of_the_store(self) -> dict[str, Kind]:
        cluster, network = self._cluster, self._cluster.network
        kinds: dict[str, Kind] = {
            "broker-store cut": lambda rng: self._cut(cluster.brokers, ["store"], rng),
            "store hangs": lambda rng: self._pause("store", rng),
            "store slow": lambda rng: self._trouble(
                "is slow", partial(network.slow, delay_s=rng.uniform(0.1, 0.6)), rng
            ),
            "store refuses": lambda rng: self._trouble(
                "refuses", partial(network.turn_away, answer=BUSY), rng
            ),
        }
        if cluster.s3.keeps:
            kinds["store killed"] = lambda rng: self._kill("store", rng)
        return kinds

    @property
    def count(self) -> int:
        return len(self._kinds)

    def deck(self, rng: Random) -> list[Fault]:
        """One fault of each kind, in any order."""
        names = list(self._kinds)
        rng.shuffle(names)
        return [self._kinds[name](Random(rng.getrandbits(64))) for name in names]

    def _some_time(self, rng: Random) -> float:
        return rng.uniform(*rng.choice((SHORT, LONG))) * self._session_s

    # -- processes -------------------------------------------------------------------------------------

    def _kill(self, name: str, rng: Random) -> Fault:
        away_s = rng.uniform(0, 1.5 * self._session_s)

        async def act() -> None:
            self._tell(f"SIGKILL {name}")
            await self._cluster.kill(name)
            await asyncio.sleep(away_s)
            await self._cluster.up(name)
            self._tell(f"{name} is up again")

        return Fault(f"kill {name}", frozenset({name}), act)

    def _pause(self, name: str, rng: Random) -> Fault:
        away_s = self._some_time(rng)

        async def act() -> None:
            self._tell(f"SIGSTOP {name}")
            self._cluster.signal(name, signal.SIGSTOP)
            await asyncio.sleep(away_s)
            self._cluster.signal(name, signal.SIGCONT)
            self._tell(f"SIGCONT {name}")

        return Fault(f"pause {name}", frozenset({name}), act)

    # -- network ---------------------------------------------------------------------------------------

    def _cut(self, ones: list[str], others: list[str], rng: Random) -> Fault:
        one, other = rng.choice(ones), rng.choice(others)
        away_s = self._some_time(rng)
        network = self._cluster.network
        what, cut = rng.choice(
            (
                (f"{one} and {other} are cut off from each other", lambda: network.cut(one, other)),
                (f"{other} does not hear {one}", lambda: network.cut_one_way(one, other)),
                (f"{one} does not hear {other}", lambda: network.cut_one_way(other, one)),
                (f"{one} and {other} refuse each other", lambda: network.refuse(one, other)),
            )
        )

        async def act() -> None:
            self._tell(what)
            cut()
            await asyncio.sleep(away_s)
            network.mend(one, other)
            self._tell(f"{one} and {other} are connected again")

        return Fault(what, frozenset({f"{one}/{other}"}), act)

    def _trouble(self, what: str, begin: Callable[[str, str], None], rng: Random) -> Fault:
        """The store is so to all brokers. `begin`: to one of them."""
        brokers, network, away_s = self._cluster.brokers, self._cluster.network, self._some_time(rng)

        async def act() -> None:
            self._tell(f"the store {what}")
            for name in brokers:
                begin(name, "store")
            await asyncio.sleep(away_s)
            for name in brokers:
                network.mend(name, "store")
            self._tell("the store is well again")

        return Fault(f"store {what}", frozenset({"store", *(f"{name}/store" for name in brokers)}), act)

    # -- clocks and disks ------------------------------------------------------------------------------

    def _clock(self, name: str, rng: Random) -> Fault:
        off_s = rng.choice((-1, 1)) * rng.uniform(60, 1800)
        stays_s, then_s = self._some_time(rng), rng.choice((0.0, -off_s))
        clock = self._cluster.controls[name]

        async def act() -> None:
            self._tell(f"the clock of {name} jumps to {off_s:+.0f} s")
            clock.set_clock(off_s)
            await asyncio.sleep(stays_s)
            clock.set_clock(then_s)
            self._tell(f"the clock of {name} jumps to {then_s:+.0f} s")

        return Fault(f"clock of {name}", frozenset({f"clock of {name}"}), act)

    def _full(self, name: str) -> Fault:
        disk = self._cluster.controls[name]

        async def act() -> None:
            self._tell(f"the disks of {name} are full")
            disk.set_disk_full(True)
            try:
                await self._cluster.until_bookie(name, lambda record: record.read_only, FULL_S)
                self._tell(f"{name} is read-only")
            except TimeoutError:
                self._tell(f"{name} has still room of its own, in logs that it uses again")
            disk.set_disk_full(False)
            await self._cluster.until_bookie(name, lambda record: not record.read_only)
            self._tell(f"{name} takes blocks again")

        return Fault(f"disks of {name} full", frozenset({name}), act)

    def _lose(self, name: str, *, same_address: bool) -> Fault:
        async def act() -> None:
            await self._whole()
            self._tell(f"SIGKILL {name}, and its directories are lost")
            await self._cluster.kill(name)
            gone = self._cluster.wipe(name)
            if not same_address:
                await self._cluster.new_bookie(name)
            await self._cluster.up(name)
            await self._cluster.until_gone(gone)  # else the next to lose its disks finds all whole too early
            where = "the same address" if same_address else "another address"
            self._tell(f"{name} is up as a new bookie at {where}")

        return Fault(f"{name} loses its disks", frozenset({name}), act, loses_disks=True)

    def _miss(self, name: str, rng: Random) -> Fault:
        which = rng.choice(("journal", "entries"))
        other = {"journal": "entries", "entries": "journal"}[which]
        place = self._cluster.data / name / which

        async def act() -> None:
            self._tell(f"SIGKILL {name}, and its directory {which} is missing")
            await self._cluster.kill(name)
            aside = place.rename(place.with_name(f"{which}.aside"))
            said = await self._cluster.refused(name)
            assert f"/{which} has no identity.json" in said and f"/{other} belongs to bookie" in said, said
            place_is_new = list(place.iterdir()) if place.exists() else []
            assert {found.name for found in place_is_new} <= {"lock"}, place_is_new
            for found in place_is_new:
                found.unlink()
            if place.exists():
                place.rmdir()
            aside.rename(place)
            await self._cluster.up(name)
            self._tell(f"{name} refused to start without its {which}; with it, it is up again")

        return Fault(f"{name} misses its {which}", frozenset({name}), act)
