"""Load of the chaos tests, and the checks of its results.

- `Published` records which messages of a producer were acknowledged, and which were in doubt at a kill. The producer
  is a stock client's (`StockStream`) or a raw connection (`RawStream`).
- `Log` contains the messages that readers found in one topic, in order.
- `Follower` consumes one subscription over raw connections, and requests a response to each acknowledgement.

The invariants are checked in `Published.check`, `Log.extend`, `Follower._take` and `Follower.check_backlog`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pulsar

from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import OutgoingMessage, encode_one
from tests.history.operations import F, Message, Outcome
from tests.history.operations import Position as Place

from .raw import Delivered, Position, Raw

PAYLOAD_BYTES = 400
Connect = Callable[[], Awaitable[Raw]]
"""Function that connects to the current process of the server."""
Record = Callable[..., None]
"""Function that records an operation: `tests.history.operations.Recorder`, or `unrecorded`."""


def unrecorded(*_: Any, **__: Any) -> None:
    """Record nothing."""


def payload_of(number: int) -> bytes:
    """Return a payload with the message's number, and bytes derived from it, so that mixed-up bytes are detected."""
    return b"%d " % number + b"%x" % (number * 2654435761 % 16) * PAYLOAD_BYTES


def number_of(payload: bytes) -> int:
    """Return the number in a payload. Raises `AssertionError` unless `payload_of` created the payload."""
    number = int(payload.split(b" ", 1)[0])
    assert payload == payload_of(number), f"message {number} has other bytes than were sent"
    return number


class Published:
    """Messages of one producer, and their receipts."""

    def __init__(self, topic: str, *, numbered: bool = False) -> None:
        self.topic = topic
        self.never_twice = numbered
        """True if messages are deduplicated: the producer is named, and its namespace drops duplicates."""
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.in_doubt: Counter[int] = Counter()
        """Number of kills at which a message had no receipt. It may be stored one more time for each of them."""
        self.errors: list[str] = []

    @property
    def unanswered(self) -> list[int]:
        return sorted(set(range(self.sent)) - self.acknowledged)

    def note_kill(self) -> None:
        """Record a kill of the server. Messages without a receipt may have been stored, and will be sent again."""
        self.in_doubt.update(self.unanswered)

    def check(self, acknowledged: set[int], logs: Sequence[Sequence[int]]) -> None:
        """Check that messages are neither lost, duplicated nor reordered.

        `logs` contains the numbers found in each partition, in order. `acknowledged` contains the numbers that had
        receipts before the partitions were read.
        """
        assert not self.errors, self.errors[:3]
        counts = Counter(number for log in logs for number in log)
        lost = sorted(acknowledged - counts.keys())
        assert not lost, f"{self.topic}: {len(lost)} acknowledged messages are lost, from {lost[:5]} on"
        for number, count in counts.items() if counts.total() > len(counts) else ():
            assert count == 1 or not self.never_twice, f"{self.topic}: {number} is there {count} times"
            assert count <= 1 + self.in_doubt[number], (
                f"{self.topic}: {number} was not in doubt, but is doubled"
            )
        for log in logs:
            firsts = list(dict.fromkeys(log))
            assert firsts == sorted(firsts), f"{self.topic}: out of order"
            if len(logs) == 1:
                assert firsts == list(range(len(firsts))), f"{self.topic}: there is a gap"
            runs = 1 + sum(later <= earlier for earlier, later in pairwise(log))
            assert runs <= 1 + max(self.in_doubt.values(), default=0) + len(self.in_doubt), self.topic


class StockStream(Published):
    """Producer of the stock client, in its own thread. It reconnects after each kill of the server."""

    def __init__(
        self,
        topic: str,
        progress: Callable[[], None],
        *,
        window: int,
        numbered: bool = False,
        record: Record = unrecorded,
        **options: Any,
    ) -> None:
        super().__init__(topic, numbered=numbered)
        self._record = record
        self._progress = progress
        self._options = options
        self._window = threading.Semaphore(window)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, client: pulsar.Client) -> None:
        self._producer = client.create_producer(
            self.topic,
            send_timeout_millis=0,
            block_if_queue_full=True,
            producer_name="numbered" if self.never_twice else None,
            **self._options,
        )
        self._thread.start()

    def _run(self) -> None:
        for number in range(1 << 60):
            self._window.acquire()
            if self._stopping:
                return
            self.sent = number + 1
            rest: dict[str, Any] = {"sequence_id": number} if self.never_twice else {}
            self._tell(Outcome.INVOKE, Message(number))
            self._producer.send_async(payload_of(number), self._answered(number), **rest)

    def _tell(self, outcome: Outcome, message: Message) -> None:
        self._record(f"producer of {self.topic}", F.SEND, outcome, self.topic, [message])

    def _answered(self, number: int) -> Callable[[pulsar.Result, Any], None]:
        def answered(result: pulsar.Result, where: Any) -> None:
            if result == pulsar.Result.Ok:
                self._tell(Outcome.OK, Message(number, _place_of(where)))
                self.acknowledged.add(number)
            else:
                self._tell(Outcome.INFO, Message(number))
                self.errors.append(f"message {number}: {result}")
            self._window.release()
            self._progress()

        return answered

    def stop(self) -> None:
        """Stop sending, and wait for the receipts of all sent messages."""
        self._stopping = True
        self._window.release()
        self._thread.join()
        self._producer.flush()


def _place_of(where: Any) -> Place | None:
    """Return the place in a stock client's message id; None for a dropped duplicate, which has no valid id."""
    ledger, entry = where.ledger_id(), where.entry_id()
    return Place(ledger, entry, max(where.batch_index(), 0)) if 0 <= ledger < 1 << 63 and entry >= 0 else None


class RawStream(Published):
    """Producer over raw connections. Like a stock client, it sends messages without a receipt again, in order."""

    WINDOW = 40

    async def run(self, connect: Connect, rng: Random) -> None:
        """Publish in bursts until the server dies."""
        raw = None
        try:
            raw = await connect()
            name = await raw.producer(self.topic, name="numbered" if self.never_twice else "")
            for number in self.unanswered:
                self._send(raw, name, number)
            while True:
                for _ in range(rng.choice((1, 1, 3, 12))):
                    if self.sent - len(self.acknowledged) < self.WINDOW:
                        self.sent += 1
                        self._send(raw, name, self.sent - 1)
                receipt = await raw.receipts.get()
                if receipt is None:
                    return
                assert isinstance(receipt, pb.CommandSendReceipt), receipt
                self.acknowledged.add(receipt.sequence_id)
        except (OSError, EOFError):
            pass
        finally:
            if raw is not None:
                await raw.close()

    def _send(self, raw: Raw, name: str, number: int) -> None:
        entry = encode_one(OutgoingMessage(payload_of(number)), name, number, 1)
        raw.write(*commands.send(1, number, 1, entry))


class Log:
    """Entries read from one topic or partition so far. The log only grows."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.positions: list[Position] = []
        self.entries: list[list[int]] = []

    def numbers(self) -> list[int]:
        return [number for entry in self.entries for number in entry]

    def messages_up_to(self, position: Position) -> int:
        pairs = zip(self.positions, self.entries, strict=True)
        return sum(len(entry) for place, entry in pairs if place <= position)

    def tell(self, record: Record) -> None:
        """Record all entries as polls of one reader."""
        record("reader", F.ATTACH, Outcome.OK, self.topic)
        for position, entry in zip(self.positions, self.entries, strict=True):
            messages = [Message(number, Place(*position, index)) for index, number in enumerate(entry)]
            record("reader", F.POLL, Outcome.OK, self.topic, messages)

    async def extend(self, connect: Connect, since: int) -> None:
        """Read the topic to its current end. Read the entries from index `since` on again, and compare them."""
        start = self.positions[since] if self.positions else (-1, -1)
        raw = await connect()
        try:
            await raw.subscribe(self.topic, "verify", durable=False, start=start, permits=1000)
            last = await raw.ask(lambda request_id: commands.ask_last_message_id(1, request_id))
            found = await self._read(raw, commands.position(last.last_message_id))
        finally:
            await raw.close()
        again = min(len(found), len(self.positions) - since)
        known = list(zip(self.positions, self.entries, strict=True))[since:]
        assert found[:again] == known, f"{self.topic}: what was read is gone, or other than it was"
        for position, entry in found[again:]:
            assert not self.positions or position > self.positions[-1]
            self.positions.append(position)
            self.entries.append(entry)

    async def _read(self, raw: Raw, last: Position) -> list[tuple[Position, list[int]]]:
        found: list[tuple[Position, list[int]]] = []
        taken = 0
        while last[1] >= 0 and (not found or found[-1][0] < last):
            async with asyncio.timeout(60):
                one = await raw.delivered.get()
            if one is None:
                why = raw.problem or "the server closed it"
                raise ConnectionResetError(f"{self.topic}: the connection broke while it was read: {why}")
            found.append((one.position, [number_of(payload) for payload in one.payloads]))
            taken += len(one.payloads)
            if taken >= 500:
                raw.write(commands.flow(1, taken))
                taken = 0
        return found


class Follower:
    """Consumer or consumers of one subscription. After each restart of the server it connects again."""

    def __init__(
        self,
        topic: str,
        name: str,
        rng: Random,
        *,
        shared: bool = False,
        cumulative: bool = False,
        by_index: bool = False,
        record: Record = unrecorded,
    ) -> None:
        self.topic, self.name = topic, name
        self._record = record
        self._rng = rng
        self._cumulative, self._by_index = cumulative, by_index
        self._kind = pb.CommandSubscribe.Shared if shared else pb.CommandSubscribe.Exclusive
        self._consumers = 2 if shared else 1
        self.seen: set[int] = set()
        self.asked: set[tuple[Position, int]] = set()
        """Messages whose acknowledgement was sent, as (entry's position, index in its batch)."""
        self.answered: set[tuple[Position, int]] = set()
        self.asked_up_to: Position = (-1, -1)
        self.answered_up_to: Position = (-1, -1)
        self.holds_back = True
        """True while some messages are left unacknowledged, so that they are redelivered after a restart."""
        self._acks: set[asyncio.Task[None]] = set()
        self.problems: list[str] = []

    async def run(self, connect: Connect) -> None:
        """Consume until the server dies."""
        raw = None
        try:
            raw = await connect()
            for consumer_id in range(1, self._consumers + 1):
                self._tell(consumer_id, F.ATTACH, Outcome.OK, is_shared=self._consumers > 1)
                await raw.subscribe(self.topic, self.name, self._kind, consumer_id=consumer_id)
            await self._consume(raw)
        except (OSError, EOFError):
            pass
        finally:
            if raw is not None:
                await raw.close()
            if self._acks:
                await asyncio.wait(self._acks)

    async def _consume(self, raw: Raw) -> None:
        unacked_entries = 0
        while (one := await raw.delivered.get()) is not None:
            self._take(one)
            raw.write(commands.flow(one.consumer_id, len(one.payloads)))
            if self._cumulative:
                unacked_entries += 1
                if not self.holds_back or unacked_entries > self._rng.randrange(50):
                    unacked_entries = 0
                    self._begin(self._ack_up_to(raw, one))
            elif not self.holds_back or self._rng.random() < 0.95:
                self._begin(self._ack(raw, one))

    def _tell(
        self, consumer_id: int, f: F, outcome: Outcome, messages: Sequence[Message] = (), **more: Any
    ) -> None:
        process = f"{self.name} {consumer_id} of {self.topic}"
        self._record(process, f, outcome, self.topic, messages, subscription=self.name, **more)

    def _take(self, one: Delivered) -> None:
        """Record a delivered entry. Report a problem if the server has confirmed its acknowledgement before."""
        self._tell(one.consumer_id, F.POLL, Outcome.OK, _messages(one, one.indexes))
        self.seen.update(map(number_of, one.payloads))
        again = [index for index in one.indexes if (one.position, index) in self.answered]
        if again or one.position <= self.answered_up_to:
            self.problems.append(f"{self.topic} {self.name}: {one.position} {again} came back after its ack")

    def _begin(self, ack: Any) -> None:
        task = asyncio.ensure_future(ack)
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)

    async def _ack(self, raw: Raw, one: Delivered) -> None:
        now = set(one.indexes)
        if self._by_index and self.holds_back:
            now = {index for index in now if self._rng.random() < 0.7}
        done = {(one.position, index) for index in now}
        left = set(one.indexes) - now
        self.asked |= done
        messages = _messages(one, sorted(now))
        self._tell(one.consumer_id, F.ACK, Outcome.INVOKE, messages)
        try:
            await raw.ack(
                one.position,
                consumer_id=one.consumer_id,
                batch=(len(one.payloads), left) if left else None,
            )
        except OSError:
            return
        self.answered |= done
        self._tell(one.consumer_id, F.ACK, Outcome.OK, messages)

    async def _ack_up_to(self, raw: Raw, one: Delivered) -> None:
        self.asked_up_to = max(self.asked_up_to, one.position)
        messages = _messages(one, one.indexes)
        self._tell(one.consumer_id, F.ACK, Outcome.INVOKE, messages, is_cumulative=True)
        try:
            await raw.ack(one.position, cumulative=True)
        except OSError:
            return
        self.answered_up_to = max(self.answered_up_to, one.position)
        self._tell(one.consumer_id, F.ACK, Outcome.OK, messages, is_cumulative=True)

    def check_backlog(self, log: Log, backlog: int, least: int, most: int) -> None:
        """Check a backlog that the server reported while no consumer was connected.

        `least` and `most` are the topic's numbers of messages before and after the request for the backlog.
        """
        asked = log.messages_up_to(self.asked_up_to) + len(self.asked)
        answered = log.messages_up_to(self.answered_up_to) + len(self.answered)
        assert least - asked <= backlog <= most - answered, (
            f"{self.topic} {self.name}: backlog {backlog} of {least}..{most}, {answered}..{asked} acknowledged"
        )


def _messages(one: Delivered, indexes: Sequence[int]) -> list[Message]:
    return [Message(number_of(one.payloads[index]), Place(*one.position, index)) for index in indexes]


class StockFollower:
    """Shared subscription of the stock client, which reconnects by itself. It must receive every message."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.seen: set[int] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, client: pulsar.Client) -> None:
        self._consumer = client.subscribe(
            self.topic,
            "stock",
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            try:
                message = self._consumer.receive(500)
            except pulsar.Timeout:
                continue
            self.seen.add(number_of(message.data()))
            try:
                self._consumer.acknowledge(message)
            except pulsar.PulsarException:
                pass  # not connected, so the message will be redelivered

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()
