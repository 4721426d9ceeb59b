"""`/quire/v1/bookies`: who is there, a drain to its end under an open topic, orphans; and the command."""

from __future__ import annotations

import asyncio
from random import Random

import pulsar
import pytest
from msgspec.structs import replace

from quire.ledger.repair import Repair
from quire.ledger.settings import RepairSettings
from quire.metadata import paths
from quire.metadata.records import BookieIntent, DamageRecord, LedgerRecord, UnderreplicatedRecord, encode
from quire.metadata.store import MetadataStore
from quire.metadata.underreplicated import report
from quire.runtime.clock import SystemClock
from quire.runtime.errors import WrongCluster
from quire.serving.broker import Broker
from quire.testing.cluster import MemoryCluster
from quire.wire.bookie import Status
from tests.cli.running import quire
from tests.serving.admin.conftest import Rest
from tests.serving.admin.test_quire import NAME, publish
from tests.serving.conftest import BrokerHouse, in_thread, look_after_topics

BOOKIES = "/quire/v1/bookies"


@pytest.fixture
async def store(house: BrokerHouse) -> MetadataStore:
    """The store of a cluster whose bookies are known, with an address each."""
    cluster = house.cluster
    for each in cluster.bookies:
        record = replace(each.record(), address=f"host-{each.bookie.uuid[-1]}:3181", total_bytes=1 << 40)
        cluster.directory.join(record, each)
        await cluster.store.create(paths.bookie(record.uuid), encode(record))
    return cluster.store


async def test_bookies_are_listed_and_found_by_uuid_its_beginning_and_address(
    rest: Rest, house: BrokerHouse, store: MetadataStore
) -> None:
    damage = DamageRecord(bookie="bookie-1:1", ledger_id=7, entry=3, what="a flipped bit")
    await report(store, UnderreplicatedRecord(ledger_id=7, damage=(damage,)))
    house.cluster.directory.leave("bookie-2")
    rows = (await rest.get(BOOKIES)).body
    assert [(row["uuid"], row["state"], row["damagedCopies"]) for row in rows] == [
        ("bookie-0", "up", 0),
        ("bookie-1", "up", 1),
        ("bookie-2", "absent", 0),
    ]
    for name in ("bookie-1", "host-1:3181"):
        found = (await rest.get(f"{BOOKIES}/{name}")).body
        assert found["uuid"] == "bookie-1"
        assert found["damage"] == [{"ledger": 7, "entry": 3, "what": "a flipped bit", "foundMs": 0}]
    listed = await in_thread(lambda: quire("bookies", "list", "--admin-url", rest.url))
    assert "damaged copies" in listed.out.splitlines()[0], "a copy is not a ledger that lost something"
    assert (await rest.get(f"{BOOKIES}/nobody")).status == 404
    assert (await rest.get(f"{BOOKIES}/bookie")).status == 400, "three begin like that"


async def test_a_drain_that_would_leave_too_few_and_a_recovery_of_a_live_bookie_are_refused(
    rest: Rest, house: BrokerHouse, store: MetadataStore
) -> None:
    house.cluster.directory.leave("bookie-2")
    refused = await rest.put(f"{BOOKIES}/bookie-0/decommission")
    assert refused.status == 412 and "start another bookie first" in refused.body["reason"]
    assert (await rest.put(f"{BOOKIES}/bookie-0/recover")).status == 412
    assert (await rest.put(f"{BOOKIES}/bookie-2/recover")).body["state"] == "given up"
    assert (await rest.put(f"{BOOKIES}/bookie-2/keep")).body["state"] == "absent"


async def test_a_bookie_is_drained_under_an_open_topic_and_retired(
    rest: Rest, house: BrokerHouse, broker: Broker, store: MetadataStore, client: pulsar.Client
) -> None:
    await publish(client, 10)
    cluster = house.cluster
    repair = coordinator(cluster)
    assert (await rest.put(f"{BOOKIES}/host-0:3181/decommission")).body["state"] == "draining"
    bookie = cluster.bookies[0]
    bookie.refuses = Status.READ_ONLY  # as a real one does when it reads its record
    cluster.directory.join(replace(bookie.record(), intent=BookieIntent.DRAIN), bookie)
    async with asyncio.timeout(60):
        while (await rest.get(f"{BOOKIES}/bookie-0")).status != 404:
            repair.wake()
            await repair.look()
            await look_after_topics(broker)
    named = [
        name for each in await ledgers(store) for fragment in each.fragments for name in fragment.bookies
    ]
    assert named and "bookie-0:1" not in named
    await publish(client, 5)
    received = await in_thread(lambda: read_earliest(client, 15))
    assert received == [b"%d" % i for i in (*range(10), *range(5))]


async def test_orphans_are_told_and_deleted_when_asked(
    rest: Rest, house: BrokerHouse, client: pulsar.Client, store: MetadataStore
) -> None:
    await publish(client, 3)
    for ledger_id, purpose, created_ms in ((90_001, "topic:persistent://a/b/c", 1), (90_002, "by hand", 1)):
        record = LedgerRecord(ledger_id=ledger_id, purpose=purpose, created_ms=created_ms)
        await store.create(paths.ledger(ledger_id), encode(record))
    answer = (await rest.post("/quire/v1/ledgers/orphans")).body
    assert [row["ledger"] for row in answer["orphans"]] == [90_001] and answer["deleted"] == 0
    answer = (await rest.post("/quire/v1/ledgers/orphans?delete=true")).body
    assert answer["deleted"] == 1
    assert 90_001 not in {each.ledger_id for each in await ledgers(store)}


async def test_the_command_deletes_orphans_only_if_absence_is_proven(
    rest: Rest, broker: Broker, store: MetadataStore
) -> None:
    record = LedgerRecord(ledger_id=90_001, purpose="topic:persistent://a/b/c", created_ms=1)
    await store.create(paths.ledger(90_001), encode(record))

    def run(*words: str):
        return quire("bookies", "orphans", *words, "--admin-url", rest.url)

    asked = []

    async def refuse(found: str) -> None:
        asked.append(found)
        raise WrongCluster("the metadata are older than copy 5 of them")

    guard = broker.services.ledgers.confirm_absence
    broker.services.ledgers.confirm_absence = refuse
    for words in ((), ("--delete",)):
        refused = await in_thread(lambda words=words: run(*words))
        assert refused.code == 2 and "older than copy 5" in refused.err
        assert ("persistent://a/b/c" in refused.out) == (not words), "a dry run lists them nevertheless"
    assert asked == ["1 ledgers that no topic lists"] * 2
    assert 90_001 in {each.ledger_id for each in await ledgers(store)}
    broker.services.ledgers.confirm_absence = guard
    dry = await in_thread(run)
    assert dry.code == 0 and "90001" in dry.out and "1 ledgers that no owner lists" in dry.out
    assert 90_001 in {each.ledger_id for each in await ledgers(store)}
    done = await in_thread(lambda: run("--delete"))
    assert done.code == 0 and "1 ledgers were deleted" in done.out
    assert 90_001 not in {each.ledger_id for each in await ledgers(store)}


async def test_the_command(rest: Rest, store: MetadataStore) -> None:
    def run(*words: str):
        return quire("bookies", *words, "--admin-url", rest.url)

    listed = await in_thread(lambda: run("list"))
    assert "host-1:3181" in listed.out and "up" in listed.out
    assert (await in_thread(lambda: run("show", "host-1:3181", "--json"))).json["uuid"] == "bookie-1"
    assert (await in_thread(lambda: run("decommission", "bookie-1", "--json"))).json["state"] == "draining"
    assert (await in_thread(lambda: run("keep", "bookie-1", "--json"))).json["state"] == "up"
    assert (await in_thread(lambda: run("repair", "--run", "--json"))).json[
        "state"
    ] == "unknown: no coordinator has reported yet"
    missing = await in_thread(lambda: run("show", "nobody"))
    assert missing.code == 3 and "bookie nobody does not exist" in missing.err


def coordinator(cluster: MemoryCluster) -> Repair:
    settings = RepairSettings(repair_delay_ms=0)
    return Repair(cluster.store.join(), cluster.directory, SystemClock(), Random(1), settings, "test")


async def ledgers(store: MetadataStore) -> list[LedgerRecord]:
    from quire.ledger.orphans import ledger_ids
    from quire.metadata.records import decode

    found = []
    async for ledger_id in ledger_ids(store):
        path = paths.ledger(ledger_id)
        found.append(decode(LedgerRecord, (await store.get(path)).value, path))
    return found


def read_earliest(client: pulsar.Client, count: int) -> list[bytes]:
    reader = client.create_reader(NAME, pulsar.MessageId.earliest)
    return [reader.read_next(10_000).data() for _ in range(count)]


async def test_a_line_says_why_a_bookie_takes_nothing_and_what_to_do_about_one_that_is_gone(
    rest: Rest, house: BrokerHouse, store: MetadataStore
) -> None:
    full, gone = house.cluster.bookies[:2]
    why = "the disk of /data/entries is full; free some space"
    record = replace(
        full.record(), read_only=True, read_only_why=why, free_bytes=300 << 20, total_bytes=1 << 40
    )
    house.cluster.directory.join(record, full)
    house.cluster.directory.leave(gone.bookie.uuid)
    listed = await in_thread(lambda: quire("bookies", "list", "--admin-url", rest.url))
    rows = {line.split()[0]: line for line in listed.out.splitlines()}
    assert why in rows[full.bookie.uuid] and "300 MiB" in rows[full.bookie.uuid]
    assert "quire bookies recover" in rows[gone.bookie.uuid]
