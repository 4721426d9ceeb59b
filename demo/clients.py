"""Clients of the demo: one producer and several consumers of a shared subscription, with the stock Pulsar client.

They run in threads, because the stock client blocks; it calls callbacks in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pulsar

from quire.demo.proof import Multiset
from quire.runtime.errors import Unavailable

BATCH_MESSAGES_MAX = 1000
STALLED_S = 120.0
"""Seconds without progress after which a wait fails, because a message was lost."""
END_S = 10.0


class Progress:
    """Deadline that moves with progress, so that the demo does not fail on a slow machine."""

    def __init__(self) -> None:
        self._count = -1
        self._until = 0.0

    def has_stalled(self, count: int) -> bool:
        """Return whether `count` has been the same for `STALLED_S`."""
        now = time.monotonic()
        if count != self._count:
            self._count, self._until = count, now + STALLED_S
        return now > self._until


class Session:
    """A stock client, and the threads that use it, which end with it."""

    def __init__(self, client: pulsar.Client) -> None:
        self.client = client
        self.ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        """Run `work` in a thread. Errors of the client are ignored once the session ends."""

        def guarded() -> None:
            try:
                work(*arguments)
            except pulsar.PulsarException:
                if not self.ending.is_set():
                    raise

        thread = threading.Thread(target=guarded, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def close(self) -> None:
        """Close the client, which wakes blocked threads, and wait for them."""
        self.ending.set()
        with suppress(pulsar.PulsarException):
            self.client.close()
        for thread in self._threads:
            thread.join(END_S)


@contextmanager
def connect(service_url: str, log: Path) -> Iterator[Session]:
    """Connect a stock client that logs its warnings to a file."""
    session = Session(pulsar.Client(service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log))))
    try:
        yield session
    finally:
        session.close()


def check(key: str, line: bytes) -> int:
    """Return a message's CRC32, to be summed for the checksum of a `Multiset`. Spark computes the same sum."""
    return crc32(b"%s\0%s" % (key.encode(), line))


class Publisher:
    """Producer of (key, line) pairs in batches, in its own thread; it counts the receipts."""

    def __init__(self, session: Session, topic: str, texts: Sequence[tuple[str, bytes]]) -> None:
        self._texts = texts
        self._session = session
        self._producer = session.client.create_producer(
            topic,
            producer_name="demo",
            batching_enabled=True,
            batching_max_messages=BATCH_MESSAGES_MAX,
            block_if_queue_full=True,
            max_pending_messages=20_000,
            send_timeout_millis=0,  # `wait_for` decides when it has stalled
        )
        self._failed = ""
        self._receipts = [0, 0]
        self.published = Multiset()

    @property
    def acknowledged(self) -> Multiset:
        return Multiset(*self._receipts)

    def start(self) -> None:
        self._thread = self._session.run(self._run)

    def wait_for(self, receipts: int) -> None:
        """Wait for this number of receipts. Raises `Unavailable` if a message was refused, or progress has stalled."""
        progress = Progress()
        while (count := self._receipts[0]) < receipts:
            if self._failed:
                raise Unavailable(f"publishing failed: {self._failed}")
            if progress.has_stalled(count):
                raise Unavailable(
                    f"publishing stalled: {count:,} of {receipts:,} messages have receipts, and no further one came "
                    f"within {STALLED_S:.0f} s; run it with --keep and see the server's log"
                )
            time.sleep(0.005)

    def join(self) -> None:
        """Wait until all messages have receipts, and close the producer."""
        self.wait_for(len(self._texts))
        self._thread.join()
        self._producer.close()

    def _run(self) -> None:
        checksum, producer = 0, self._producer
        for key, line in self._texts:
            if self._session.ending.is_set():
                return
            share = check(key, line)
            checksum += share
            producer.send_async(line, self._receipt(share), partition_key=key)
        producer.flush()
        self.published = Multiset(len(self._texts), checksum)

    def _receipt(self, share: int) -> Any:
        def answered(result: pulsar.Result, _: Any) -> None:
            if result == pulsar.Result.Ok:
                self._receipts[0] += 1
                self._receipts[1] += share
            else:
                self._failed = str(result)

        return answered


class Consumers:
    """Consumers of one shared subscription, each in its own thread; redelivered messages are counted once."""

    def __init__(self, session: Session, topic: str, subscription: str, count: int) -> None:
        self._session = session
        self._seen: set[tuple[int, int, int]] = set()
        self._checksum = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.received = 0
        self._consumers = [
            session.client.subscribe(
                topic,
                subscription,
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=5000,
                batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(1000, -1, 50),
            )
            for _ in range(count)
        ]
        self._threads = [session.run(self._run, one) for one in self._consumers]

    @property
    def consumed(self) -> Multiset:
        return Multiset(len(self._seen), self._checksum)

    def wait_for(self, messages: int) -> None:
        """Wait for this number of distinct messages. Raises `Unavailable` if progress has stalled."""
        progress = Progress()
        while (count := len(self._seen)) < messages:
            if progress.has_stalled(count):
                raise Unavailable(
                    f"consuming stalled: {count:,} of {messages:,} messages were delivered, and no further one came "
                    f"within {STALLED_S:.0f} s; run it with --keep and see the server's log"
                )
            time.sleep(0.01)

    def close(self) -> None:
        """Stop the threads and close the consumers, which sends their pending acknowledgements."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for consumer in self._consumers:
            consumer.close()

    def _run(self, consumer: pulsar.Consumer) -> None:
        while not (self._stop.is_set() or self._session.ending.is_set()):
            batch = consumer.batch_receive()
            with self._lock:
                for message in batch:
                    self._take(message)
            for message in batch:
                consumer.acknowledge(message)

    def _take(self, message: pulsar.Message) -> None:
        self.received += 1
        at = message.message_id()
        place = (at.ledger_id(), at.entry_id(), at.batch_index())
        if place not in self._seen:
            self._seen.add(place)
            self._checksum += check(message.partition_key(), message.data())
