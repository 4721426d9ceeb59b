"""Clients of the demo: one producer and several consumers of a shared subscription, with the stock Pulsar client.

They run in threads, because the stock client blocks; it calls callbacks in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pulsar

from quire.demo.proof import Multiset
from quire.runtime.errors import Unavailable

BATCH_MESSAGES_MAX = 1000
WAIT_S = 120.0
"""Timeout in seconds of each wait, longer than the whole demo takes: if it expires, a message was lost."""


@contextmanager
def connect(service_url: str, log: Path) -> Iterator[pulsar.Client]:
    """Connect a stock client that logs its warnings to a file."""
    client = pulsar.Client(service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log)))
    try:
        yield client
    finally:
        client.close()


def check(key: str, line: bytes) -> int:
    """Return a message's CRC32, to be summed for the checksum of a `Multiset`. Spark computes the same sum."""
    return crc32(b"%s\0%s" % (key.encode(), line))


class Publisher:
    """Producer of (key, line) pairs in batches, in its own thread; it counts the receipts."""

    def __init__(self, client: pulsar.Client, topic: str, texts: Sequence[tuple[str, bytes]]) -> None:
        self._texts = texts
        self._producer = client.create_producer(
            topic,
            producer_name="demo",
            batching_enabled=True,
            batching_max_messages=BATCH_MESSAGES_MAX,
            block_if_queue_full=True,
            max_pending_messages=20_000,
            send_timeout_millis=60_000,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed = ""
        self._receipts = [0, 0]
        self.published = Multiset()

    @property
    def acknowledged(self) -> Multiset:
        return Multiset(*self._receipts)

    def start(self) -> None:
        self._thread.start()

    def wait_for(self, receipts: int) -> None:
        """Wait for this number of receipts. Raises `Unavailable` if a message was refused, or after `WAIT_S`."""
        until = time.monotonic() + WAIT_S
        while self._receipts[0] < receipts:
            if self._failed or time.monotonic() > until:
                raise Unavailable(f"publishing failed: {self._failed or 'receipts are missing'}")
            time.sleep(0.005)

    def join(self) -> None:
        """Wait until all messages have receipts, and close the producer."""
        self._thread.join()
        self.wait_for(len(self._texts))
        self._producer.close()

    def _run(self) -> None:
        checksum, producer = 0, self._producer
        for key, line in self._texts:
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

    def __init__(self, client: pulsar.Client, topic: str, subscription: str, count: int) -> None:
        self._seen: set[tuple[int, int, int]] = set()
        self._checksum = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.received = 0
        self._consumers = [
            client.subscribe(
                topic,
                subscription,
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=5000,
                batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(1000, -1, 50),
            )
            for _ in range(count)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(one,), daemon=True) for one in self._consumers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def consumed(self) -> Multiset:
        return Multiset(len(self._seen), self._checksum)

    def wait_for(self, messages: int) -> None:
        """Wait for this number of distinct messages. Raises `Unavailable` after `WAIT_S`."""
        until = time.monotonic() + WAIT_S
        while len(self._seen) < messages:
            if time.monotonic() > until:
                raise Unavailable(f"only {len(self._seen):,} of {messages:,} messages were delivered")
            time.sleep(0.01)

    def close(self) -> None:
        """Stop the threads and close the consumers, which sends their pending acknowledgements."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for consumer in self._consumers:
            consumer.close()

    def _run(self, consumer: pulsar.Consumer) -> None:
        while not self._stop.is_set():
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
