"""Loaded topic: its log, producers, subscriptions and life cycle.

The log stores the messages, and the subscriptions read them from it. The log is a `LedgerLog`, or a `NullLog` for a
non-persistent topic. The topic's other parts are public, and callers use them directly:

| part | subject |
|---|---|
| `applied` | policies in force |
| `producers` | admission of producers |
| `received` | counters of published messages |
| `round_state` | results of the last round of `lifecycle/upkeep` |

`lifecycle/states` contains the state machine, `lifecycle/idle` the unloading of unused topics.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence, Sized
from typing import Any, Final, Generic, TypeAlias, TypeGuard, TypeVar

from msgspec.structs import replace

from quire.metadata.records import BacklogQuota
from quire.runtime.errors import DiskFull, QuireError, Unavailable
from quire.runtime.weak import weakly
from quire.serving.model.ports import Position, SubscriptionsPort, was_unloaded
from quire.serving.model.rates import Received, Totals
from quire.serving.names import TopicName
from quire.serving.policy.applied import AppliedPolicies
from quire.serving.policy.resolved import TopicPolicies
from quire.serving.topic.lifecycle import quota
from quire.serving.topic.lifecycle.states import IN_USE, OPEN, TRANSITIONS, Event, State
from quire.serving.topic.log import LedgerLog
from quire.serving.topic.null_log import NullLog
from quire.serving.topic.producer_admission import ProducerAdmission
from quire.serving.topic.producers import EncryptionRequired, ProducerPort, Stage, TopicTerminated
from quire.serving.topic.publish import Publisher
from quire.serving.topic.runs import InFlightBlock, PublishRun
from quire.serving.topic.services import Services
from quire.wire.frame import Send

SERVING: Final = State.SERVING
"""Alias of `State.SERVING`, because an attribute look-up on the class would double the cost of `_takes_from`."""

LogT = TypeVar("LogT", bound=LedgerLog | NullLog, covariant=True)


class RoundState:
    """Results of the last checks of a loaded topic by `upkeep` and `idle`. Times are monotonic, in seconds."""

    __slots__ = (
        "checked_s",
        "compaction_began_s",
        "has_older",
        "idle_since_s",
        "in_use_s",
        "messages_in",
        "refusal",
        "services",
    )

    def __init__(self, services: Services) -> None:
        self.services = services
        self.in_use_s = self.idle_since_s = services.clock.monotonic()
        """`in_use_s`: time of the last check at which the policy for inactive topics kept the topic.

        `idle_since_s`: time of the last check at which the topic had a producer, a consumer or a new message.
        """
        self.messages_in = 0
        """Number of messages received up to `idle_since_s`."""
        self.checked_s = -math.inf
        """Time of the last call of `idle.is_unused` for this topic."""
        self.compaction_began_s = 0.0
        self.has_older: dict[BacklogQuota, bool] = {}
        """For each quota, whether the last round found a message in a backlog older than the quota's age limit."""
        self.refusal: tuple[type[QuireError], str] | None = None
        """Error type and text with which producers are rejected; None unless a backlog quota is exceeded."""


class Topic(Generic[LogT]):
    """Loaded topic. `on_lost` is called when the topic enters LOST; `totals` are the counters of the topic's bundle."""

    __slots__ = (
        "__weakref__",
        "_is_terminating",
        "_on_lost",
        "_turn",
        "applied",
        "log",
        "name",
        "producers",
        "received",
        "round_state",
        "state",
        "straight",
        "subscriptions",
        "topic_name",
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
        self.producers = ProducerAdmission(log, services.tasks, services.clock)
        self.round_state = RoundState(services)
        self.received = Received(totals)
        log.listen(self, weakly(self._lost))
        self._turn = services.turn
        self.state = State.LOADING
        self.straight: Publisher | None = None
        """Publisher to which a session may pass runs of SENDs directly.

        None unless the topic is SERVING and has no policy that applies to messages: a publish rate limit, a maximum
        size, encryption or deduplication.
        """
        self._is_terminating = False
        self._on_lost = on_lost

    # -- life cycle ------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """True once the topic accepts no clients and no messages."""
        return self.state not in OPEN

    @property
    def is_used(self) -> bool:
        """True while the topic has a producer or a consumer."""
        return bool(self.producers.all()) or any(one.consumers for one in self.subscriptions)

    @property
    def last_used_s(self) -> float:
        """Monotonic time, in seconds, of the last attach or detach of a client, change of subscriptions, or load."""
        of_topic = (self.producers.last_used_s, self.subscriptions.last_ended_s)
        return max(*of_topic, *(one.last_used_s for one in self.subscriptions))

    @property
    def has_messages(self) -> bool:
        """True if the log stores messages, acknowledged or not; for a `NullLog`, if any message was published."""
        return any(view.messages for view in self.log.segments())

    def enter(self, event: Event) -> None:
        self.state = TRANSITIONS.next(self.state, event)
        self._update_straight()

    def _update_straight(self) -> None:
        applied = self.applied
        limits_anything = applied.publish_limiter is not None or applied.policies.encryption_required
        is_open = self.state is SERVING and not limits_anything
        self.straight = self.log.publisher if is_open and is_plain(self.log) else None

    async def load(self) -> None:
        """Recover the log and start writing to it."""
        try:
            await self.log.begin()
            if self.is_closed:
                raise was_unloaded(self.name)
        except BaseException:
            self.log.abandon()
            raise
        self.enter(Event.LOADED)

    async def unload(self) -> None:
        """Close the topic and its producers and consumers. The clients look the topic up again."""
        try:
            await self.close()
        finally:
            self.drop()

    async def close(self) -> None:
        """End the log. Messages that arrive from now on are dropped without an answer.

        The producers are not closed before `drop`, when another broker can load the topic. A client whose producer is
        closed reconnects after 0.1 s, and doubles this delay after each failure.
        """
        if self.is_closed:
            return  # another broker took it over, or it was deleted, before this call
        self.enter(Event.CLOSE)
        self.producers.shut()
        self.subscriptions.close()
        await self.log.end()

    def drop(self, service_url: str = "") -> None:
        """Stop writing, drop unconfirmed messages, and close the producers and consumers.

        The clients reconnect to `service_url`, the topic's new broker, or look the topic up again if it is empty.
        """
        self._end(Event.DROP, service_url)

    def _lost(self) -> None:
        """Close the topic on this broker, because another broker owns it or this broker cannot write to it."""
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
        """Delete the topic: cursors, ledgers, archived objects and the record.

        A retry continues an interrupted deletion.

        `forget` removes the state that other components keep about the topic. The record is marked first and deleted
        last. So the name cannot be reused before everything is deleted, and the mark shows an interrupted deletion. An
        interrupted deletion can be continued without loading the log.
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
        """Terminate the topic permanently and return its last position. From now on it accepts no messages."""
        if not self.log.is_terminated:
            self._is_terminating = True
            self.producers.close_all()
            try:
                if not await self.log.publisher.flushed():
                    raise Unavailable(
                        f"topic {self.name} was closed before it was terminated; terminate it again"
                    )
                await self.log.meta_store.update(lambda record: replace(record, terminated=True))
            finally:
                self._is_terminating = False
            for subscription in self.subscriptions:
                subscription.tell_end()
        return self.log.last_confirmed

    # -- publishing ------------------------------------------------------------------------------------

    def apply(self, policies: TopicPolicies) -> None:
        """Apply changed policies, except deduplication, which requires a reload (`must_be_loaded_anew`)."""
        self.applied.apply(policies)
        self._update_straight()
        if policies.encryption_required:
            self.producers.close_unencrypted()
        self.subscriptions.policies_changed()
        self.enforce_quotas()

    def enforce_quotas(self) -> None:
        """Close or admit producers according to the backlog's current bytes and its age at the last maintenance round.

        Each admission of a producer calls this; otherwise a quota would take effect only at the next round of
        `lifecycle/upkeep`.
        """
        quotas, state = self.applied.policies.quotas, self.round_state
        marks = [one.mark_delete for one in self.subscriptions if one.is_durable] if quotas else []
        backlog_bytes = quota.backlog_bytes(self.log.segments(), min(marks)) if marks else 0
        was_open = state.refusal is None
        is_older = [state.has_older.get(one, False) for one in quotas]
        state.refusal = quota.refusal(quotas, backlog_bytes, is_older)
        if state.refusal is not None and was_open:
            self.producers.close_all()

    async def admit(self, producer: ProducerPort) -> None:
        """Admit a producer, or queue it. `ready` of its port is called when a queued producer is admitted.

        Raises `ProducerBusy`, `ProducerFenced`, `TooManyProducers`, `TopicTerminated`, `EncryptionRequired`,
        `BacklogHeld`, `BacklogExceeded`; `Unavailable` if the topic was closed; `DiskFull`.
        """
        if self.is_closed:
            raise Unavailable(f"topic {self.name} was closed; look it up and connect again")
        if self.log.is_terminated or self._is_terminating:
            raise TopicTerminated(f"topic {self.name} was terminated and accepts no more messages")
        if self.applied.policies.encryption_required and not producer.admission.is_encrypted:
            raise EncryptionRequired(
                f"Encryption is required in {self.name}: its namespace has the policy encryptionRequired; give the "
                "producer an encryption key"
            )
        self.enforce_quotas()
        if self.round_state.refusal is not None:
            kind, why = self.round_state.refusal
            raise kind(f"topic {self.name} accepts no messages now: {why}")
        if full := self.log.why_full():
            raise DiskFull(f"topic {self.name} accepts no messages now: {full}")
        await self.producers.admit(producer)

    def publish(self, producer: ProducerPort, run: PublishRun) -> None:
        """Publish a run of SENDs. The producer gets the receipts in order, once the messages are durable."""
        if not self._takes_from(producer):
            return
        log = self.log
        if log.dedup is None:
            log.publisher.publish(producer, run)
        else:
            log.dedup.publish(producer, run)

    def publish_chunk(self, producer: ProducerPort, send: Send) -> None:
        """Publish one SEND of a chunked message."""
        log = self.log
        if not self._takes_from(producer):
            return
        if log.dedup is not None and not log.dedup.admits_chunk(producer, send):
            return
        counts = None if send.message_count == 1 else [send.message_count]
        log.publisher.publish(producer, PublishRun.of(send.producer_id, [send.head], [send.entry], counts))

    def _takes_from(self, producer: ProducerPort) -> bool:
        """Return whether the messages of a producer are published; they are dropped while the topic is being closed.

        A client repeats messages that got no receipt at the broker that loads the topic next. Only an admitted producer
        may call this; the session drops the messages of a closed producer.
        """
        if self.state is not SERVING:
            return False
        stage = producer.admission.stage
        assert stage is Stage.INSIDE, f"a producer in stage {stage.value} publishes to {self.name}"
        return True

    @property
    def readers(self) -> Sized:
        return self.subscriptions.names

    def confirmed(self, flights: Sequence[InFlightBlock]) -> None:
        """Pass durable blocks to the log and the subscriptions (`publish.Listener`)."""
        subscriptions, turn = self.subscriptions, self._turn
        is_read = len(subscriptions) > 0
        self.log.keep(flights, at_hand=is_read)
        if flights[0].came_s < turn.slow_before_s:
            turn.report_slow(self.name, flights[0])
        if self.log.tracing is not None:
            self.log.tracing.published(self.name, flights, turn.now_s())
        if is_read:
            subscriptions.confirmed([(flight.block, flight.header) for flight in flights])


AnyTopic: TypeAlias = Topic[LedgerLog | NullLog]
PersistentTopic: TypeAlias = Topic[LedgerLog]


def is_plain(log: LedgerLog | NullLog) -> TypeGuard[LedgerLog]:
    """Return whether a log is persistent and does not deduplicate."""
    return isinstance(log, LedgerLog) and log.dedup is None


def is_persistent(topic: AnyTopic) -> TypeGuard[PersistentTopic]:
    """Return whether a topic is persistent."""
    return isinstance(topic.log, LedgerLog)


def must_be_loaded_anew(topic: AnyTopic, policies: TopicPolicies) -> bool:
    """Return whether the policies enable or disable deduplication, which takes effect only at a load."""
    return is_persistent(topic) and policies.deduplication != (topic.log.dedup is not None)
