"""The versions of topics' schemas in a metadata store: numbers, deletion, many at once, and large ones."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from quire.metadata import paths
from quire.metadata.store import Step
from quire.runtime.clock import SystemClock
from quire.runtime.errors import LimitExceeded, NotFound, OutcomeUnknown, Unavailable
from quire.runtime.limits import SCHEMA_BYTES_MAX, SCHEMA_VERSIONS_MAX
from quire.runtime.threads import DaemonThreads
from quire.serving.names import TopicName
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.policy.strategy import Strategy
from quire.serving.schema import registry
from quire.serving.schema.definition import Definition, SchemaRefused
from quire.serving.schema.registry import NO_VERSION, Schemas, Version, from_wire, to_wire
from quire.testing.metadata import MemoryStore

ORDERS = TopicName.parse("orders")
ANY = Strategy.ALWAYS_COMPATIBLE
TOPIC = TopicPolicies()
HELPERS = DaemonThreads(2, "test")


def schema(*fields: str, doc: str = "", **more: str) -> Definition:
    made = [{"name": name, "type": "int", **more} for name in fields]
    return Definition(
        "AVRO", json.dumps({"type": "record", "name": "R", "doc": doc, "fields": made}).encode()
    )


async def versions(schemas: Schemas) -> list[Version]:
    return [one async for one in schemas.versions(ORDERS)]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def schemas(store: MemoryStore) -> Schemas:
    return Schemas(store, SystemClock(), HELPERS)


async def test_versions_are_numbered_and_the_same_one_is_found(schemas: Schemas) -> None:
    assert await schemas.find(ORDERS) is None
    numbers = [await schemas.add(ORDERS, schema(name), ANY) for name in "abab"]
    assert numbers == [0, 1, 0, 1]
    newest = await schemas.find(ORDERS)
    assert newest is not None and (newest.number, newest.definition) == (1, schema("b"))
    first = await schemas.find(ORDERS, 0)
    assert first is not None and first.definition == schema("a") and first.wire == bytes(8)
    assert await schemas.find(ORDERS, 2) is None and await schemas.find(ORDERS, -1) is None
    assert await schemas.number_of(ORDERS, schema("b")) == 1
    assert await schemas.number_of(ORDERS, schema("c")) is None
    assert [one.number for one in await versions(schemas)] == [0, 1]


async def test_partitions_share_their_parents(schemas: Schemas) -> None:
    assert await schemas.add(ORDERS.of_partition(0), schema("a"), ANY) == 0
    assert await schemas.add(ORDERS.of_partition(7), schema("b"), ANY) == 1
    assert len(await versions(schemas)) == 2


async def test_the_last_version_counts_or_every_one(schemas: Schemas) -> None:
    await schemas.add(ORDERS, schema("a"), Strategy.BACKWARD)
    await schemas.add(ORDERS, schema(), Strategy.BACKWARD)
    with pytest.raises(SchemaRefused, match=r"version 0 of topic .*orders \(FULL_TRANSITIVE\)"):
        await schemas.add(ORDERS, schema("b", default="0"), Strategy.FULL_TRANSITIVE)
    assert await schemas.add(ORDERS, schema("b", default="0"), Strategy.FULL) == 2


async def test_deletion_ends_all_versions_and_keeps_their_numbers(schemas: Schemas) -> None:
    with pytest.raises(NotFound):
        await schemas.delete(ORDERS)
    await schemas.add(ORDERS, schema("a"), ANY)
    assert await schemas.delete(ORDERS) == 1
    assert await schemas.find(ORDERS) is None and await versions(schemas) == []
    old = await schemas.find(ORDERS, 0)
    assert old is not None and old.definition == schema("a"), "messages were written by it"
    assert await schemas.find(ORDERS, 1) is None
    with pytest.raises(NotFound):
        await schemas.delete(ORDERS)
    assert await schemas.add(ORDERS, Definition("STRING"), Strategy.FULL) == 2
    assert await schemas.add(ORDERS, schema("a"), ANY) == 3, "the former one is over"


async def test_a_topic_that_is_deleted_leaves_nothing(schemas: Schemas, store: MemoryStore) -> None:
    await schemas.forget(ORDERS)
    for name in "ab":
        await schemas.add(ORDERS, schema(name, doc="x" * (SCHEMA_BYTES_MAX // 2)), ANY)
    assert len(await store.children(f"{paths.SCHEMA_BODIES}/public/default")) == 2
    assert [one.definition.data[:9] for one in await versions(schemas)] == [b'{"type": '] * 2
    await schemas.forget(ORDERS)
    assert await store.children(f"{paths.SCHEMAS}/public/default") == []
    assert await store.children(f"{paths.SCHEMA_BODIES}/public/default") == []


async def test_the_record_stays_small_however_many_versions(schemas: Schemas, store: MemoryStore) -> None:
    for number in range(200):
        await schemas.add(ORDERS, schema(f"f{number}", doc="x" * 2_000), ANY)
    node = await store.get(paths.schemas("public", "default", "orders"))
    assert len(node.value) < 128 * 1024
    apart = len(await store.children(f"{paths.SCHEMA_BODIES}/public/default"))
    assert 0 < apart < 200
    found = [await schemas.find(ORDERS, number) for number in (0, 199)]
    assert [one and json.loads(one.definition.data)["fields"][0]["name"] for one in found] == ["f0", "f199"]


async def test_many_versions_are_refused(schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SCHEMA_VERSIONS_MAX", 2)
    assert SCHEMA_VERSIONS_MAX >= 1_000
    await schemas.add(ORDERS, schema("a"), ANY)
    await schemas.add(ORDERS, schema("b"), ANY)
    with pytest.raises(LimitExceeded):
        await schemas.add(ORDERS, schema("c"), ANY)
    assert await schemas.add(ORDERS, schema("a"), ANY) == 0


async def test_brokers_that_add_at_the_same_time_agree(store: MemoryStore) -> None:
    brokers = [Schemas(store, SystemClock(), HELPERS) for _ in range(6)]
    numbers = await asyncio.gather(
        *(one.add(ORDERS, schema("abc"[at % 3]), ANY) for at, one in enumerate(brokers))
    )
    assert numbers[:3] == numbers[3:] and sorted(set(numbers)) == [0, 1, 2]


async def test_a_lost_answer_makes_no_second_version(store: MemoryStore) -> None:
    class Forgetful(MemoryStore):
        async def transact(self, steps: list[Step]) -> None:  # type: ignore[override]
            await store.transact(steps)
            raise OutcomeUnknown("the answer was lost")

        get = store.get  # type: ignore[assignment]

    with pytest.raises(OutcomeUnknown):
        await Schemas(Forgetful(), SystemClock(), HELPERS).add(ORDERS, schema("a"), ANY)
    assert await Schemas(store, SystemClock(), HELPERS).add(ORDERS, schema("a"), ANY) == 0


async def test_who_is_always_overtaken_says_so(store: MemoryStore) -> None:
    class Busy(MemoryStore):
        async def transact(self, steps: list[Step]) -> None:  # type: ignore[override]
            await self.create(steps[0].path, b"{}") if steps[0].path not in made else None
            made.add(steps[0].path)
            await self.put(steps[0].path, b"{}", -1)
            await super().transact(steps)

    made: set[str] = set()
    with pytest.raises(Unavailable, match="changed by other requests"):
        await Schemas(Busy(), SystemClock(), HELPERS).add(ORDERS, schema("a"), ANY)


# -- clients -------------------------------------------------------------------------------------------


async def test_a_producer_without_a_schema(schemas: Schemas) -> None:
    enforced = TopicPolicies(schema_enforced=True)
    for given in (None, Definition("BYTES").message(), Definition("AUTO_CONSUME").message()):
        assert await schemas.for_producer(ORDERS, enforced, given) == NO_VERSION
    await schemas.add(ORDERS, schema("a"), ANY)
    assert await schemas.for_producer(ORDERS, TOPIC, None) == NO_VERSION
    with pytest.raises(SchemaRefused, match="accepts no messages without a schema"):
        await schemas.for_producer(ORDERS, enforced, None)


async def test_a_producer_brings_a_version_where_it_may(schemas: Schemas) -> None:
    assert await schemas.for_producer(ORDERS, TOPIC, schema("a").message()) == to_wire(0)
    held = TopicPolicies(schema_auto_update=False)
    assert await schemas.for_producer(ORDERS, held, schema("a").message()) == to_wire(0)
    with pytest.raises(SchemaRefused, match="does not let clients add any"):
        await schemas.for_producer(ORDERS, held, schema("a", "b").message())
    with pytest.raises(SchemaRefused, match="is incompatible with version 0"):
        await schemas.for_producer(ORDERS, TOPIC, schema("b").message())
    assert from_wire(to_wire(5)) == 5 and from_wire(b"") == from_wire(b"123") == -1


async def test_a_consumer_must_read_what_is_there(schemas: Schemas) -> None:
    forward = TopicPolicies(schema_compatibility="FORWARD")
    await schemas.for_consumer(ORDERS, forward, schema("a").message(), in_use=False, may_add=True)
    assert await schemas.for_producer(ORDERS, forward, schema("a", "b").message()) == to_wire(1)
    for fits in (schema("a"), schema("b"), schema()):
        await schemas.for_consumer(ORDERS, forward, fits.message(), in_use=True, may_add=True)
    with pytest.raises(SchemaRefused, match="field 'c' is not written"):
        await schemas.for_consumer(ORDERS, forward, schema("c").message(), in_use=True, may_add=True)
    every = TopicPolicies(schema_compatibility="BACKWARD_TRANSITIVE")
    with pytest.raises(SchemaRefused, match="version 0"):
        await schemas.for_consumer(ORDERS, every, schema("b").message(), in_use=True, may_add=True)
    assert len(await versions(schemas)) == 2, "what only reads leaves no version"


async def test_a_consumer_with_a_schema_and_messages_without(schemas: Schemas) -> None:
    with pytest.raises(SchemaRefused, match="subscribe without a schema"):
        await schemas.for_consumer(ORDERS, TOPIC, schema("a").message(), in_use=True, may_add=True)
    anything = TopicPolicies(schema_compatibility="ALWAYS_COMPATIBLE")
    await schemas.for_consumer(ORDERS, anything, schema("a").message(), in_use=True, may_add=True)
    await schemas.for_consumer(ORDERS, TOPIC, Definition("AUTO_CONSUME").message(), in_use=True, may_add=True)
    assert await schemas.find(ORDERS) is None


async def test_hostile_definitions_hold_up_nobody(schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked into on a thread, one after the other as they come."""
    loop_thread, threads = threading.get_ident(), set[int]()
    for name in ("validate", "fingerprint", "_refusal"):
        real = getattr(registry, name)

        def watched(*arguments: Any, real: Any = real) -> Any:
            threads.add(threading.get_ident())
            return real(*arguments)

        monkeypatch.setattr(registry, name, watched)
    await schemas.add(ORDERS, schema("a"), ANY)
    await schemas.check(ORDERS, schema("a"), Strategy.FULL)
    await schemas.number_of(ORDERS, schema("a"))
    policies = TopicPolicies(schema_compatibility=str(Strategy.FULL))
    await schemas.for_consumer(ORDERS, policies, schema("a").message(), in_use=True, may_add=True)
    assert threads and loop_thread not in threads
