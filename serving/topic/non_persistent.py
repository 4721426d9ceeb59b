"""A topic that keeps nothing: what is published goes to the consumers that can take it now, and to nobody else.

    SEND ─▶ SEND_RECEIPT at once, no promise     ─▶ one block per run ─▶ each subscription: deal, or drop and count

There is no record of it, no ledger and no cursor; it exists on its broker from the first use until nobody uses it. So
publishing waits for nothing, and nothing of a connection is ever outstanding: a flood costs its own receipts, and
a consumer whose socket or permits are full loses messages instead of holding anybody up.

What passes through is cut into blocks all the same, because blocks are what subscriptions deal. Their ledger is the
time of loading in ms, so that ids of one topic are distinct and grow, also from one incarnation to the next: message
ids that repeat would confuse what clients track by them.

Access modes are as everywhere, but the topic epoch lasts only as long as the topic is loaded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from quire.metadata.records import DelayedDeliveryPolicy
from quire.runtime.errors import Unavailable
from quire.runtime.limits import BLOCK_ENTRIES_MAX
from quire.serving.model.ports import EARLIEST, Position, ProducerPort, SegmentView
from quire.serving.model.rates import Totals
from quire.serving.names import TopicName
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.topic.entrance import Entrance
from quire.serving.topic.governed import Governed
from quire.serving.topic.lifecycle.states import IN_USE, Event
from quire.serving.topic.producers import NO_EPOCH, Admission
from quire.serving.topic.services import Services
from quire.serving.topic.topic import Topic
from quire.wire import block as blocks
from quire.wire.block import Buffer
from quire.wire.entry_frames import receipt_run
from quire.wire.frame import Send, SendRun

ENTRIES_PER_LEDGER: Final = 1 << 30
"""Entry ids are kept in 32 bits by whoever deals; beyond this a new ledger number begins."""


class NonPersistentTopic(Governed):
    """`subscriptions` is set by the registry. A `TopicPort`."""

    def __init__(self, name: TopicName, services: Services, policies: TopicPolicies, totals: Totals) -> None:
        super().__init__(name, services, policies, totals)
        self.producers = Entrance(
            self.name, NO_EPOCH, self._write_epoch, self.last_sequence_id, services.tasks
        )
        self._ledger_id = services.clock.now_ms()
        self._next_entry = 0
        self._was_idle = False
        self.enter(Event.LOADED)

    # -- life ------------------------------------------------------------------------------------------

    @property
    def deduplicates(self) -> bool:
        """What was sent before is not remembered, whatever the policies say."""
        return False

    async def compacted_view(self) -> None:
        """There is nothing to compact."""

    @property
    def delayed_delivery(self) -> DelayedDeliveryPolicy:
        """What is not dealt now is not there later."""
        return DelayedDeliveryPolicy(active=False)

    @property
    def is_terminated(self) -> bool:
        """It has no end: there is no record that could say so."""
        return False

    @property
    def has_messages(self) -> bool:
        """Some passed through."""
        return self.messages_in > 0

    @property
    def is_full(self) -> bool:
        """It holds nothing."""
        return False

    @property
    def is_used(self) -> bool:
        """Somebody publishes or consumes."""
        return bool(self.producers.all()) or any(one.consumers for one in self.subscriptions)

    def is_abandoned(self) -> bool:
        """Nobody publishes or consumes, and nobody did when this was asked before."""
        was_idle, self._was_idle = self._was_idle, not self.is_used
        return self._was_idle and was_idle

    async def close(self) -> None:
        """Take nothing more. The producers stay until `drop`."""
        if self.is_closed:
            return
        self.enter(Event.CLOSE)
        self.producers.shut()
        self.subscriptions.close()

    async def unload(self) -> None:
        self.drop()

    async def delete(self, forget: Callable[[], Awaitable[None]]) -> None:
        self.drop()
        await forget()

    def drop(self, service_url: str = "") -> None:
        """Let everybody go: to `service_url`, or to look the topic up again."""
        if self.state not in IN_USE:
            return
        self.enter(Event.DROP)
        if self.publish_limiter is not None:
            self.publish_limiter.open()
        self.producers.close_all(service_url)
        self.subscriptions.close()

    # -- publishing ------------------------------------------------------------------------------------

    async def admit(self, admission: Admission) -> None:
        """As `Topic.admit`."""
        if self.is_closed:
            raise Unavailable(f"topic {self.name} was closed meanwhile")
        await self.producers.admit(admission)

    async def _write_epoch(self, epoch: int) -> None:
        """There is nowhere to write it."""

    def last_sequence_id(self, producer: str) -> int:
        """Nothing is remembered: clients number on by themselves."""
        return -1

    def publish(self, producer: Admission, run: SendRun) -> None:
        """Take a run of SENDs, and answer it."""
        if not self.takes_from(producer):
            return
        counts = run.counts
        for start in range(0, len(run), BLOCK_ENTRIES_MAX):
            stop = start + BLOCK_ENTRIES_MAX
            some = counts[start:stop] if counts else None
            self._pass_on(producer.port, run.heads[start:stop], run.entries[start:stop], some)

    def publish_chunk(self, producer: Admission, send: Send) -> None:
        """Take one SEND of a chunked message."""
        if self.takes_from(producer):
            counts = None if send.message_count == 1 else [send.message_count]
            self._pass_on(producer.port, [send.head], [send.entry], counts)

    def when_drained(self, done: Callable[[], None]) -> None:
        """It never is full."""
        done()

    def when_answered(self, done: Callable[[], None]) -> None:
        """Everything is answered at once."""
        done()

    when_settled = when_answered

    def _pass_on(
        self, producer: ProducerPort, heads: list[bytes], entries: list[bytes], counts: list[int] | None
    ) -> None:
        if self._next_entry + len(entries) > ENTRIES_PER_LEDGER:
            self._ledger_id, self._next_entry = self._ledger_id + 1, 0
        first, first_index = self._next_entry, self.messages_in
        self._count(entries, counts)
        producer.write(b"".join(receipt_run(self._ledger_id, first, heads)))
        if len(self.subscriptions):
            now_ms = self._services.clock.now_ms()
            block = blocks.cut(self._ledger_id, first, first - 1, now_ms, first_index, entries, counts)
            self.subscriptions.confirmed([(block, blocks.peek(block))])

    def _count(self, entries: list[bytes], counts: list[int] | None) -> None:
        messages = len(entries) if counts is None else sum(counts)
        byte_count = sum(map(len, entries))
        self._next_entry += len(entries)
        self.messages_in += messages
        self.bytes_in += byte_count
        self._totals.messages_in += messages
        self._totals.bytes_in += byte_count

    # -- what subscriptions see: TopicPort -------------------------------------------------------------

    @property
    def last_confirmed(self) -> Position:
        """There is nothing to read, whatever was published."""
        return EARLIEST

    @property
    def confirmed_index(self) -> int:
        return self.messages_in

    def segments(self) -> Sequence[SegmentView]:
        """One, which only says where the next entry will be."""
        return (SegmentView(self._ledger_id, self._next_entry - 1, 0, self.messages_in, 0),)

    def first_position(self) -> Position:
        return Position(self._ledger_id, self._next_entry)

    def next_position(self, position: Position) -> Position:
        return self.first_position()

    def cached(self, position: Position) -> Sequence[Buffer]:
        return ()

    async def read(self, position: Position, bytes_max: int) -> Sequence[Buffer]:
        return ()

    async def index_of(self, position: Position) -> int:
        return self.messages_in

    async def find_time(self, time_ms: int) -> Position:
        return self.first_position()

    async def last_message(self) -> tuple[Position, int]:
        return EARLIEST, -1

    def acknowledged_up_to(self, subscription: str) -> None:
        """Nothing to trim."""


AnyTopic = Topic | NonPersistentTopic
