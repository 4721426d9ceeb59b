"""Periodic checks of brokers' internal state, which clients cannot observe.

one holder   all unacknowledged messages of a key are held by one consumer of a key-shared subscription
whole plan   a plan for Spark is complete from its first segment to its end
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import to_builtins

from quire.runtime.errors import QuireError
from quire.serving.names import TopicName
from quire.serving.subscription.subscription import Subscription
from quire.serving.topic.topic import Topic
from quire.spark_source.plan import find_gap
from quire.wire import block
from quire.wire.message import read_metadata

from .broker_host import BrokerHost
from .facts import KEYS
from .oracle import Oracle
from .world import World

LOOK_S: Final = 0.2
PREFIX: Final = "persistent://public/default/"


class KeyWatch:
    """Check of the consumers that hold messages of each key, in each broker that serves the topic with keys."""

    def __init__(self, world: World, brokers: Sequence[BrokerHost], oracle: Oracle) -> None:
        self._world = world
        self._brokers = brokers
        self._oracle = oracle
        self._keys: dict[tuple[int, int], str] = {}

    def start(self) -> None:
        self._look()

    def _look(self) -> None:
        for host in self._brokers:
            if host.broker is not None and host.process is not None and not host.process.is_halted:
                topic = host.broker.registry.find(TopicName.parse(PREFIX + KEYS))
                if isinstance(topic, Topic) and not topic.is_closed:
                    for one in topic.subscriptions:
                        if isinstance(one, Subscription) and one.name == "key-shared":
                            self._check(host, one)
        self._world.later(LOOK_S, self._look)

    def _check(self, host: BrokerHost, subscription: Subscription) -> None:
        holders: dict[str, object] = {}
        consumers = subscription.consumers
        for consumer in consumers:
            for ledger_id, entries in consumer.pending_acks.items():
                for entry in entries:
                    key = self._key(ledger_id, entry)
                    other = holders.setdefault(key, consumer)
                    self._world.check(
                        other is consumer,
                        "one holder",
                        f"two consumers at {host.host} hold messages of {key}, one of them {ledger_id}:{entry}",
                    )
        if len({id(one) for one in holders.values()}) > 1:
            self._world.saw("keys held by several consumers")

    def _key(self, ledger_id: int, entry: int) -> str:
        found = self._keys.get((ledger_id, entry))
        if found is None:
            for first, content in self._oracle.blocks[ledger_id].items():
                header = block.peek(content)
                if first <= entry <= header.last_entry:
                    for number, one in enumerate(block.entries(content, header), first):
                        metadata, _ = read_metadata(bytes(one))
                        self._keys[ledger_id, number] = metadata.partition_key
            found = self._keys[ledger_id, entry]
        return found


async def take_plan(world: World, host: BrokerHost, topic: str) -> None:
    """Request a plan from the broker, and check that it is complete."""
    if host.broker is None:
        return
    try:
        plan = await host.broker.admin.statistics.segments(TopicName.parse(PREFIX + topic))
    except QuireError as error:
        world.note(f"{host.host} has no plan of {topic}: {error}")
        return
    if not plan.partitions:
        lacks = find_gap(to_builtins(plan))
        world.check(not lacks, "whole plan", lambda: f"the plan of {topic} at {host.host}: {lacks}")
        world.saw("plan")
        world.seen["segment planned"] += len(plan.segments)
