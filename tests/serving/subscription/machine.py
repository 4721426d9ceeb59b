"""A dispatcher core on a topic in memory, and a model that follows every entry; for scenarios and properties."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from quire.runtime.limits import FIRST_CHUNK_BYTES_MIN
from quire.serving.model.ports import ConsumerBusy, Position
from quire.serving.model.positions import Segments, preceding
from quire.serving.model.request import KeySharing, SubscribeRequest, SubscriptionKind
from quire.serving.subscription.cursor.cursor import Cursor, CursorKey
from quire.serving.subscription.cursor.entry_set import EntrySet, spans
from quire.serving.subscription.delivery import coalescing
from quire.serving.subscription.delivery.consumer import Consumer
from quire.serving.subscription.delivery.delivery import BlockView, frames
from quire.serving.subscription.dispatch.dispatcher import Dispatcher
from quire.serving.subscription.dispatch.key_owners import ConsumerAssignError
from quire.serving.subscription.dispatch.key_shared import KeyShared
from quire.serving.subscription.dispatch.multi_consumer import MultiConsumer
from quire.serving.subscription.dispatch.pending_acks import PendingAcks, can_take
from quire.serving.subscription.dispatch.shared import Shared
from quire.serving.subscription.dispatch.single_active import SingleActive
from quire.wire import block
from quire.wire.hashing import key_slot
from tests.serving.subscription.fakes import FakePort, FakeTopic, chunked, keyed


def dispatcher_of(kind: str, cursor: Cursor, topic: FakeTopic, partition: int = -1) -> Dispatcher:
    segments = Segments(topic.segments)
    if kind in SHARINGS:
        return KeyShared(cursor, segments, SHARINGS[kind])
    if kind == "shared":
        return Shared(cursor, segments)
    return SingleActive(SubscriptionKind[kind.upper()], cursor, segments, partition)


BATCH_MAX = 5
"""Messages of the largest batch in the histories."""

SHARINGS = {
    "key-shared": KeySharing(),
    "key-shared-sticky": KeySharing(is_sticky=True),
    "key-shared-any-order": KeySharing(out_of_order=True),
}


class Machine:
    """Events in; what each consumer was sent is checked against the model on the way out."""

    def __init__(
        self, kind: str, partition: int = -1, pace: int = 0, *, joins: bool = False, unacked_max: int = 0
    ) -> None:
        self.pace = pace
        """Blocks are offered so many messages at a time, as a dispatch rate has it; 0: whole."""
        self.joins = joins
        """Small blocks are offered as coalesced ones, as far as there are any."""
        self.topic = FakeTopic()
        self.cursor = Cursor(CursorKey(self.topic.name, 0, "s"), Position(1, -1))
        self.dispatcher = dispatcher_of(kind, self.cursor, self.topic, partition)
        self.dispatcher.limit_unacked(unacked_max)
        self.is_keyed = kind in SHARINGS
        self.is_shared = kind == "shared" or self.is_keyed
        self.slots: dict[Position, int] = {}
        """Of every entry that has a key."""
        self.was_dispatched: dict[int, Position] = {}
        """Of each slot the last entry that was dispatched for the first time."""
        self.consumers: dict[str, Consumer] = {}
        self.left: dict[Position, int] = {}
        """Of every entry, the bits of its unacknowledged messages."""
        self.dispatched: dict[Position, str] = {}
        """Who holds an entry."""
        self.arrivals = 0
        self.chunks: dict[Position, tuple[str, int, int]] = {}
        """Of every entry that is a chunk: of what, which, of how many."""
        self.begun: dict[str, tuple[str, Position]] = {}
        """Who was sent the first chunk of a message, and where that is; until the last one is dispatched."""
        self.forgets_beginnings = False
        """Whether more messages in chunks may be under way than the dispatcher knows of."""

    # -- events ----------------------------------------------------------------------------------------

    def publish(self, counts: list[int]) -> None:
        first = self.topic.publish(counts)
        for offset, count in enumerate(counts):
            self.left[Position(first.ledger_id, first.entry_id + offset)] = (1 << count) - 1

    def publish_keys(self, keys: list[str]) -> None:
        """A block with a message for each of `keys`."""
        ledger_id = self.topic.ledgers[-1]
        first = self.topic.last_entry(ledger_id) + 1
        places = [Position(ledger_id, first + offset) for offset in range(len(keys))]
        self.topic.publish([1] * len(keys), [keyed(*pair) for pair in zip(keys, places, strict=True)])
        for key, at in zip(keys, places, strict=True):
            self.left[at], self.slots[at] = 1, key_slot(key.encode())

    def publish_chunks(self, words: list[str]) -> None:
        """A block of chunks `UUID:NUMBER/COUNT`, and entries that are none (`-`)."""
        ledger_id = self.topic.ledgers[-1]
        first = self.topic.last_entry(ledger_id) + 1
        entries: list[bytes] = []
        for at, word in enumerate(words, first):
            place = Position(ledger_id, at)
            self.left[place] = 1
            if word == "-":
                entries.append(b"\x0e\x01" + f"{ledger_id}:{at}".encode())
                continue
            uuid, _, numbers = word.partition(":")
            number, count = map(int, numbers.split("/"))
            self.chunks[place] = uuid, number, count
            # The last chunk has what is left, however little; what begins a message is as large as may be.
            entries.append(chunked(uuid, number, count, place, FIRST_CHUNK_BYTES_MIN if number == 0 else 1))
        self.topic.publish([1] * len(words), entries)

    def attach(
        self, name: str, priority_level: int = 0, key_ranges: Sequence[tuple[int, int]] = ()
    ) -> bool | str:
        self.arrivals += 1
        request = SubscribeRequest(
            "s", SubscriptionKind.SHARED, self.arrivals, name, priority_level, key_ranges=key_ranges
        )
        consumer = Consumer(FakePort(), request, self.arrivals)
        try:
            self.dispatcher.attach(consumer)
        except ConsumerBusy:
            return False
        except ConsumerAssignError as error:
            return str(error)
        self.consumers[name] = consumer
        if not self.is_shared:
            self.dispatched = {at: who for at, who in self.dispatched.items() if self.is_active(who)}
        return True

    def detach(self, name: str) -> None:
        self.dispatcher.detach(self.consumers.pop(name))
        self.dispatched = {at: who for at, who in self.dispatched.items() if who != name}
        if not self.is_shared:
            self.dispatched = {at: who for at, who in self.dispatched.items() if self.is_active(who)}

    def is_active(self, name: str) -> bool:
        return name in self.consumers and getattr(self.dispatcher, "active", None) is self.consumers[name]

    def flow(self, name: str, permits: int) -> None:
        self.consumers[name].permits += permits

    def ack(self, ledger_id: int, entries: list[int]) -> None:
        self.dispatcher.acknowledge(ledger_id, entries)
        for entry in entries:
            self._acked(Position(ledger_id, entry))

    def ack_up_to(self, position: Position) -> None:
        before = self.cursor.mark_delete
        self.dispatcher.acknowledge_up_to(position)
        assert self.cursor.mark_delete <= max(before, self.topic.last_confirmed)
        for at in self.left:
            if at <= position:
                self._acked(at)

    def ack_part(self, position: Position, ack_set: int) -> None:
        size = (self.counts_of(position)).bit_length()
        self.dispatcher.acknowledge_partly(position, ack_set, size)
        if position in self.left:
            self.left[position] &= ack_set
            if not self.left[position]:
                self._acked(position)

    def counts_of(self, position: Position) -> int:
        """All bits of an entry."""
        for made in self.topic.blocks:
            view = BlockView(made, block.peek(made))
            if view.holds(*position):
                at = position.entry_id - view.first_entry
                return (1 << view.messages(at, at + 1)) - 1
        return 0

    def _acked(self, position: Position) -> None:
        if position in self.left:
            self.left[position] = 0
            self.dispatched.pop(position, None)

    def redeliver(self, name: str, ids: dict[int, list[int]] | None) -> None:
        self.dispatcher.redeliver(self.consumers[name], ids)
        if not self.is_shared:
            if self.is_active(name):
                self.dispatched.clear()
            return
        back = {at for at, who in self.dispatched.items() if who == name}
        if ids is not None:
            back &= {Position(ledger, entry) for ledger, entries in ids.items() for entry in entries}
        for at in back:
            del self.dispatched[at]

    def seek(self, position: Position) -> None:
        self.dispatcher.detach_all()
        assert not self.dispatcher.consumers
        assert not any(one.pending_acks for one in self.consumers.values())
        self.consumers.clear()
        self.dispatched.clear()
        before = preceding(position)
        self.cursor.reset(before)
        self.dispatcher.reset()
        self.was_dispatched.clear()
        for at in self.left:
            self.left[at] = 0 if at <= before else self.counts_of(at)

    # -- what follows ----------------------------------------------------------------------------------

    def pump(self) -> list[tuple[str, str]]:
        """Dispatch all that can be dispatched; (consumer, what it got) in order."""
        said = []
        while (wanted := self.dispatcher.wanted()) is not None:
            view = self._block(wanted)
            if view is None:
                if wanted == self.dispatcher.read.position and self.dispatcher.read.normalise():
                    continue
                break
            if self.pace:
                view = view.head(view.cover(wanted.entry_id - view.first_entry, view.count, self.pace)[0])
            if not self.dispatcher.fits(view):
                view = self.dispatcher.cut(view, wanted)
            said += [self._dispatched(delivery) for delivery in self.dispatcher.offer(view)]
        self.check()
        return said

    def _block(self, position: Position) -> BlockView | None:
        blocks = [(made, block.peek(made)) for made in self.topic.blocks]
        for view in coalescing.views(blocks) if self.joins else [BlockView(*one) for one in blocks]:
            if view.holds(*position):
                return view
        return None

    def _dispatched(self, delivery: Any) -> tuple[str, str]:
        consumer, view = delivery.consumer, delivery.view
        self._kept_together(delivery)
        assert self.consumers.get(consumer.name) is consumer, "dispatched to a consumer that is gone"
        messages = 0
        for entry in delivery.entries():
            at = Position(view.ledger_id, entry)
            self._in_order(at, consumer)
            assert self.left[at], f"{at} is acknowledged and was dispatched"
            assert at not in self.dispatched, (
                f"{at} is held by {self.dispatched[at]} and was dispatched to {consumer.name}"
            )
            whole = self.left[at] == self.counts_of(at)
            assert delivery.remaining == (0 if whole else self.left[at])
            assert delivery.redelivery_count == self.cursor.redeliveries.count(at)
            messages += self.left[at].bit_count()
            self.dispatched[at] = consumer.name
        assert delivery.messages == messages
        port = consumer.port
        for part in frames(delivery, -1):
            port.raw += part
        got = port.messages()
        assert [one.message_id.entryId for one in got] == list(delivery.entries())
        runs = [f"{a}..{b - 1}" if b - a > 1 else f"{a}" for a, b in spans(delivery.entries())]
        text = f"{view.ledger_id}:{' '.join(runs)}"
        text += f" again {delivery.redelivery_count}" if delivery.redelivery_count else ""
        text += f" only {delivery.remaining:b}" if delivery.remaining else ""
        return consumer.name, text

    def _in_order(self, at: Position, consumer: Consumer) -> None:
        """Of a slot nothing is dispatched while another holds some of it, nor before what is older and never was."""
        if not isinstance(self.dispatcher, KeyShared) or at not in self.slots:
            return
        slot = self.slots[at]
        assert self.dispatcher.owners.owner(slot) is consumer
        if not self.dispatcher.sharing.out_of_order:
            holders = {who for one, who in self.dispatched.items() if self.slots.get(one) == slot}
            assert holders <= {consumer.name}, (
                f"{holders} hold {slot} and {at} was dispatched to {consumer.name}"
            )
        older = [one for one, other in self.slots.items() if other == slot and one < at and self.left[one]]
        last = self.was_dispatched.get(slot, Position(-1, -1))
        assert all(one <= last for one in older), f"{at} was dispatched before one of {older}"
        self.was_dispatched[slot] = max(last, at)

    def _kept_together(self, delivery: Any) -> None:
        """A chunk goes to whoever holds the first one of its message, if anybody does."""
        name = delivery.consumer.name
        for entry in delivery.entries():
            at = Position(delivery.view.ledger_id, entry)
            if at not in self.chunks or not isinstance(self.dispatcher, Shared):
                continue
            uuid, number, count = self.chunks[at]
            who, first = self.begun.get(uuid, (name, at))
            is_held = self.dispatched.get(first) == who
            assert who == name or not is_held or self.forgets_beginnings, (
                f"{at} was dispatched to {name}, not {who}"
            )
            if number == 0:
                self.begun[uuid] = name, at
            elif number == count - 1:
                self.begun.pop(uuid, None)

    def _shared_is_in_its_places(self) -> None:
        """What nobody holds waits: for anybody only if nobody is ready, and aside only for who is not."""
        dispatcher = self.dispatcher
        assert isinstance(dispatcher, Shared)
        is_blocked = dispatcher.pending.is_blocked
        ready = [one for one in dispatcher.consumers if can_take(one) and not is_blocked]
        waiting = [
            *_places(dispatcher.queue.entries),
            *chain.from_iterable(map(_places, dispatcher.queue.aside.values())),
        ]
        left = [at for at, bits in self.left.items() if bits and at < dispatcher.read.position]
        assert sorted([*waiting, *self.dispatched]) == left
        assert not ready or not dispatcher.queue.entries, "somebody is ready and the queue is not dispatched"
        assert not set(ready) & dispatcher.queue.aside.keys(), "chunks are aside for who is ready"
        for holder in dispatcher.queue.aside:
            assert any(begun.holder is holder for begun in dispatcher.queue.begun.values())
        assert dispatcher.queue.begun.keys() <= self.begun.keys(), "a message that is whole is remembered"
        for begun in dispatcher.queue.begun.values():
            assert begun.first in begun.holder.pending_acks

    def _nobody_is_stalled(self) -> None:
        """Whoever can take something has been dispatched all of its keys that no other consumer holds."""
        assert isinstance(self.dispatcher, KeyShared)
        if self.dispatcher.pending.is_blocked:
            return
        holders: dict[int, str] = {
            self.slots[at]: who for at, who in self.dispatched.items() if at in self.slots
        }
        for at, slot in self.slots.items():
            owner = self.dispatcher.owners.owner(slot)
            if owner is None or not self.left[at] or at in self.dispatched or not owner.is_ready:
                continue
            assert not self.dispatcher.sharing.out_of_order, f"{at} was not dispatched to {owner.name}"
            assert holders.get(slot, owner.name) != owner.name, f"{at} was not dispatched to {owner.name}"

    def backlog(self) -> int:
        """By the dispatcher's arithmetic; only when it knows."""
        dispatcher = self.dispatcher
        dispatcher.read.normalise()
        index = dispatcher.read.index
        if index is None:
            view = self._block(dispatcher.read.position)
            index = self.topic.index
            if view is not None:
                index = view.index_at(dispatcher.read.position.entry_id - view.first_entry)
        return dispatcher.read.backlog(self.topic.index, index)

    def check(self) -> None:
        """What the dispatcher counts is what the model holds."""
        dispatcher = self.dispatcher
        passed = [at for at in self.left if at < dispatcher.read.position]
        if dispatcher.read.ahead_known:
            assert self.backlog() == sum(bits.bit_count() for bits in self.left.values())
        assert dispatcher.read.unacked == sum(self.left[at].bit_count() for at in passed if self.left[at]), (
            "unacked"
        )
        for name, consumer in self.consumers.items():
            held = [at for at, who in self.dispatched.items() if who == name]
            assert consumer.unacked == sum(self.left[at].bit_count() for at in held)
            if self.is_shared:
                assert sorted(held) == [
                    Position(ledger, entry)
                    for ledger, entries in consumer.pending_acks.items()
                    for entry in entries
                ]
        if isinstance(dispatcher, MultiConsumer):
            self._limit_is_kept(dispatcher.pending)
        if self.is_keyed:
            self._nobody_is_stalled()
        if isinstance(dispatcher, Shared):
            self._shared_is_in_its_places()
        for made in passed:
            assert not self.left[made] or made in self.dispatched or self.is_shared

    def _limit_is_kept(self, pending: PendingAcks) -> None:
        """From the limit on nothing is dispatched, until half of it is left; only a batch may exceed it."""
        most = pending.unacked_max
        assert pending.unacked == sum(one.unacked for one in self.consumers.values()) < most + BATCH_MAX
        assert pending.is_blocked or pending.unacked < most
        assert not pending.is_blocked or 2 * pending.unacked > most


def _places(entries: EntrySet) -> list[Position]:
    return [Position(ledger_id, entry) for ledger_id, some in entries.items() for entry in some]
