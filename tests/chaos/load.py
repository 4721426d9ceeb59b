"""The load of the chaos tests, and what must be true of it afterwards.

`Published` knows which messages of one producer were acknowledged and which were in doubt at a kill; the producer
is a stock client's (`StockStream`) or a raw connection (`RawStream`). `Log` is what readers found on one topic, in
order. `Follower` is one subscription, consumed over raw connections whose every acknowledgement is answered. The
rules are in `Published.check`, `Log.extend`, `Follower._take` and `Follower.check_backlog`.
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
"""Opens a connection to the server as it is now."""
Record = Callable[..., None]
"""`tests.history.operations.Recorder`, or nothing."""


def unrecorded(*_: Any, **__: Any) -> None:
    """No history is kept."""


def payload_of(number: int) -> bytes:
    """A message that says which it is; the rest depends on it, so that mixed-up bytes show."""
    return b"%d " % number + b"%x" % (number * 2654435761 % 16) * PAYLOAD_BYTES


def number_of(payload: bytes) -> int:
    """The message's number. A payload that was not made by `payload_of` fails."""
    number = int(payload.split(b" ", 1)[0])
    assert payload == payload_of(number), f"message {number} has other bytes than were sent"
    return number


class Published:
    """What one producer published, and what it was told of it."""

    def __init__(self, topic: str, *, numbered: bool = False) -> None:
        self.topic = topic
        self.never_twice = numbered
        """It has a name and numbers its messages, and its namespace drops duplicates."""
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.in_doubt: Counter[int] = Counter()
        """How many kills met a message unacknowledged: so often may it be there again."""
        self.errors: list[str] = []

    @property
    def unanswered(self) -> list[int]:
        return sorted(set(range(self.sent)) - self.acknowledged)

    def note_kill(self) -> None:
        """The server is gone: what has no receipt now may have been written, and will be sent again."""
        self.in_doubt.update(self.unanswered)

    def check(self, acknowledged: set[int], logs: Sequence[Sequence[int]]) -> None:
        """`logs`: the numbers found in each partition, in order; `acknowledged`: before that was read."""
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
    """One producer of the stock client, on a thread of its own; it lives through all kills."""

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
        """Send no more, wait for the receipts of what was sent."""
        self._stopping = True
        self._window.release()
        self._thread.join()
        self._producer.flush()


def _place_of(where: Any) -> Place | None:
    """A stock client's message id; a duplicate that was dropped has none."""
    ledger, entry = where.ledger_id(), where.entry_id()
    return Place(ledger, entry, max(where.batch_index(), 0)) if 0 <= ledger < 1 << 63 and entry >= 0 else None


class RawStream(Published):
    """One producer over raw connections, as good as a stock one: it sends again what has no receipt, in order."""

    WINDOW = 40

    async def run(self, connect: Connect, rng: Random) -> None:
        """Publish in bursts until the server is gone."""
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
    """What was read of one topic (or partition) so far. It only grows."""

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
        """Everything that was read, as one reader's polls."""
        record("reader", F.ATTACH, Outcome.OK, self.topic)
        for position, entry in zip(self.positions, self.entries, strict=True):
            messages = [Message(number, Place(*position, index)) for index, number in enumerate(entry)]
            record("reader", F.POLL, Outcome.OK, self.topic, messages)

    async def extend(self, connect: Connect, since: int) -> None:
        """Read the entries from the `since`-th on once more, up to the last one there is now."""
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
    """One subscription. In each life of the server it has a new connection, and new consumers."""

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
        """(entry, index in its batch) whose acknowledgement was sent."""
        self.answered: set[tuple[Position, int]] = set()
        self.asked_up_to: Position = (-1, -1)
        self.answered_up_to: Position = (-1, -1)
        self.holds_back = True
        """Leave some messages unacknowledged, for the next life."""
        self._acks: set[asyncio.Task[None]] = set()
        self.problems: list[str] = []

    async def run(self, connect: Connect) -> None:
        """Consume until the server is gone."""
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
        """What was answered as acknowledged must never come again."""
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
        """`least`, `most`: messages of the topic before and after `backlog` was asked for, with nobody consuming."""
        asked = log.messages_up_to(self.asked_up_to) + len(self.asked)
        answered = log.messages_up_to(self.answered_up_to) + len(self.answered)
        assert least - asked <= backlog <= most - answered, (
            f"{self.topic} {self.name}: backlog {backlog} of {least}..{most}, {answered}..{asked} acknowledged"
        )


def _messages(one: Delivered, indexes: Sequence[int]) -> list[Message]:
    return [Message(number_of(one.payloads[index]), Place(*one.position, index)) for index in indexes]


class StockFollower:
    """A shared subscription of the stock client, which reconnects by itself; it must see everything."""

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
                pass  # not connected: it will be delivered again

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()
