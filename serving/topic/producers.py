"""Admission of producers to a topic: names, access modes and the topic epoch. Performs no I/O.

The access modes are those of [PIP-68](https://github.com/apache/pulsar/wiki/PIP-68%3A-Exclusive-Producer):

| mode | admitted if | otherwise |
|---|---|---|
| Shared | no producer has, or waits for, exclusive access | busy |
| Exclusive | no producer publishes or waits | fenced |
| WaitForExclusive | no producer publishes | waits until the last one has left |
| ExclusiveWithFencing | always: active producers are closed first, and waiting ones are fenced | |

| stage | meaning |
|---|---|
| outside | not admitted, or no longer in the topic |
| waiting | in the queue for exclusive access |
| granted | the only producer, while its topic epoch is being written |
| inside | may publish |

A name is used by one producer at a time. A client that lost its connection reconnects with a higher producer epoch,
possibly before the broker has noticed the loss. If its name is generated, it replaces the old producer, and the broker
calls `replaced` on the old producer's port. SENDs that still arrive on the old connection are dropped, because the
client sends these messages again. If the user chose the name, the name is busy until the old connection is closed,
because the new client may be another process.

The *topic epoch* counts the holders of exclusive access over the life of the topic. The topic's record contains it,
and a new holder is admitted only after its epoch was written there. So the epoch survives unloading and broker
failures. A producer that reconnects for exclusive access sends the epoch that it had:

| epoch sent | outcome |
|---|---|
| the topic's current one | admitted, with the same epoch: no other producer had exclusive access in between |
| an earlier one | fenced |
| a later one, which was never granted | ignored |

Methods return the producer that was granted exclusive access, if any. The shell then writes its `topic_epoch`
and calls `written` or `refused`. Methods call a port's `close`, `fenced` and `replaced` directly, because these do not
block.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, Protocol

from quire.runtime.errors import ConfigurationError, QuireError, TooMany
from quire.runtime.limits import PRODUCERS_PER_TOPIC_MAX, PRODUCERS_WAITING_MAX
from quire.runtime.transitions import Transitions
from quire.serving.model.statistics import PublisherStats
from quire.serving.policy.resolved import bounded
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer

NO_EPOCH = -1


class AccessMode(IntEnum):
    """Access mode of a producer, with the numbers of the protocol's ProducerAccessMode."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Stage(Enum):
    """Stage of a producer in its topic; the second table in the module's docstring explains them."""

    OUTSIDE = "outside"
    WAITING = "waiting"
    GRANTED = "granted"
    INSIDE = "inside"


class Event(Enum):
    LET_IN = "it has shared access"
    QUEUED = "it must wait for exclusive access"
    GRANTED = "it gets exclusive access"
    WRITTEN = "its topic epoch is durable"
    GONE = "it closed, was fenced or replaced, its epoch could not be written, or the topic closes"


TRANSITIONS: Final = Transitions(
    "a producer",
    {
        (Stage.OUTSIDE, Event.LET_IN): Stage.INSIDE,
        (Stage.OUTSIDE, Event.QUEUED): Stage.WAITING,
        (Stage.OUTSIDE, Event.GRANTED): Stage.GRANTED,
        (Stage.WAITING, Event.GRANTED): Stage.GRANTED,
        (Stage.GRANTED, Event.WRITTEN): Stage.INSIDE,
        (Stage.WAITING, Event.GONE): Stage.OUTSIDE,
        (Stage.GRANTED, Event.GONE): Stage.OUTSIDE,
        (Stage.INSIDE, Event.GONE): Stage.OUTSIDE,
    },
)


class ProducerBusy(QuireError):
    """Rejection of a producer whose name is in use, or because another producer has exclusive access."""

    server_error = pb.ProducerBusy


class TooManyProducers(TooMany):
    server_error = pb.ProducerBusy


class ProducerFenced(QuireError):
    """Rejection of a producer that cannot get exclusive access, or lost it to another producer."""

    server_error = pb.ProducerFenced


class TopicTerminated(ConfigurationError):
    """Permanent rejection of a producer, because the topic was terminated."""

    server_error = pb.TopicTerminatedError


class EncryptionRequired(QuireError):
    """Rejection of a producer that does not encrypt its messages, with the same error code as Pulsar's brokers."""

    server_error = pb.MetadataError


@dataclass(eq=False, slots=True)
class Admission:
    """Admission state of one producer. `epoch_before` is the topic epoch that the client sent, if any."""

    mode: AccessMode = AccessMode.SHARED
    epoch: int = 0
    named_by_user: bool = True
    epoch_before: int | None = None
    topic_epoch: int = NO_EPOCH
    stage: Stage = Stage.OUTSIDE
    is_encrypted: bool = False
    """True if the client has stated that it encrypts all messages."""

    def take(self, event: Event) -> None:
        self.stage = TRANSITIONS.next(self.stage, event)


class ProducerPort(Protocol):
    """Port to one producer's session, implemented by `session.producer_end.ProducerEnd`."""

    name: str
    admission: Admission

    def write(self, data: Buffer, /) -> None:
        """Queue bytes for the connection; they are sent at the end of the event loop iteration.

        Does nothing once it is closed.
        """
        ...

    def ready(self, last_sequence_id: int) -> None:
        """Notify the client of a producer that waited for exclusive access and now has it."""
        ...

    def fenced(self, error: QuireError) -> None:
        """Reject a producer that waited for exclusive access, because another producer took the access with fencing."""
        ...

    def replaced(self) -> None:
        """Drop later SENDs of this connection without an answer: the client reconnected over another connection."""
        ...

    def close(self, service_url: str = "") -> None:
        """Send CLOSE_PRODUCER: the client reconnects to `service_url`, or looks the topic up again if it is empty."""
        ...

    def stats(self) -> PublisherStats: ...


class Producers:
    """Producers of one topic; `epoch` is the topic epoch in the topic's record."""

    def __init__(self, epoch: int = NO_EPOCH) -> None:
        self.epoch = epoch
        self._here: dict[str, ProducerPort] = {}
        self._waiting: list[ProducerPort] = []
        self._exclusive: ProducerPort | None = None

    def __len__(self) -> int:
        return len(self._here)

    def all(self) -> list[ProducerPort]:
        return [*self._here.values(), *self._waiting]

    # -- admission -------------------------------------------------------------------------------------

    def admit(self, wish: ProducerPort, producers_max: int = 0) -> ProducerPort | None:
        """Admit a producer, queue it, or grant it exclusive access and return it.

        `wish.admission.stage` shows the result.

        `producers_max` is the limit of the policies, 0 for none. Raises `ProducerBusy`, `ProducerFenced` or
        `TooManyProducers`, and then changes nothing.
        """
        former = self._former(wish)
        self._check(wish, former)
        if wish.admission.mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            self._fence(wish.name, former)
            return self._grant(wish)
        most = bounded(producers_max, PRODUCERS_PER_TOPIC_MAX)
        if former is None and len(self._here) + len(self._waiting) >= most:
            raise TooManyProducers(
                "producers_per_topic",
                f"the topic has {most} producers, which is the limit: close some, or raise maxProducers",
            )
        if former is not None and former.admission.stage is Stage.WAITING:
            self._waiting[self._waiting.index(former)] = wish
            former.admission.take(Event.GONE)
            wish.admission.take(Event.QUEUED)
            former.replaced()
            return None
        if former is not None:
            self._forget(former)
            former.replaced()
        if wish.admission.mode is not AccessMode.SHARED and not self._here:
            return self._grant(wish)
        self._enter(wish)
        return None

    def _enter(self, wish: ProducerPort) -> None:
        if wish.admission.mode is AccessMode.SHARED:
            wish.admission.take(Event.LET_IN)
            self._here[wish.name] = wish
        else:
            wish.admission.take(Event.QUEUED)
            self._waiting.append(wish)

    def _former(self, wish: ProducerPort) -> ProducerPort | None:
        """Return the same producer on its former connection, if any.

        Raises `ProducerBusy` if another client uses the name.

        Producers that have or wait for exclusive access may share a name.
        """
        name, asked = wish.name, wish.admission
        present = self._here.get(name) or next((one for one in self._waiting if one.name == name), None)
        if present is None:
            return None
        had = present.admission
        if had.mode is asked.mode and not asked.named_by_user and asked.epoch > had.epoch:
            return present
        if asked.mode in (AccessMode.EXCLUSIVE_WITH_FENCING, AccessMode.WAIT_FOR_EXCLUSIVE):
            return None  # an active and a standby producer may share a name
        raise ProducerBusy(f"producer name {name} is already in use by a connected producer")

    def _check(self, wish: ProducerPort, former: ProducerPort | None) -> None:
        asked = wish.admission
        if asked.mode is AccessMode.SHARED:
            if self._exclusive is not None or (self._waiting and former is None):
                raise ProducerBusy("another producer has or waits for exclusive access to the topic")
            return
        if asked.mode is AccessMode.WAIT_FOR_EXCLUSIVE and len(self._waiting) >= PRODUCERS_WAITING_MAX:
            raise ProducerBusy("too many producers are waiting for exclusive access to the topic")
        if asked.epoch_before is not None and asked.epoch_before < self.epoch:
            raise ProducerFenced(
                "another producer has had exclusive access since this producer lost its connection"
            )
        if asked.mode is AccessMode.EXCLUSIVE:
            if len(self._here) > (former is not None):
                raise ProducerFenced("exclusive access is not possible: the topic has other producers")
            if self._waiting and former is None:
                raise ProducerFenced("another producer is waiting for exclusive access to the topic")

    def _grant(self, wish: ProducerPort) -> ProducerPort:
        is_back = wish.admission.epoch_before == self.epoch != NO_EPOCH
        wish.admission.topic_epoch = self.epoch if is_back else self.epoch + 1
        wish.admission.take(Event.GRANTED)
        self._exclusive = wish
        self._here[wish.name] = wish
        return wish

    def written(self, granted: ProducerPort) -> bool:
        """Record that a producer's epoch is durable.

        Return False if the producer was not admitted, because it was closed meanwhile.
        """
        self.epoch = max(self.epoch, granted.admission.topic_epoch)
        if granted.admission.stage is Stage.GRANTED:
            granted.admission.take(Event.WRITTEN)
        return granted.admission.stage is Stage.INSIDE

    def refused(self, granted: ProducerPort) -> ProducerPort | None:
        """Remove a producer whose epoch could not be written.

        Return the next waiting producer, now granted access, if any.
        """
        return self.leave(granted)

    # -- removal ---------------------------------------------------------------------------------------

    def leave(self, producer: ProducerPort) -> ProducerPort | None:
        """Remove a closed producer.

        If the topic is then free, grant access to the next waiting producer and return it.
        """
        if producer.admission.stage is Stage.WAITING:
            self._waiting.remove(producer)
            producer.admission.take(Event.GONE)
        elif producer.admission.stage is not Stage.OUTSIDE:
            self._forget(producer)
            if self._waiting and not self._here:
                return self._grant(self._waiting.pop(0))
        return None

    def _forget(self, producer: ProducerPort) -> None:
        producer.admission.take(Event.GONE)
        del self._here[producer.name]
        if self._exclusive is producer:
            self._exclusive = None

    def _fence(self, name: str, former: ProducerPort | None) -> None:
        waiting = list(self._waiting)
        for producer in waiting:
            self.leave(producer)
        for producer in list(self._here.values()):
            self._forget(producer)
            if producer is former:
                producer.replaced()
            else:
                producer.close()
        for producer in waiting:
            producer.fenced(ProducerFenced(f"producer {name} took exclusive access to the topic"))

    def close_all(self, service_url: str = "") -> None:
        """Send CLOSE_PRODUCER to all producers.

        Their clients reconnect to `service_url`, or look the topic up if it is empty.
        """
        everybody = self.all()
        self._here.clear()
        self._waiting.clear()
        self._exclusive = None
        for producer in everybody:
            producer.admission.take(Event.GONE)
            producer.close(service_url)
