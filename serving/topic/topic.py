"""A loaded topic: who publishes to it and who reads it, and how it ends.

Its messages are its log's, which is also what its subscriptions read: a `LedgerLog`, or a `NullLog`, which keeps
nothing. Beside it the topic has parts that know one thing each, and who wants one of them asks it by itself:

    applied     the policies that hold now             upkeep      what they do to it when nobody asks
    producers   who may publish                        idle        when it is unloaded though nobody asked
    received    how much came in

Its life is in `lifecycle/states`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Sized
from typing import Any, Final, Generic, TypeAlias, TypeGuard, TypeVar

from msgspec.structs import replace

from quire.runtime.errors import DiskFull, Unavailable
from quire.runtime.weak import weakly
from quire.serving.model.ports import Position, SubscriptionsPort, was_unloaded
from quire.serving.model.rates import Received, Totals
from quire.serving.names import TopicName
from quire.serving.policy.applied import AppliedPolicies
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.topic.entrance import Entrance
from quire.serving.topic.lifecycle.idle import IdleUnload
from quire.serving.topic.lifecycle.states import IN_USE, OPEN, TRANSITIONS, Event, State
from quire.serving.topic.lifecycle.upkeep import Upkeep
from quire.serving.topic.log import LedgerLog
from quire.serving.topic.null_log import NullLog
from quire.serving.topic.producers import ProducerPort, Stage, TopicTerminated
from quire.serving.topic.publish import Publisher
from quire.serving.topic.runs import InFlightBlock, PublishRun
from quire.serving.topic.services import Services
from quire.wire.frame import Send

SERVING: Final = State.SERVING
"""To look it up at the class costs as much as the rest of `_takes_from`."""

LogT = TypeVar("LogT", bound=LedgerLog | NullLog, covariant=True)


class Topic(Generic[LogT]):
    """`on_lost` is called when another broker took it over; `totals` are those of its bundle."""

    __slots__ = (
        "__weakref__",
        "_is_terminating",
        "_on_lost",
        "_turn",
        "applied",
        "idle",
        "log",
        "name",
        "producers",
        "received",
        "state",
        "straight",
        "subscriptions",
        "topic_name",
        "upkeep",
    )

    def __init__(
        self,
        name: TopicName,
        services: Services,
        applied: AppliedPolicies,
        log: LogT,
        subscriptions: SubscriptionsPort,
        totals: Totals,
        on_lost: Callable[[Topic[Any]], None],
    ) -> None:
        self.topic_name = name
        self.name = log.name
        self.applied = applied
        self.log = log
        self.subscriptions = subscriptions
        self.producers = Entrance(log, services.tasks)
        self.upkeep = Upkeep(services.clock)
        self.idle = IdleUnload(services)
        self.received = Received(totals)
        log.listen(self, weakly(self._lost))
        self._turn = services.turn
        self.state = State.LOADING
        self.straight: Publisher | None = None
        """Where runs of SENDs may go without anybody else looking at them: while it serves, and neither limits what is
        published nor remembers what was."""
        self._is_terminating = False
        self._on_lost = on_lost

    # -- life ------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Nobody gets in any more, and nothing is taken."""
        return self.state not in OPEN

    @property
    def is_used(self) -> bool:
        """Somebody publishes or consumes."""
        return bool(self.producers.all()) or any(one.consumers for one in self.subscriptions)

    @property
    def has_messages(self) -> bool:
        """It keeps some, acknowledged or not; some passed through, where none are kept."""
        return any(view.messages for view in self.log.segments())

    def enter(self, event: Event) -> None:
        self.state = TRANSITIONS.next(self.state, event)
        self._look_for_straight_way()

    def _look_for_straight_way(self) -> None:
        is_open = self.state is SERVING and self.applied.publish_limiter is None
        self.straight = self.log.publisher if is_open and is_plain(self.log) else None

    async def load(self) -> None:
        """Take up the log where it ended, and write to it."""
        try:
            await self.log.begin()
            if self.is_closed:
                raise was_unloaded(self.name)
        except BaseException:
            self.log.abandon()
            raise
        self.enter(Event.LOADED)

    async def unload(self) -> None:
        """Close it and let everybody go. The clients will look the topic up again."""
        try:
            await self.close()
        finally:
            self.drop()

    async def close(self) -> None:
        """End the log. What comes from now on is not taken.

        The producers stay until `drop`: a client that is let go comes back after a tenth of a second, twice that when
        it comes too early, and should find the topic where it goes.
        """
        if self.is_closed:
            return  # it was lost, or deleted, before its turn came
        self.enter(Event.CLOSE)
        self.producers.shut()
        self.subscriptions.close()
        await self.log.end()

    def drop(self, service_url: str = "") -> None:
        """Write nothing more, and forget what is not confirmed: its bytes count no longer.

        The clients are sent to `service_url`, where the topic is now, or to look it up.
        """
        self._end(Event.DROP, service_url)

    def _lost(self) -> None:
        """Another broker owns the topic: whoever met it, nothing of this incarnation goes on."""
        self._end(Event.LOST)
        self._on_lost(self)

    def _end(self, event: Event, service_url: str = "") -> None:
        if self.state in IN_USE:
            self.enter(event)
            self.log.abandon()
            self._send_away(service_url)

    def _send_away(self, service_url: str = "") -> None:
        if self.applied.publish_limiter is not None:
            self.applied.publish_limiter.open()
        self.producers.close_all(service_url)
        self.subscriptions.close()

    async def delete(self, forget: Callable[[], Awaitable[None]]) -> None:
        """Remove everything: cursors, ledgers, archived objects, the record. Tried again, it goes on.

        `forget` removes what others keep of the topic. The record, which is marked first, goes last: as long as
        anything is left nobody has the name, and whoever meets the topic goes on. A topic whose deletion was
        interrupted is not loaded for that.
        """
        self.enter(Event.DELETE)
        self._send_away()
        try:
            try:
                await self.log.mark_deleted()
            finally:
                self.log.abandon()
            await self.subscriptions.forget()
            await forget()
            await self.log.delete()
        finally:
            self.enter(Event.DELETED)

    async def terminate(self: Topic[LedgerLog]) -> Position:
        """No more messages, for good. Returns the last position; nothing is taken from the first moment on."""
        if not self.log.is_terminated:
            self._is_terminating = True
            self.producers.close_all()
            try:
                if not await self.log.publisher.flushed():
                    raise Unavailable(f"topic {self.name} was closed meanwhile; terminate it again")
                await self.log.meta_store.update(lambda record: replace(record, terminated=True))
            finally:
                self._is_terminating = False
            for subscription in self.subscriptions:
                subscription.tell_end()
        return self.log.last_confirmed

    # -- publishing ------------------------------------------------------------------------------------

    def apply(self, policies: TopicPolicies) -> None:
        """Other policies hold from now on; but for deduplication, which needs a load."""
        self.applied.apply(policies)
        self._look_for_straight_way()
        self.subscriptions.policies_changed()
        self.upkeep.heed_quotas(self)

    async def admit(self, producer: ProducerPort) -> None:
        """Let a producer in, or let it wait until its port is told `ready`.

        Raises `ProducerBusy`, `ProducerFenced`, `TooManyProducers`, `TopicTerminated`, `BacklogHeld`,
        `BacklogExceeded`; `Unavailable` when the topic was closed; `DiskFull`.
        """
        if self.is_closed:
            raise Unavailable(f"topic {self.name} was closed meanwhile")
        if self.log.is_terminated or self._is_terminating:
            raise TopicTerminated(f"topic {self.name} was terminated: it takes no more messages")
        self.upkeep.heed_quotas(self)
        if self.upkeep.refusal is not None:
            kind, why = self.upkeep.refusal
            raise kind(f"topic {self.name} takes no messages now: {why}")
        if full := self.log.why_full():
            raise DiskFull(f"topic {self.name} takes no messages now: {full}")
        await self.producers.admit(producer)

    def publish(self, producer: ProducerPort, run: PublishRun) -> None:
        """Take a run of SENDs; the producer gets their receipts in order once they are durable."""
        if not self._takes_from(producer):
            return
        log = self.log
        if log.dedup is None:
            log.publisher.publish(producer, run)
        else:
            log.dedup.publish(producer, run)

    def publish_chunk(self, producer: ProducerPort, send: Send) -> None:
        """Take one SEND of a chunked message."""
        log = self.log
        if not self._takes_from(producer):
            return
        if log.dedup is not None and not log.dedup.admits_chunk(producer, send):
            return
        counts = None if send.message_count == 1 else [send.message_count]
        log.publisher.publish(producer, PublishRun.of(send.producer_id, [send.head], [send.entry], counts))

    def _takes_from(self, producer: ProducerPort) -> bool:
        """Whether what a producer sent is published now: not while the topic is being closed, for then its client will
        send that again where the topic is next.

        Nobody outside a topic publishes to it: its session drops what it holds for one that was sent away.
        """
        if self.state is not SERVING:
            return False
        stage = producer.admission.stage
        assert stage is Stage.INSIDE, f"a producer that is {stage.value} publishes to {self.name}"
        return True

    @property
    def readers(self) -> Sized:
        return self.subscriptions.names

    def confirmed(self, flights: Sequence[InFlightBlock]) -> None:
        """As `publish.Listener`: keep the blocks, tell the subscriptions."""
        subscriptions, turn = self.subscriptions, self._turn
        is_read = len(subscriptions) > 0
        self.log.keep(flights, at_hand=is_read)
        if flights[0].came_s < turn.slow_before_s:
            turn.tell_slow(self.name, flights[0])
        if self.log.tracing is not None:
            self.log.tracing.published(self.name, flights, turn.now_s())
        if is_read:
            subscriptions.confirmed([(flight.block, flight.header) for flight in flights])


AnyTopic: TypeAlias = Topic[LedgerLog | NullLog]
PersistentTopic: TypeAlias = Topic[LedgerLog]


def is_plain(log: LedgerLog | NullLog) -> TypeGuard[LedgerLog]:
    """It keeps messages, and any: what was sent twice as well."""
    return isinstance(log, LedgerLog) and log.dedup is None


def is_persistent(topic: AnyTopic) -> TypeGuard[PersistentTopic]:
    """It keeps messages."""
    return isinstance(topic.log, LedgerLog)


def must_be_loaded_anew(topic: AnyTopic, policies: TopicPolicies) -> bool:
    """Deduplication is turned on and off by a load, which learns what was sent before."""
    return is_persistent(topic) and policies.deduplication != (topic.log.dedup is not None)
