"""A topic in memory, a consumer's port that parses what it is sent, and a log that says when it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from quire.runtime.errors import NotFound, QuireError
from quire.serving.model.ports import Position, SegmentView
from quire.serving.model.positions import following
from quire.serving.model.tracing import Tracing
from quire.serving.policy.rate_limiter import DispatchLimits
from quire.serving.policy.resolved import TopicPolicies
from quire.wire import block, commands, message
from quire.wire import pulsar_pb2 as pb
from quire.wire.block import Buffer
from quire.wire.publish_time import publish_times


def keyed(key: str, position: Position) -> bytes:
    """An entry of one message with a key, whose text names its position as those of `FakeTopic` do."""
    text = f"{position.ledger_id}:{position.entry_id}".encode()
    return message.encode_one(message.OutgoingMessage(text, key=key), "p", position.entry_id, 0)


def chunked(uuid: str, number: int, count: int, position: Position, size: int) -> bytes:
    """An entry of `size` bytes or more that is a chunk, whose text names its position."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, uuid=uuid)
    metadata.chunk_id, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = number, count, count
    return message.seal(metadata, f"{position.ledger_id}:{position.entry_id} ".encode().ljust(size))


def text_of(entry: bytes) -> str:
    """What an entry of `FakeTopic`, a `keyed` or a `chunked` one, says of its position."""
    try:
        return (message.decode(entry)[0].payload or b"").decode()
    except message.Chunk:
        return bytes(message.read_metadata(entry)[1]).decode().rstrip()
    except message.Undecodable:
        return entry[2:].split(b" ")[0].decode()


class FakeTopic:
    """A `TopicPort`. Blocks are confirmed as they are published; `cache` says whether the tail cache has them."""

    def __init__(self, name: str = "persistent://public/default/t") -> None:
        self.name = name
        self.tracing: Tracing | None = None
        self.blocks: list[Buffer] = []
        self.ledgers: list[int] = [1]
        self.index = 0
        self.cache = True
        self.reads: list[Position] = []
        self.is_terminated = False
        self.failure: QuireError | None = None
        self.policies = TopicPolicies()
        self.dispatch_limits: DispatchLimits | None = None
        self.listener: Callable[[Sequence[tuple[Buffer, block.BlockHeader]]], None] = lambda *_: None

    def publish(
        self, counts: Sequence[int], entries: Sequence[bytes] | None = None, clock_ms: int = 1
    ) -> Position:
        """A block of entries with these numbers of messages; its first position."""
        return self.publish_together([counts], entries, clock_ms)

    def publish_together(
        self, blocks: Sequence[Sequence[int]], entries: Sequence[bytes] | None = None, clock_ms: int = 1
    ) -> Position:
        """Blocks that are confirmed in one turn, cut a millisecond apart; the first one's first position."""
        made = [self._cut(counts, entries, clock_ms + at) for at, counts in enumerate(blocks)]
        self.listener([(one, block.peek(one)) for one in made])
        header = block.peek(made[0])
        return Position(header.ledger_id, header.first_entry)

    def _cut(self, counts: Sequence[int], entries: Sequence[bytes] | None, clock_ms: int) -> Buffer:
        ledger_id, first = self.ledgers[-1], self.last_entry(self.ledgers[-1]) + 1
        entries = entries or [b"\x0e\x01" + f"{ledger_id}:{first + i}".encode() for i in range(len(counts))]
        made = block.cut(ledger_id, first, first - 1, clock_ms, self.index, entries, counts)
        self.index += sum(counts)
        self.blocks.append(made)
        return made

    def roll(self) -> None:
        self.ledgers.append(self.ledgers[-1] + 2)

    def trim(self) -> None:
        """Drop the first segment."""
        gone = self.ledgers.pop(0)
        self.blocks = [made for made in self.blocks if block.peek(made).ledger_id != gone]

    def last_entry(self, ledger_id: int) -> int:
        return max((h.last_entry for h in self._headers() if h.ledger_id == ledger_id), default=-1)

    def _headers(self) -> list[block.BlockHeader]:
        return [block.peek(made) for made in self.blocks]

    @property
    def last_confirmed(self) -> Position:
        for ledger_id in reversed(self.ledgers):
            if self.last_entry(ledger_id) >= 0:
                return Position(ledger_id, self.last_entry(ledger_id))
        return Position(self.ledgers[-1], -1)

    @property
    def confirmed_index(self) -> int:
        return self.index

    def segments(self) -> Sequence[SegmentView]:
        return [self._view(ledger_id) for ledger_id in self.ledgers]

    def _view(self, ledger_id: int) -> SegmentView:
        blocks = [made for made in self.blocks if block.peek(made).ledger_id == ledger_id]
        messages = sum(sum(block.message_counts(made, block.peek(made))) for made in blocks)
        return SegmentView(ledger_id, self.last_entry(ledger_id), 0, messages, sum(map(len, blocks)))

    async def last_message(self) -> tuple[Position, int]:
        return self.last_confirmed, -1

    def first_position(self) -> Position:
        return following(Position(-1, -1), self.segments())

    def next_position(self, position: Position) -> Position:
        return following(position, self.segments())

    def _from(self, position: Position) -> list[Buffer]:
        return [
            made
            for made, header in zip(self.blocks, self._headers(), strict=True)
            if header.ledger_id == position.ledger_id and header.last_entry >= position.entry_id
        ]

    def cached(self, position: Position) -> Sequence[Buffer]:
        return self._from(position)[:2] if self.cache else ()

    async def read(self, position: Position, bytes_max: int) -> Sequence[Buffer]:
        self.reads.append(position)
        await asyncio.sleep(0)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        if position.ledger_id not in self.ledgers:
            raise NotFound(f"{position} was trimmed")
        found, size = [], 0
        for made in self._from(position):
            found.append(made)
            size += len(made)
            if size >= bytes_max:
                break
        return found

    async def index_of(self, position: Position) -> int:
        for made, header in zip(self.blocks, self._headers(), strict=True):
            if header.ledger_id == position.ledger_id and header.last_entry >= position.entry_id:
                counts = block.message_counts(made, header)
                return header.first_index + sum(counts[: position.entry_id - header.first_entry])
        return self.index

    async def find_time(self, time_ms: int) -> Position:
        await asyncio.sleep(0)
        for made, header in zip(self.blocks, self._headers(), strict=True):
            for entry_id, published_ms in enumerate(publish_times(made, header), header.first_entry):
                if published_ms >= time_ms:
                    return Position(header.ledger_id, entry_id)
        return self.next_position(self.last_confirmed)

    async def compacted_view(self) -> None:
        """It was never compacted."""


class FakePort:
    """A `ConsumerPort` that remembers what it was sent."""

    def __init__(self) -> None:
        self.raw = bytearray()
        self.deliveries = 0
        self.is_writable = True
        self.is_active: list[bool] = []
        self.is_closed = False
        self.ends = 0
        self.wants_index = False

    def reached_end(self) -> None:
        self.ends += 1

    def deliver(self, parts: list[Buffer]) -> None:
        self.deliveries += 1
        for part in parts:
            self.raw += part

    def writable(self) -> bool:
        return self.is_writable

    def active_changed(self, is_active: bool) -> None:
        self.is_active.append(is_active)

    def close(self) -> None:
        self.is_closed = True

    def messages(self) -> list[pb.CommandMessage]:
        """The MESSAGE commands that came since the last call; each entry's bytes must name its own position."""
        found, raw, at = [], bytes(self.raw), 0
        while at < len(raw):
            total, size = int.from_bytes(raw[at : at + 4], "big"), int.from_bytes(raw[at + 4 : at + 8], "big")
            body = commands.parse(raw[at + 8 : at + 8 + size]).body
            assert isinstance(body, pb.CommandMessage)
            entry = raw[at + 8 + size : at + 4 + total]
            assert entry.startswith(b"\x0e\x01")
            assert text_of(entry) == f"{body.message_id.ledgerId}:{body.message_id.entryId}"
            found.append(body)
            at += 4 + total
        self.raw.clear()
        return found

    def positions(self) -> list[tuple[int, int]]:
        """The entries that came since the last call, in order."""
        return [(one.message_id.ledgerId, one.message_id.entryId) for one in self.messages()]


class FakeLog:
    """A state log whose records become durable when `sync` is called."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.durable: list[bytes] = []
        self._waiting: list[Callable[[QuireError | None], None]] = []
        self.is_automatic = True

    def append(self, record: bytes, done: Callable[[QuireError | None], None] | None = None) -> None:
        self.records.append(record)
        if done is not None:
            self._waiting.append(done)
        if self.is_automatic:
            asyncio.get_running_loop().call_soon(self.sync)

    def sync(self, error: QuireError | None = None) -> None:
        if error is None:
            self.durable = list(self.records)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(error)


def ids(*positions: tuple[int, int]) -> list[pb.MessageIdData]:
    return [commands.message_id(ledger_id, entry_id) for ledger_id, entry_id in positions]
