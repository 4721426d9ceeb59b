"""Mutations of topics: publishing, dispatching, partitions, deletion, and read plans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from quire.ledger.ledgers import Ledgers
from quire.metadata.records import SegmentState
from quire.serving.names import TopicName
from quire.serving.operations import statistics
from quire.serving.operations.partitioned import Partitioned
from quire.serving.registry import topic_deletion
from quire.serving.registry.registry import Registry
from quire.serving.session.producer_end import ProducerEnd
from quire.serving.subscription.dispatch.key_shared import KeyShared
from quire.serving.topic.publish import Publisher
from quire.serving.topic.topic import PersistentTopic, Topic
from quire.wire import block

from .registry import mutation


# -- publishing --------------------------------------------------------------------------------------------
@mutation("producers", "cluster")
def a_producer_that_was_fenced_publishes_on() -> Iterator[None]:
    """Publish messages that a session still holds for a fenced producer."""

    def close(self: ProducerEnd, last_words: bytes) -> None:
        if self.topic is not None and not self.is_closed:
            self.is_closed = True
            self.write(last_words)

    takes = patch.object(Topic, "_takes_from", lambda self, _: not self.is_closed)
    with takes, patch.object(ProducerEnd, "_close", close):
        yield


# -- dispatching ------------------------------------------------------------------------------------------------
@mutation("delivery", "cluster")
def a_block_is_dispatched_before_it_is_confirmed() -> Iterator[None]:
    """Dispatch a block to consumers when it is created, before it is confirmed."""
    cut_one = Publisher._cut_one

    def cut_and_dispatch(self: Publisher, ledger: Any) -> Any:
        flight = cut_one(self, ledger)
        topic = self.reports._topic()
        if isinstance(topic, Topic) and not topic.is_closed:
            topic.subscriptions.confirmed([(flight.block, block.peek(flight.block))])
        return flight

    with patch.object(Publisher, "_cut_one", cut_and_dispatch):
        yield


@mutation("delivery", "cluster")
def a_key_is_dispatched_to_its_new_owner_at_once() -> Iterator[None]:
    """Dispatch a key to its new consumer before the former one has acknowledged its messages of the key."""

    class Nobody(dict[int, Any]):
        def get(self, key: int, default: Any = None) -> Any:
            return default

    init = KeyShared.__init__

    def forget_holders(self: KeyShared, *args: Any) -> None:
        init(self, *args)
        self.queue.holders = Nobody()

    with patch.object(KeyShared, "__init__", forget_holders):
        yield


# -- partitions, deletion and read plans ---------------------------------------------------------------------
@mutation("partitions", "cluster")
def partitions_are_added_without_subscriptions() -> Iterator[None]:
    """Do not copy subscriptions to added partitions, so that consumers create them at the latest message."""

    async def nothing(*_: Any) -> None: ...

    with patch.object(Partitioned, "_prepare", nothing):
        yield


@mutation("deletion", "cluster")
def a_deletion_is_answered_before_it_is_done() -> Iterator[None]:
    """Confirm the deletion of a topic before the topic is deleted."""
    delete = topic_deletion.delete

    async def later(
        registry: Registry, name: TopicName, unless: Callable[[PersistentTopic], bool] = lambda _: False
    ) -> None:
        async def work() -> None:
            await asyncio.sleep(0.5)
            await delete(registry, name, unless)

        registry._loader._services.tasks.start(work(), f"delete {name}")

    with patch.object(topic_deletion, "delete", later):
        yield


@mutation("plans", "cluster")
def a_plan_is_taken_in_two_looks() -> Iterator[None]:
    """Read the active segment only after requests to the bookies about the sealed ones, so that the plan has a gap."""

    async def plan(loaded: PersistentTopic, ledgers: Ledgers) -> statistics.ReadPlan:
        end = loaded.log.last_confirmed
        sealed = loaded.log.segment_list.sealed
        rows = [statistics._plan_row(one, await statistics.state_of(one, ledgers)) for one in sealed]
        active = loaded.log.segment_list.active
        if active is not None and active.last_entry >= 0:
            rows.append(statistics._plan_row(active.sealed(0), SegmentState.ACTIVE))
        return statistics.ReadPlan(loaded.name, segments=rows, end=statistics.EndPosition(*end))

    with patch.object(statistics, "plan", plan):
        yield
