"""A broker of a few lines, made from `quire.wire`, in the test's own event loop.

It keeps entries and cursors in memory and answers at once, unless told otherwise: `hold_receipts` keeps receipts back,
`refuse` answers the next request of a kind with an error, `mute` answers nothing, `drop` ends all connections. `seen`
has every command, in order; `stored` every entry that was taken, twice if it was sent twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from google.protobuf.message import Message as Body

from quire.runtime.limits import MESSAGE_BYTES_MAX
from quire.wire import commands, entry_frames, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.commands import Command
from quire.wire.frame import FrameCutter, Send, SendRun

LEDGER = 3
B = TypeVar("B", bound=Body)


@dataclass
class Cursor:
    """One subscription of one topic: what is unacknowledged, as bit sets by entry."""

    next: int = 0
    unacked: dict[int, int] = field(default_factory=dict)
    redelivered: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    queue: list[int] = field(default_factory=list)


@dataclass
class Dispatch:
    """One consumer of one connection."""

    session: Session
    id: int
    topic: str
    subscription: str
    permits: int = 0


class FakeBroker:
    def __init__(self) -> None:
        self.url = ""
        self.seen: list[Body] = []
        self.stored: list[tuple[str, bytes]] = []
        self.topics: dict[str, list[bytes]] = defaultdict(list)
        self.partitions: dict[str, int] = {}
        self.cursors: dict[tuple[str, str], Cursor] = {}
        self.last_sequence_ids: dict[tuple[str, str], int] = {}
        self.deduplicates = False
        self.token: bytes | None = None
        self.mute: set[type[Body]] = set()
        self.held: list[Callable[[], None]] | None = None
        self.redirect_to = ""
        self.send_errors: list[tuple[pb.ServerError, str]] = []
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.sessions: set[Session] = set()
        self._refusals: dict[type[Body], list[tuple[pb.ServerError, str]]] = defaultdict(list)
        self._server: asyncio.Server | None = None
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def start(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Session(self), "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"pulsar://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self.drop()
            await self._server.wait_closed()
            self._server = None

    def drop(self) -> None:
        """End every connection, as a crash does."""
        for session in list(self.sessions):
            session.transport.abort()
        self.sessions.clear()

    # -- What a test tells and asks --

    def refuse(self, kind: type[Body], code: pb.ServerError, sentence: str = "no") -> None:
        self._refusals[kind].append((code, sentence))

    def refusal(self, body: Body) -> tuple[pb.ServerError, str] | None:
        waiting = self._refusals[type(body)]
        return waiting.pop(0) if waiting else None

    def hold_receipts(self) -> None:
        self.held = []

    def release_receipts(self) -> None:
        held, self.held = self.held or [], None
        for give in held:
            give()

    def all(self, kind: type[B]) -> list[B]:
        return [cast(B, body) for body in self.seen if isinstance(body, kind)]

    def messages(self, topic: str) -> list[message.DecodedMessage]:
        return [one for entry in self.topics[topic] for one in message.decode(entry)]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once `holds`; it is looked at after every read."""
        if not holds():
            future = asyncio.get_running_loop().create_future()
            self._watchers.append((holds, future))
            async with asyncio.timeout(60):
                await future

    def look(self) -> None:
        for holds, future in self._watchers:
            if not future.done() and holds():
                future.set_result(None)

    # -- What it keeps --

    def store(self, topic: str, entry: bytes, last_sequence_id: int) -> tuple[int, int]:
        """(ledger, entry) of what was sent, (-1, -1) for a duplicate."""
        self.stored.append((topic, entry))
        key = topic, message.read_metadata(entry)[0].producer_name
        if self.deduplicates and last_sequence_id <= self.last_sequence_ids.get(key, -1):
            return -1, -1
        self.last_sequence_ids[key] = max(last_sequence_id, self.last_sequence_ids.get(key, -1))
        self.topics[topic].append(entry)
        return LEDGER, len(self.topics[topic]) - 1

    def publish(self, topic: str, entry: bytes) -> None:
        """Have an entry in the topic, and dispatched, that no producer sent."""
        self.topics[topic].append(entry)
        self.dispatch()

    def count(self, topic: str, entry_id: int) -> int:
        metadata, _ = message.read_metadata(self.topics[topic][entry_id])
        return metadata.num_messages_in_batch if message.is_batch(metadata) else 1

    def dispatch(self) -> None:
        for one in self.dispatches():
            self._dispatch_to(one)

    def dispatches(self) -> Iterator[Dispatch]:
        for session in self.sessions:
            yield from session.consumers.values()

    def _dispatch_to(self, to: Dispatch) -> None:
        cursor = self.cursors[to.topic, to.subscription]
        entries = self.topics[to.topic]
        cursor.queue += range(cursor.next, len(entries))
        cursor.next = len(entries)
        while to.permits > 0 and cursor.queue:
            at = cursor.queue.pop(0)
            whole = (1 << self.count(to.topic, at)) - 1
            bits = cursor.unacked.setdefault(at, whole)
            if not bits:
                continue
            to.permits -= bits.bit_count()
            words = [] if bits == whole else [bits]
            ids = commands.message_id(LEDGER, at, _partition(to.topic))
            redelivered = cursor.redelivered[at]
            header = entry_frames.message_header(to.id, ids, len(entries[at]), redelivered, words)
            to.session.transport.writelines([header, entries[at]])

    def acked(self, key: tuple[str, str], body: pb.CommandAck) -> None:
        cursor = self.cursors[key]
        for one in body.message_id:
            rest = one.ack_set[0] if one.ack_set else 0
            cursor.unacked[one.entryId] = cursor.unacked.get(one.entryId, -1) & rest
            if body.ack_type == pb.CommandAck.Cumulative:
                cursor.unacked.update(dict.fromkeys(range(one.entryId), 0))

    def rewind(self, key: tuple[str, str], to: int | None = None) -> None:
        cursor = self.cursors[key]
        if to is not None:
            cursor.unacked = dict.fromkeys(range(to), 0)
        for at in range(cursor.next):
            if cursor.unacked.get(at, -1) and at not in cursor.queue:
                cursor.redelivered[at] += to is None
        cursor.queue, cursor.next = [], 0

    def fully_acked(self, topic: str, subscription: str) -> list[int]:
        unacked = self.cursors[topic, subscription].unacked
        return [at for at, bits in sorted(unacked.items()) if not bits]


class Session(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.cutter = FrameCutter()
        self.producers: dict[int, tuple[str, str]] = {}
        self.consumers: dict[int, Dispatch] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.broker.sessions.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.broker.sessions.discard(self)
        for one in self.consumers.values():
            self.broker.rewind((one.topic, one.subscription))
        self.consumers.clear()
        self.broker.look()

    def data_received(self, data: bytes) -> None:
        for cut in self.cutter.feed(data):
            if isinstance(cut, SendRun):
                sent = zip(cut.entries, cut.sequence_ids(), strict=True)
                self._sends(cut.producer_id, [(entry, *ids) for entry, ids in sent])
            elif isinstance(cut, Send):
                first = cut.sequence_id
                self._sends(cut.producer_id, [(cut.entry, first, first)])
            else:
                assert isinstance(cut, Command)
                self._command(cut.body)
        self.broker.dispatch()
        self.broker.look()

    def _sends(self, producer_id: int, sent: list[tuple[bytes, int, int]]) -> None:
        """(entry, first and last sequence id) of each."""
        broker = self.broker
        topic, _ = self.producers[producer_id]
        for entry, first, last in sent:
            if broker.send_errors:
                code, sentence = broker.send_errors.pop(0)
                self.transport.write(commands.send_error(producer_id, first, code, sentence))
                continue
            place = broker.store(topic, entry, last)
            receipt = pb.CommandSendReceipt(
                producer_id=producer_id, sequence_id=first, message_id=commands.message_id(*place)
            )
            give = self._later(receipt)
            give() if broker.held is None else broker.held.append(give)

    def _later(self, receipt: pb.CommandSendReceipt) -> Callable[[], None]:
        envelope = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT, send_receipt=receipt)
        return lambda: self.transport.write(commands.frame(envelope))

    def _command(self, body: Any) -> None:
        broker = self.broker
        broker.seen.append(body)
        if type(body) in broker.mute:
            return
        refusal = broker.refusal(body)
        if refusal is not None:
            self.transport.write(commands.error(getattr(body, "request_id", commands.NO_REQUEST), *refusal))
            return
        for frame in self._answer(body):
            self.transport.write(frame)

    def _answer(self, body: Any) -> Iterator[bytes]:
        broker = self.broker
        match body:
            case pb.CommandConnect():
                if broker.token is not None and body.auth_data != broker.token:
                    yield commands.error(commands.NO_REQUEST, pb.AuthenticationError, "a wrong token")
                    self.transport.close()
                    return
                yield self._connected(body)
            case pb.CommandPing():
                yield commands.PONG
            case pb.CommandPartitionedTopicMetadata():
                yield commands.partitions(body.request_id, broker.partitions.get(body.topic, 0))
            case pb.CommandGetTopicsOfNamespace():
                yield commands.topics_of_namespace(body.request_id, list(broker.topics))
            case pb.CommandLookupTopic():
                to = broker.redirect_to
                yield commands.lookup_found(body.request_id, to or broker.url, redirect=bool(to))
            case pb.CommandProducer():
                name = body.producer_name or f"fake-{body.producer_id}"
                self.producers[body.producer_id] = body.topic, name
                last = broker.last_sequence_ids.get((body.topic, name), -1)
                yield commands.producer_success(body.request_id, name, last)
            case pb.CommandSubscribe():
                self._subscribe(body)
                yield commands.success(body.request_id)
            case pb.CommandFlow() if body.consumer_id in self.consumers:
                self.consumers[body.consumer_id].permits += body.messagePermits
            case pb.CommandAck() if body.consumer_id in self.consumers:
                broker.acked(self._key(body.consumer_id), body)
                if body.HasField("request_id"):
                    yield commands.ack_response(body.consumer_id, body.request_id)
            case pb.CommandRedeliverUnacknowledgedMessages():
                self._redeliver(body)
            case pb.CommandSeek():
                yield from self._seek(body)
            case pb.CommandGetLastMessageId():
                last, mark = self._last(body.consumer_id), self._mark_delete(body.consumer_id)
                yield commands.last_message_id(body.request_id, last, mark)
            case pb.CommandConsumerStats():
                unacked = self._unacked(body.consumer_id)
                yield commands.consumer_stats(
                    pb.CommandConsumerStatsResponse(request_id=body.request_id, msgBacklog=unacked)
                )
            case pb.CommandUnsubscribe():
                broker.cursors.pop(self._key(body.consumer_id))
                del self.consumers[body.consumer_id]
                yield commands.success(body.request_id)
            case pb.CommandCloseProducer():
                self.producers.pop(body.producer_id, None)
                yield commands.success(body.request_id)
            case pb.CommandCloseConsumer():
                one = self.consumers.pop(body.consumer_id, None)
                if one is not None:
                    broker.rewind((one.topic, one.subscription))
                yield commands.success(body.request_id)

    def _connected(self, body: pb.CommandConnect) -> bytes:
        """CONNECTED of a broker that tells nobody what topics come and go."""
        answer = pb.CommandConnected(
            server_version="fake",
            protocol_version=body.protocol_version,
            max_message_size=self.broker.message_bytes_max,
        )
        return commands.frame(pb.BaseCommand(type=pb.BaseCommand.CONNECTED, connected=answer))

    def _key(self, consumer_id: int) -> tuple[str, str]:
        one = self.consumers[consumer_id]
        return one.topic, one.subscription

    def _subscribe(self, body: pb.CommandSubscribe) -> None:
        key = body.topic, body.subscription
        self.consumers[body.consumer_id] = Dispatch(self, body.consumer_id, *key)
        if not body.durable:
            start = commands.position(body.start_message_id)
            first = max(0, start[1])  # at the entry that is named: readers leave out what they had
            self.broker.cursors[key] = Cursor(next=min(first, len(self.broker.topics[body.topic])))
        elif key not in self.broker.cursors:
            latest = body.initialPosition == pb.CommandSubscribe.Latest
            self.broker.cursors[key] = Cursor(next=len(self.broker.topics[body.topic]) if latest else 0)

    def _redeliver(self, body: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        key = self._key(body.consumer_id)
        cursor = self.broker.cursors[key]
        if not body.message_ids:
            self.broker.rewind(key)
        for one in body.message_ids:
            cursor.redelivered[one.entryId] += 1
            cursor.queue.append(one.entryId)

    def _seek(self, body: pb.CommandSeek) -> Iterator[bytes]:
        key = self._key(body.consumer_id)
        to = commands.position(body.message_id)[1] if body.HasField("message_id") else 0
        entries = self.broker.topics[key[0]]
        if body.HasField("message_publish_time"):
            times = [message.read_metadata(entry)[0].publish_time for entry in entries]
            to = sum(time < body.message_publish_time for time in times)
        yield commands.close_consumer(body.consumer_id, 0)
        del self.consumers[body.consumer_id]
        self.broker.rewind(key, min(max(0, to), len(entries)))
        yield commands.success(body.request_id)

    def _last(self, consumer_id: int) -> pb.MessageIdData:
        topic, _ = self._key(consumer_id)
        count = len(self.broker.topics[topic])
        if not count:
            return commands.message_id(-1, -1)
        size = self.broker.count(topic, count - 1)
        batch_index = size - 1 if size > 1 else -1
        return commands.message_id(LEDGER, count - 1, _partition(topic), batch_index)

    def _unacked(self, consumer_id: int) -> int:
        topic, subscription = self._key(consumer_id)
        unacked = self.broker.cursors[topic, subscription].unacked
        wholes = ((1 << self.broker.count(topic, at)) - 1 for at in range(len(self.broker.topics[topic])))
        return sum((unacked.get(at, -1) & whole).bit_count() for at, whole in enumerate(wholes))

    def _mark_delete(self, consumer_id: int) -> pb.MessageIdData:
        cursor = self.broker.cursors[self._key(consumer_id)]
        left = [at for at, bits in cursor.unacked.items() if bits]
        return commands.message_id(LEDGER, min([cursor.next, *cursor.queue, *left]) - 1)


def _partition(topic: str) -> int:
    _, separator, digits = topic.rpartition("-partition-")
    return int(digits) if separator else -1
