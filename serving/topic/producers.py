"""Who may publish to a topic: names, access modes and the topic epoch. No I/O.

| mode | comes in when | else |
|---|---|---|
| Shared | nobody has, or waits for, exclusive access | busy |
| Exclusive | nobody publishes or waits | fenced |
| WaitForExclusive | nobody publishes | waits, and follows when the last one leaves |
| ExclusiveWithFencing | always: everybody else is sent away first, and who waits is fenced | |

| stage | is |
|---|---|
| outside | not let in, not here any more |
| waiting | in the queue for exclusive access |
| granted | alone here, while its epoch is being written down |
| inside | may publish, and nobody else |

A name is used by one producer at a time. A client that lost its connection comes back with a higher epoch of its own,
possibly before the broker has noticed the loss: with a generated name it takes its old place, and its old connection is
told so (what it still reads of that must not come after what the client sends anew); with a name that the user gave it
is busy until the old connection is gone, because that may as well be another process.

The *topic epoch* counts the holders of exclusive access over the life of the topic. It stands in the topic's record,
and a new holder is answered only when its own is written there; so it outlives unloading and brokers. A producer that
reconnects names the epoch it had. If it still is the topic's, nobody else had exclusive access in between and nothing
is written; if a later one came, it is fenced. An epoch that this topic never gave counts as none.

Effects are what the methods answer: a producer that was granted access, for whom the shell now writes `topic_epoch`
and says `written` or `refused`. Ports are told `close`, `fenced` and `replaced` at once, because no answer is awaited
from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, Protocol

from quire.runtime.errors import ConfigurationError, QuireError, TooMany
from quire.runtime.limits import PRODUCERS_PER_TOPIC_MAX, PRODUCERS_WAITING_MAX
from quire.runtime.transitions import Transitions
from quire.serving.policy.resolved import bounded
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer

NO_EPOCH = -1


class AccessMode(IntEnum):
    """The numbers of the protocol's ProducerAccessMode."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Stage(Enum):
    """What a producer is to the topic, see the second table; `TRANSITIONS` has what follows."""

    OUTSIDE = "outside"
    WAITING = "waiting"
    GRANTED = "granted"
    INSIDE = "inside"


class Event(Enum):
    LET_IN = "it shares the topic with the others"
    QUEUED = "it has to wait for exclusive access"
    GRANTED = "it has exclusive access, at once or in its turn"
    WRITTEN = "its topic epoch is durable"
    GONE = "it left, was fenced or replaced, its epoch was refused, or the topic closes"


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
    """The name is in use, or another producer has exclusive access."""

    server_error = pb.ProducerBusy


class TooManyProducers(TooMany):
    server_error = pb.ProducerBusy


class ProducerFenced(QuireError):
    """Exclusive access cannot be had, or was lost to another producer."""

    server_error = pb.ProducerFenced


class TopicTerminated(ConfigurationError):
    """Nobody may publish to the topic any more."""

    server_error = pb.TopicTerminatedError


@dataclass(eq=False, slots=True)
class Admission:
    """How one producer was let in. `epoch_before` is the topic epoch that the client names."""

    mode: AccessMode = AccessMode.SHARED
    epoch: int = 0
    named_by_user: bool = True
    epoch_before: int | None = None
    topic_epoch: int = NO_EPOCH
    stage: Stage = Stage.OUTSIDE

    def take(self, event: Event) -> None:
        self.stage = TRANSITIONS.next(self.stage, event)


class ProducerPort(Protocol):
    """The session's end of one producer: what its topic does to it."""

    name: str
    admission: Admission

    def write(self, data: Buffer, /) -> None:
        """Queue bytes for the connection; they leave with all others of the turn. Nothing once it is closed."""
        ...

    def ready(self, last_sequence_id: int) -> None:
        """It waited for exclusive access and has it now."""
        ...

    def fenced(self, error: QuireError) -> None:
        """It waited for exclusive access, and another producer took that for good."""
        ...

    def replaced(self) -> None:
        """Its client came back over another connection: what still comes from this one is dropped, without a word."""
        ...

    def close(self, service_url: str = "") -> None:
        """Send CLOSE_PRODUCER: the client will begin again at `service_url`, or look the topic up."""
        ...


class Producers:
    """The producers of one topic, whose record has `epoch`."""

    def __init__(self, epoch: int = NO_EPOCH) -> None:
        self.epoch = epoch
        self._here: dict[str, ProducerPort] = {}
        self._waiting: list[ProducerPort] = []
        self._exclusive: ProducerPort | None = None

    def __len__(self) -> int:
        return len(self._here)

    def all(self) -> list[ProducerPort]:
        return [*self._here.values(), *self._waiting]

    # -- coming in -------------------------------------------------------------------------------------

    def admit(self, wish: ProducerPort, producers_max: int = 0) -> ProducerPort | None:
        """Let a producer in, let it wait, or grant it access and answer it. See `wish.admission.stage`.

        `producers_max` is the policy's, 0 for none. Raises `ProducerBusy`, `ProducerFenced`, `TooManyProducers`; then
        nothing has changed.
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
                f"the topic has {most} producers, and takes no more: close some, or raise maxProducers",
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
        """The same producer over a connection that is lost. Raises `ProducerBusy` for another one of its name."""
        name, asked = wish.name, wish.admission
        present = self._here.get(name) or next((one for one in self._waiting if one.name == name), None)
        if present is None:
            return None
        had = present.admission
        if had.mode is asked.mode and not asked.named_by_user and asked.epoch > had.epoch:
            return present
        if asked.mode in (AccessMode.EXCLUSIVE_WITH_FENCING, AccessMode.WAIT_FOR_EXCLUSIVE):
            return None  # two that relieve each other may well share a name
        raise ProducerBusy(f"producer {name} is connected already")

    def _check(self, wish: ProducerPort, former: ProducerPort | None) -> None:
        asked = wish.admission
        if asked.mode is AccessMode.SHARED:
            if self._exclusive is not None or (self._waiting and former is None):
                raise ProducerBusy("another producer has, or waits for, exclusive access to the topic")
            return
        if asked.mode is AccessMode.WAIT_FOR_EXCLUSIVE and len(self._waiting) >= PRODUCERS_WAITING_MAX:
            raise ProducerBusy("too many producers wait for exclusive access to the topic already")
        if asked.epoch_before is not None and asked.epoch_before < self.epoch:
            raise ProducerFenced("another producer has had exclusive access meanwhile")
        if asked.mode is AccessMode.EXCLUSIVE:
            if len(self._here) > (former is not None):
                raise ProducerFenced("the topic has other producers, so exclusive access cannot be had")
            if self._waiting and former is None:
                raise ProducerFenced("another producer waits for exclusive access to the topic")

    def _grant(self, wish: ProducerPort) -> ProducerPort:
        is_back = wish.admission.epoch_before == self.epoch != NO_EPOCH
        wish.admission.topic_epoch = self.epoch if is_back else self.epoch + 1
        wish.admission.take(Event.GRANTED)
        self._exclusive = wish
        self._here[wish.name] = wish
        return wish

    def written(self, granted: ProducerPort) -> bool:
        """Its epoch is durable. False when it is not here any more, so that it must not be told it has access."""
        self.epoch = max(self.epoch, granted.admission.topic_epoch)
        if granted.admission.stage is Stage.GRANTED:
            granted.admission.take(Event.WRITTEN)
        return granted.admission.stage is Stage.INSIDE

    def refused(self, granted: ProducerPort) -> ProducerPort | None:
        """Its epoch could not be written. Answers whose turn it is now."""
        return self.leave(granted)

    # -- leaving ---------------------------------------------------------------------------------------

    def leave(self, producer: ProducerPort) -> ProducerPort | None:
        """The producer is closed. Answers whose turn it is now, granted access. Nothing if it was not here."""
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
        """Send CLOSE_PRODUCER to everybody: they will go to `service_url`, or look the topic up again."""
        everybody = self.all()
        self._here.clear()
        self._waiting.clear()
        self._exclusive = None
        for producer in everybody:
            producer.admission.take(Event.GONE)
            producer.close(service_url)
