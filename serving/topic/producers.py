"""Who may publish to a topic: names and access modes. No I/O.

| mode | is admitted when | else |
|---|---|---|
| Shared | nobody has exclusive access | busy |
| Exclusive | nobody publishes | fenced |
| WaitForExclusive | nobody publishes | waits, and gets access when the last one leaves |
| ExclusiveWithFencing | always | closes everybody else first |

A name is used by one producer at a time. A client that lost its connection comes back with a higher epoch, possibly
before the broker has noticed the loss: with a generated name it takes over, with a name that the user gave it is
busy until the old connection is gone, because that may as well be another process.

Exclusive access has a *topic epoch* that grows with each holder. A producer that reconnects names the epoch it
had, and is refused when somebody else had exclusive access in between. The epoch lives as long as the topic is
loaded; ordering across a reload rests on the segment list, not on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from quire.runtime.errors import QuireError
from quire.serving.ports import ProducerPort


class AccessMode(IntEnum):
    """The numbers of the protocol's ProducerAccessMode."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class ProducerBusy(QuireError):
    """The name is in use, or another producer has exclusive access."""


class ProducerFenced(QuireError):
    """Exclusive access cannot be had, or was lost to another producer."""


@dataclass(eq=False, slots=True)
class Admission:
    """One producer of a topic, and how it was let in."""

    port: ProducerPort
    mode: AccessMode = AccessMode.SHARED
    epoch: int = 0
    named_by_user: bool = True
    topic_epoch: int | None = None
    waiting: bool = False


class Producers:
    """The producers of one topic. `last_sequence_id` is asked when one that waited gets access."""

    def __init__(self, last_sequence_id: Callable[[str], int]) -> None:
        self._last_sequence_id = last_sequence_id
        self._admitted: dict[str, Admission] = {}
        self._waiting: deque[Admission] = deque()
        self._exclusive: Admission | None = None
        self._topic_epoch: int | None = None

    def __len__(self) -> int:
        return len(self._admitted)

    def all(self) -> list[Admission]:
        return [*self._admitted.values(), *self._waiting]

    def admit(self, wish: Admission) -> None:
        """Let a producer in, or let it wait (`wish.waiting`). Raises `ProducerBusy`, `ProducerFenced`."""
        self._replace_namesake(wish)
        if wish.mode is AccessMode.SHARED:
            if self._exclusive is not None or self._waiting:
                raise ProducerBusy("another producer has, or waits for, exclusive access to the topic")
            self._admitted[wish.port.name] = wish
            return
        self._check_epoch(wish)
        if wish.mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            self.close_all()
        elif self._admitted:
            if wish.mode is AccessMode.EXCLUSIVE:
                raise ProducerFenced("the topic has other producers, so exclusive access cannot be had")
            wish.waiting = True
            self._waiting.append(wish)
            return
        self._grant(wish)

    def _replace_namesake(self, wish: Admission) -> None:
        present = self._admitted.get(wish.port.name)
        if present is None:
            return
        if wish.named_by_user or wish.epoch <= present.epoch:
            raise ProducerBusy(f"producer {wish.port.name} is connected already")
        self._forget(present)

    def _check_epoch(self, wish: Admission) -> None:
        known = self._topic_epoch
        if wish.topic_epoch is not None and known is not None and wish.topic_epoch < known:
            raise ProducerFenced("another producer has had exclusive access meanwhile")

    def _grant(self, wish: Admission) -> None:
        held = wish.topic_epoch
        if held is None:
            held = 0 if self._topic_epoch is None else self._topic_epoch + 1
        self._topic_epoch = wish.topic_epoch = held
        wish.waiting = False
        self._exclusive = wish
        self._admitted[wish.port.name] = wish

    def leave(self, admission: Admission) -> None:
        """The producer is closed; whoever waits longest may follow. Nothing if it was not here."""
        if admission in self._waiting:
            self._waiting.remove(admission)
        elif self._admitted.get(admission.port.name) is admission:
            self._forget(admission)
            self._let_next_in()

    def _forget(self, admission: Admission) -> None:
        del self._admitted[admission.port.name]
        if self._exclusive is admission:
            self._exclusive = None

    def _let_next_in(self) -> None:
        if self._waiting and not self._admitted:
            admission = self._waiting.popleft()
            self._grant(admission)
            admission.port.ready(self._last_sequence_id(admission.port.name))

    def close_all(self) -> None:
        """Send CLOSE_PRODUCER to everybody: they will look the topic up again."""
        everybody = self.all()
        self._admitted.clear()
        self._waiting.clear()
        self._exclusive = None
        for admission in everybody:
            admission.port.close()
