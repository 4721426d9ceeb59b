"""Faults of the chaos test, their victims, and the rules for combining them.

`Faults.deck` contains each kind of fault once, in random order, so a run that is long enough has all of them. Each kind
draws its victims and times from its own random number generator. So they depend only on the seed, not on the machine.
(The reactions of processes do depend on it.)

Rules for combining faults
--------------------------
Ledgers have a write quorum of 3 and an ack quorum of 2. An acknowledged block may be lost only if both bookies of an
ack quorum lose their disks before the first loss was repaired. So only the loss of directories needs care. Before such
a loss, every ledger must have all its copies on three bookies that are up (`whole`), and a round has at most one loss.

No other fault loses data permanently. A killed bookie keeps its journal. A paused bookie, or one behind a network cut,
keeps its memory. A bookie with a full disk refuses blocks. A bookie that lacks one of its directories does not start,
and later gets the directory back. Clocks decide nothing about data that must be kept. So these faults may be combined
in any number. Work that two of them stop together (for lack of a quorum) must only resume when they are over.

Without bookies there is one object store, which never loses an acknowledged object. It may be slow, refuse, hang or be
unreachable; all faults of a round are over at its end.

Operators' mistakes lose no data either (`mistakes`): commands verify what they delete, a drained bookie leaves only
when other bookies have its copies, and data written below a missing mount does not count as stored.

Two faults of one round have different victims, so that the timeline stays true: for example, a fault must not resume a
process that another fault has killed. Network cuts affect pairs of processes, and may be combined with any fault.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

from .fault import Fault, Kind, some_time
from .mistakes import Mistakes
from .wired import CLIENT, Wired


def _answer(status: bytes, code: bytes, message: bytes) -> bytes:
    """Return an error response of S3."""
    said = b"<Error><Code>%b</Code><Message>%b</Message></Error>" % (code, message)
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(said), said)


BUSY = _answer(b"503 Slow Down", b"SlowDown", b"Please reduce your request rate.")
"""Response of an overloaded store."""

DENIED = _answer(b"403 Forbidden", b"AccessDenied", b"Access Denied")
"""Response of a store after an operator has revoked a permission."""

NO_BUCKET = _answer(b"404 Not Found", b"NoSuchBucket", b"The specified bucket does not exist")
"""Response of a store whose bucket was deleted or renamed, or of a wrong endpoint."""

FULL_S = 10.0
"""Time for which a disk stays full if the bookie does not notice it."""


class Faults:
    """Kinds of faults for one cluster.

    `tell` receives the lines of the timeline, `whole` waits until no ledger lacks a copy, and `is_wanted` selects kinds
    by their names.
    """

    def __init__(
        self,
        cluster: Wired,
        session_s: float,
        tell: Callable[[str], None],
        whole: Callable[[], Awaitable[None]],
        is_wanted: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._cluster = cluster
        self._session_s = session_s
        self._tell = tell
        self._whole = whole
        self._kinds = self._of_brokers() | (self._of_bookies() if cluster.bookies else self._of_the_store())
        self._kinds |= Mistakes(cluster, session_s, tell).kinds()
        self._kinds = {name: kind for name, kind in self._kinds.items() if is_wanted(name)}

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
        if cluster.s3 is None:
            return {}
        kinds: dict[str, Kind] = {
            "broker-store cut": lambda rng: self._cut(cluster.brokers, ["store"], rng),
            "store hangs": lambda rng: self._pause("store", rng),
            "store slow": lambda rng: self._trouble(
                "is slow", partial(network.slow, delay_s=rng.uniform(0.1, 0.6)), rng
            ),
            "store refuses": lambda rng: self._trouble(
                "refuses", partial(network.turn_away, answer=BUSY), rng
            ),
            "store denies": lambda rng: self._trouble(
                "denies access", partial(network.turn_away, answer=DENIED), rng
            ),
            "no bucket": lambda rng: self._trouble(
                "has no such bucket", partial(network.turn_away, answer=NO_BUCKET), rng
            ),
        }
        if cluster.s3.keeps:
            kinds["store killed"] = lambda rng: self._kill("store", rng)
        return kinds

    @property
    def count(self) -> int:
        return len(self._kinds)

    def deck(self, rng: Random) -> list[Fault]:
        """Return one fault of each kind, in random order."""
        names = list(self._kinds)
        rng.shuffle(names)
        return [self._kinds[name](Random(rng.getrandbits(64))) for name in names]

    def _some_time(self, rng: Random) -> float:
        return some_time(rng, self._session_s)

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
        """Return a fault of the store that affects all brokers. `begin` begins it for one broker and the store."""
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
            await self._cluster.until_gone(gone)  # else `whole` would still count the old bookie as up
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
