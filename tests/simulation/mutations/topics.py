"""Mistakes of topics: who publishes, what is dispatched, how they grow, go and are planned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from quire.ledger.ledgers import Ledgers
from quire.metadata.records import SegmentState
from quire.serving.cluster import statistics
from quire.serving.cluster.deletion import Deletion
from quire.serving.cluster.partitioned import Partitioned
from quire.serving.names import TopicName
from quire.serving.session.produce import ProducerEnd
from quire.serving.subscription.dispatch.key_shared import KeyShared
from quire.serving.topic.publish import Publisher
from quire.serving.topic.topic import PersistentTopic, Topic
from quire.wire import block

from .registry import mutation


# -- who publishes -----------------------------------------------------------------------------------------
@mutation("producers", "cluster")
def a_producer_that_was_fenced_publishes_on() -> Iterator[None]:
    """A topic takes what a session holds for a producer that it has sent away."""

    def close(self: ProducerEnd, last_words: bytes) -> None:
        if self.topic is not None and not self.is_closed:
            self.is_closed = True
            self.write(last_words)

    takes = patch.object(Topic, "_takes_from", lambda self, _: not self.is_closed)
    with takes, patch.object(ProducerEnd, "_close", close):
        yield


# -- what is dispatched -----------------------------------------------------------------------------------------
@mutation("delivery", "cluster")
def a_block_is_dispatched_before_it_is_confirmed() -> Iterator[None]:
    """Consumers are given a block when it is cut, and not when it is durable."""
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
    """A key-shared subscription does not wait until the former owner of a slot has acknowledged what it holds."""

    class Nobody(dict[int, Any]):
        def get(self, key: int, default: Any = None) -> Any:
            return default

    init = KeyShared.__init__

    def forget_holders(self: KeyShared, *args: Any) -> None:
        init(self, *args)
        self.queue.holders = Nobody()

    with patch.object(KeyShared, "__init__", forget_holders):
        yield


# -- how they grow, go and are planned -----------------------------------------------------------------------
@mutation("partitions", "cluster")
def partitions_are_added_without_subscriptions() -> Iterator[None]:
    """A partition that is added gets a durable subscription when consumers find it, at their latest message."""

    async def nothing(*_: Any) -> None: ...

    with patch.object(Partitioned, "_prepare", nothing):
        yield


@mutation("deletion", "cluster")
def a_deletion_is_answered_before_it_is_done() -> Iterator[None]:
    """Who deletes a topic is told so at once, and it goes a moment later."""
    delete = Deletion.delete

    async def later(
        self: Deletion, name: TopicName, unless: Callable[[PersistentTopic], bool] = lambda _: False
    ) -> None:
        async def work() -> None:
            await asyncio.sleep(0.5)
            await delete(self, name, unless)

        self._services.tasks.start(work(), f"delete {name}")

    with patch.object(Deletion, "delete", later):
        yield


@mutation("plans", "cluster")
def a_plan_is_taken_in_two_looks() -> Iterator[None]:
    """A plan looks at the sealed segments, asks the bookies about them, and then looks at the active one."""

    async def plan(loaded: PersistentTopic, ledgers: Ledgers) -> dict[str, Any]:
        end = loaded.log.last_confirmed
        sealed = loaded.log.segment_list.sealed
        rows = [statistics._plan_row(one, await statistics.state_of(one, ledgers)) for one in sealed]
        active = loaded.log.segment_list.active
        if active is not None and active.last_entry >= 0:
            rows.append(statistics._plan_row(active.sealed(0), SegmentState.ACTIVE))
        place = {"ledger": end.ledger_id, "entry": end.entry_id}
        return {"topic": loaded.name, "partitions": 0, "end": place, "segments": rows}

    with patch.object(statistics, "plan", plan):
        yield
