"""The rebuilding over bookies in memory: interrupted, with a bookie missing, with too many missing."""

from __future__ import annotations

from random import Random

import pytest

from quire.ledger.ledgers import Ledgers
from quire.metadata import paths, topics
from quire.metadata.cluster import find_cluster
from quire.metadata.records import LedgerState
from quire.rescue.facts import CopyFacts
from quire.rescue.rescue import Report, Rescue, begin
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.testing.cluster import QUICK, Listener, MemoryCluster, expected, read_all, turns_until, write
from quire.testing.metadata import MemoryStore

URL = "zk://somewhere/quire"
PATH = paths.topic("t", "n", "x")


class World:
    """A cluster with an open ledger of `persistent://t/n/x`, and an empty metadata store."""

    def __init__(self, cluster: MemoryCluster, ledger_id: int, last: int) -> None:
        self.cluster = cluster
        self.ledger_id = ledger_id
        self.last = last
        self.store = MemoryStore()
        self.ledgers = Ledgers(self.store, cluster.directory, cluster.clock, Random(1), QUICK, quarantine_s=0)

    async def rescue(self, *, accept_loss: bool = False, is_dry: bool = False) -> Report:
        report = Report()
        await begin(self.store, URL, "c", 5)
        rescue = Rescue(
            self.store,
            self.cluster.directory,
            self.ledgers,
            self.cluster.clock,
            lambda *_: None,
            accept_loss=accept_loss,
            is_dry=is_dry,
        )
        await rescue.run(CopyFacts(), None, report)
        return report


async def begun(bookies: int = 3, *, changes: bool = False) -> World:
    """With `changes` its ensemble changed in the middle, and the bookie that was left is away for good."""
    cluster = MemoryCluster(bookies)
    writer = await cluster.ledgers.create("topic:persistent://t/n/x", listener := Listener(), generation=7)
    last = write(writer, blocks=5, count=3)
    await listener.until(last)
    if changes:
        gone = cluster.ensemble(writer)[0]
        gone.unreachable = True
        write(writer, blocks=1)
        await turns_until(lambda: len(writer.core.fragments) == 2)
        cluster.directory.leave(gone.bookie.uuid)
        last = write(writer, blocks=4)
        await listener.until(last)
    writer.abandon()
    return World(cluster, writer.ledger_id, last)


async def test_an_open_ledger_is_recovered_and_read_whole() -> None:
    world = await begun()
    dry = await world.rescue(is_dry=True)
    assert not dry.is_done and dry.messages == world.last + 1 and not await world.store.children(paths.TOPICS)
    assert not any(bookie.ledgers[world.ledger_id].is_fenced for bookie in world.cluster.bookies)
    report = await world.rescue()
    assert report.is_done and report.recovered == 1 and not report.lost
    (segment,) = (await topics.load(world.store, PATH)).segments
    assert (segment.ledger_id, segment.messages, segment.is_sealed) == (world.ledger_id, world.last + 1, True)
    assert (await topics.load(world.store, PATH)).record.generation == 7
    assert await read_all(world.ledgers, world.ledger_id) == expected(world.last)
    assert await world.ledgers.reserve(-1) > world.ledger_id, "its id is not given once more"
    await find_cluster(world.store, URL)
    with pytest.raises(ConfigurationError, match="nothing is rebuilt over it"):
        await world.rescue()


async def test_a_run_that_was_interrupted_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await begun()

    async def fail(*_: object) -> None:
        raise Unavailable("the metadata store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Rescue, "_write_bookies", fail)
        with pytest.raises(Unavailable):
            await world.rescue()
    with pytest.raises(ConfigurationError, match="is being rebuilt"):
        await find_cluster(world.store, URL)
    assert (await world.ledgers.info(world.ledger_id)).state is LedgerState.CLOSED
    report = await world.rescue()
    assert report.is_done
    assert len((await topics.load(world.store, PATH)).segments) == 1


async def test_a_changed_ensemble_is_known_though_one_of_its_bookies_is_missing() -> None:
    world = await begun(4, changes=True)
    report = await world.rescue()
    assert report.is_done and len(report.missing) == 1 and report.messages == world.last + 1
    assert len((await world.ledgers.info(world.ledger_id)).fragments) == 2
    assert await read_all(world.ledgers, world.ledger_id) == expected(world.last)
    assert report.missing[0].rpartition(":")[0] in await world.store.children(paths.BOOKIES), (
        "it may come back"
    )


async def test_nothing_is_closed_while_too_many_are_missing() -> None:
    world = await begun()
    for bookie in world.cluster.bookies[1:]:
        world.cluster.directory.leave(bookie.bookie.uuid)
    report = await world.rescue()
    assert not report.is_done and "as many as the ack quorum" in report.lost[0]
    assert not world.cluster.bookies[0].ledgers[world.ledger_id].is_fenced
    accepted = await world.rescue(accept_loss=True)
    assert accepted.is_done and any("cannot be recovered" in lost for lost in accepted.lost)
    assert accepted.topics == 0
