"""How producers come into a topic and leave it: the shell around `producers`, which decides.

What it adds is the one thing that takes time: who is granted exclusive access is let in when its epoch is written
down. One that asked hears of a failure as the error of its request; one that waited is sent away, to come again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from quire.runtime.errors import QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.serving.topic.producers import ProducerPort, Producers

if TYPE_CHECKING:
    from quire.serving.topic.log import LedgerLog
    from quire.serving.topic.null_log import NullLog

_log = logging.getLogger(__name__)


class Entrance:
    """The producers of one topic, whose `log` makes its epoch durable, remembers what they sent, and has policies."""

    def __init__(self, log: LedgerLog | NullLog, tasks: Tasks) -> None:
        self._log = log
        self._producers = Producers(log.topic_epoch)
        self._tasks = tasks
        self._is_open = True

    def all(self) -> list[ProducerPort]:
        return self._producers.all()

    def last_sequence_id(self, producer: str) -> int:
        """The highest that was accepted of this producer name; -1 for none, and where that is not remembered."""
        dedup = self._log.dedup
        return -1 if dedup is None else dedup.last_sequence_id(producer)

    async def admit(self, producer: ProducerPort) -> None:
        """Let a producer in, or let it wait until it is told `ready`.

        Raises as `Producers.admit`, `Unavailable`, and what writing the epoch fails with.
        """
        granted = self._producers.admit(producer, self._log.policies.producers_max)
        if granted is not None:
            await self._grant(granted)

    def leave(self, producer: ProducerPort) -> None:
        """The producer is closed; whoever waits longest for exclusive access follows."""
        self._follow(self._producers.leave(producer))

    def shut(self) -> None:
        """Nobody who waits is let in any more: the topic is being handed over."""
        self._is_open = False

    def close_all(self, service_url: str = "") -> None:
        """Send everybody away: to `service_url`, or to look the topic up again."""
        self._producers.close_all(service_url)

    def _follow(self, granted: ProducerPort | None) -> None:
        if granted is not None and self._is_open:
            self._tasks.start(self._let_in(granted), f"exclusive access to {self._log.name}")

    async def _let_in(self, granted: ProducerPort) -> None:
        try:
            await self._grant(granted)
        except QuireError as error:
            _log.warning("%s: exclusive access could not be given: %s", self._log.name, error)
            granted.close()
        else:
            granted.ready(self.last_sequence_id(granted.name))

    async def _grant(self, granted: ProducerPort) -> None:
        """Write down the epoch, if it is a new one. Raises unless the producer is inside then."""
        try:
            if granted.admission.topic_epoch != self._producers.epoch:
                await self._log.write_epoch(granted.admission.topic_epoch)
        except BaseException:
            self._follow(self._producers.refused(granted))
            raise
        if not self._producers.written(granted):
            raise Unavailable(f"topic {self._log.name} has sent the producer away meanwhile")
