"""Ownership as stories in text: `scenarios/*.txt` has what happens at the margin and, indented, what the brokers do.

`QUIRE_REWRITE=1 pytest tests/serving/ownership/test_scenarios.py` writes what they do now into the files; read the
diff. Brokers are capital letters on one metadata store in memory; bundles are words.

    start A               a broker joins
    A looks up x          a client asks A for the bundle, and follows redirects
    A is asked for x      a client that comes to A without a lookup
    A needs x             an operator's request at A
    suspend A             its connection to the store is cut
    resume A              ... and back, the session lived
    expire A              ... and back, the session did not
    wait 5000             ms on every broker's clock
    load A x 500          what the bundle costs, from now on
    A looks               at the loads, and gives away what is too much
    release A x           by hand
    kill A                it takes no connections any more
    bury A                its session is over
    deafen A              its REST interface does not answer
    A cannot write        too few bookies answer it
    A can write           ... and enough of them again
    steal x               somebody deletes the owner's node
    stop A
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from quire.metadata import paths
from quire.runtime.clock import ManualClock
from quire.runtime.errors import QuireError, Unavailable
from quire.serving.ownership.cluster_ownership import ClusterOwnership
from quire.serving.ownership.port import Addresses, BundleLoad, Handover, Owner
from quire.testing.metadata import MemoryStore

SCENARIOS = sorted(Path(__file__).parent.joinpath("scenarios").glob("*.txt"))


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
async def test_scenario(file: Path) -> None:
    told = file.read_text()
    played = await play(told)
    if os.environ.get("QUIRE_REWRITE"):
        file.write_text(played)
    assert played == told


async def play(text: str) -> str:
    """The same events and comments, with what the brokers do."""
    stage = Stage()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            await stage.do(line.split())
            lines += [f"    {said}" for said in stage.said]
            stage.said.clear()
    await stage.end()
    return "\n".join(lines) + "\n"


class Host:
    """A broker that says what its ownership makes it do."""

    def __init__(self, name: str, stage: Stage) -> None:
        self.name = name
        self.stage = stage
        self.loads: dict[str, BundleLoad] = {}
        self.addresses = Addresses(f"pulsar://{name}", {}, f"http://{name}")

    def gained(self, bundle: str) -> None:
        self.stage.said.append(f"{self.name} owns {short(bundle)}")

    async def hand_over(self, bundle: str) -> Handover:
        self.stage.said.append(f"{self.name} closes {short(bundle)}")
        await asyncio.sleep(0)

        def disconnect_clients(url: str) -> None:
            where = f" to {url.removeprefix('pulsar://')}" if url else " to look it up"
            self.stage.said.append(f"{self.name} sends clients of {short(bundle)}{where}")

        return Handover(["a topic"], disconnect_clients)

    async def ask_to_take(self, new_owner: Owner, bundle: str, topics: Sequence[str]) -> None:
        what = f"load {topics[0]} of {short(bundle)}" if topics else f"take {short(bundle)}"
        self.stage.said.append(f"{self.name} asks {new_owner.broker_id} to {what}")
        if new_owner.broker_id in self.stage.deaf:
            raise Unavailable("it does not answer")
        await self.stage.brokers[new_owner.broker_id].take(bundle)

    def drop(self, bundles: Collection[str]) -> None:
        self.stage.said.append(f"{self.name} drops {' '.join(map(short, bundles)) or 'nothing'}")

    def bundle_loads(self) -> Mapping[str, BundleLoad]:
        return self.loads

    def divisible(self) -> Collection[str]:
        return ()

    async def split(self, bundle: str, at: str = "") -> tuple[str, str]:
        raise AssertionError("nothing is divisible here")


class Stage:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.clock = ManualClock()
        self.first_store = MemoryStore(session_timeout_ms=4_000)
        self.stores: dict[str, MemoryStore] = {}
        self.hosts: dict[str, Host] = {}
        self.brokers: dict[str, ClusterOwnership] = {}
        self.dead: set[str] = set()
        self.deaf: set[str] = set()
        self.waiting: list[asyncio.Task[None]] = []

    async def do(self, words: list[str]) -> None:
        try:
            match words:
                case ["start", name]:
                    await self.start(name)
                case ["stop", name]:
                    await self.brokers.pop(name).stop()
                case [name, "looks", "up", bundle]:
                    await self.begin(self.look_up(name, bundle))
                case ["kill", name]:
                    self.dead.add(name)
                case ["deafen", name]:
                    self.deaf.add(name)
                case ["bury", name]:
                    await self.stores[name].close()
                case [name, "looks"]:
                    await self.brokers[name].shedding.shed()
                case [name, "cannot" | "can" as which, "write"]:
                    why = "no bookie answers it" if which == "cannot" else ""
                    self.brokers[name].reports.set_cannot_write_source(lambda: why)
                case [name, "is", "asked", "for", bundle]:
                    await self.brokers[name].require(full(bundle), take=False)
                    self.said.append("served")
                case [name, "needs", bundle]:
                    await self.brokers[name].require(full(bundle), take=True)
                    self.said.append("served")
                case ["suspend" | "resume" | "expire" as what, name]:
                    getattr(self.stores[name], what)()
                case ["wait", ms]:
                    self.wait(int(ms))
                case ["load", name, bundle, load]:
                    self.hosts[name].loads[full(bundle)] = BundleLoad(float(load), 1)
                case ["release", name, bundle]:
                    await self.brokers[name].release(full(bundle), "by hand")
                case ["steal", bundle]:
                    await self.first_store.delete(paths.owner(*full(bundle).split("/")))
                case _:
                    raise AssertionError(f"no such event: {words}")
        except QuireError as error:
            self.said.append(f"{type(error).__name__}: {error}")
        await settle()

    async def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry it out, unless it waits for something to happen."""
        task = asyncio.ensure_future(work)
        for _ in range(2):
            await settle()
        if task.done():
            await task
        else:
            self.said.append("waits")
            self.waiting.append(task)

    async def start(self, name: str) -> None:
        store = self.stores[name] = self.first_store.join()
        broker = self.brokers[name] = ClusterOwnership(store, self.clock, name, answers=self.answers)
        host = self.hosts[name] = Host(name, self)
        await broker.start(host)

    async def answers(self, url: str) -> bool:
        return url.removeprefix("pulsar://") not in self.dead

    def wait(self, ms: int) -> None:
        """Time passes; the timers of leases in doubt ring."""
        self.clock.advance_ms(ms)
        for broker in self.brokers.values():
            if broker.registration.lease.state.name == "LOST":
                broker.registration.lease._timeout()

    async def look_up(self, name: str, bundle: str) -> None:
        owner = await self.brokers[name].owner_of(full(bundle))
        while not owner.owns:
            self.said.append(f"redirect to {owner.broker_id}")
            owner = await self.brokers[owner.broker_id].owner_of(full(bundle), take=True)
        self.said.append(f"connect to {owner.broker_id}")

    async def end(self) -> None:
        assert all(task.done() for task in self.waiting)
        for name in self.dead:
            await self.brokers.pop(name)._tasks.stop()
        for broker in self.brokers.values():
            await broker.stop()


def full(bundle: str) -> str:
    return f"public/default/{bundle}"


def short(bundle: str) -> str:
    return bundle.rpartition("/")[2]


async def settle() -> None:
    """Let watches and tasks do their work: nothing here waits for time."""
    for _ in range(200):
        await asyncio.sleep(0)


async def test_an_owner_that_leaves_while_it_is_probed_is_not_waited_for() -> None:
    """The news that it is gone comes before anybody waits for them."""
    stage = Stage()
    for words in ("start A", "start B", "A looks up x"):
        await stage.do(words.split())

    async def leaves(_: str) -> bool:
        await stage.brokers.pop("A").stop()
        await settle()
        return False

    stage.brokers["B"].selection.answers = leaves
    async with asyncio.timeout(2):
        await stage.look_up("B", "x")
    assert stage.said[-1] == "connect to B"
    await stage.end()
