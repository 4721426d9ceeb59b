"""Admission of a topic's producers: the shell of `producers`, which decides which producers are admitted.

The shell writes the topic epoch to the topic's record: a producer with exclusive access is admitted once its epoch is
durable. If the write fails, a client that waits for the answer to its PRODUCER command gets the error, and a producer
that waited in the queue is closed.
"""

from __future__ import annotations

import logging

from quire.runtime.clock import Clock
from quire.runtime.errors import QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.serving.topic.log import LedgerLog
from quire.serving.topic.null_log import NullLog
from quire.serving.topic.producers import ProducerPort, Producers

_log = logging.getLogger(__name__)


class ProducerAdmission:
    """Producers of one topic. `log` writes epochs, returns last sequence ids, and has the topic's policies."""

    def __init__(self, log: LedgerLog | NullLog, tasks: Tasks, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self.last_used_s = clock.monotonic()
        """Monotonic time, in seconds, at which a producer was last added or removed.

        Initially the time of the topic's load.
        """
        self._producers = Producers(log.topic_epoch)
        self._tasks = tasks
        self._is_open = True

    def all(self) -> list[ProducerPort]:
        return self._producers.all()

    def last_sequence_id(self, producer: str) -> int:
        """Return the highest sequence id of this producer name; -1 if there is none, or deduplication is disabled."""
        dedup = self._log.dedup
        return -1 if dedup is None else dedup.last_sequence_id(producer)

    async def admit(self, producer: ProducerPort) -> None:
        """Admit a producer, or queue it. `ready` of its port is called when a queued producer is admitted.

        Raises the errors of `Producers.admit`, `Unavailable`, and the error of a failed write of the epoch.
        """
        granted = self._producers.admit(producer, self._log.policies.producers_max)
        self.last_used_s = self._clock.monotonic()
        if granted is not None:
            await self._grant(granted)

    def leave(self, producer: ProducerPort) -> None:
        """Remove a closed producer, and admit the one that has waited longest for exclusive access."""
        self.last_used_s = self._clock.monotonic()
        self._follow(self._producers.leave(producer))

    def shut(self) -> None:
        """Stop admitting producers from the queue, because the topic is being handed over."""
        self._is_open = False

    def close_all(self, service_url: str = "") -> None:
        """Close all producers. Their clients reconnect to `service_url`, or look the topic up again if it is empty."""
        if self.all():
            self.last_used_s = self._clock.monotonic()
        self._producers.close_all(service_url)

    def close_unencrypted(self) -> None:
        """Close the producers that do not encrypt their messages; their clients reconnect and are rejected."""
        for producer in self.all():
            if not producer.admission.is_encrypted:
                self.leave(producer)
                producer.close()

    def _follow(self, granted: ProducerPort | None) -> None:
        if granted is not None and self._is_open:
            self._tasks.start(self._admit_next(granted), f"exclusive access to {self._log.name}")

    async def _admit_next(self, granted: ProducerPort) -> None:
        try:
            await self._grant(granted)
        except QuireError as error:
            _log.warning("cannot grant exclusive access: topic=%s error=%s", self._log.name, error)
            granted.close()
        else:
            granted.ready(self.last_sequence_id(granted.name))

    async def _grant(self, granted: ProducerPort) -> None:
        """Write the new topic epoch, then admit the producer. Raises an error if the producer was not admitted."""
        try:
            if granted.admission.topic_epoch != self._producers.epoch:
                await self._log.write_epoch(granted.admission.topic_epoch)
        except BaseException:
            self._follow(self._producers.refused(granted))
            raise
        if not self._producers.written(granted):
            raise Unavailable(
                f"topic {self._log.name} closed the producer before it was admitted; connect again"
            )
