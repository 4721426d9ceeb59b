"""Raw connection with Pulsar's protocol, for behaviour that stock clients hide.

A stock client reconnects, resends and redelivers without the test's knowledge. Here one connection is one TCP stream:
deliveries and responses on it are known exactly, and it ends when the server dies.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import Any, NamedTuple

from quire.runtime.errors import ProtocolError
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb
from quire.wire.message import decode

_U32 = Struct(">I")
Kind = pb.BaseCommand

Position = tuple[int, int]


class Refused(ConnectionError):
    """Raised if the server responds to a request with an error. As with a lost connection, nothing is acknowledged."""

    def __init__(self, message: str, error: int = pb.UnknownError) -> None:
        super().__init__(message)
        self.error = error
        """Error code, a `ServerError` of the protocol."""


class Delivered(NamedTuple):
    """One MESSAGE command: the entry's position, its payloads, and the batch indexes of the delivered messages."""

    consumer_id: int
    position: Position
    payloads: list[bytes]
    indexes: list[int]
    redeliveries: int

    @property
    def is_batch(self) -> bool:
        return len(self.payloads) > 1


class Raw:
    """Raw connection to a broker. Requests are awaited; `delivered` contains the messages for its consumers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._request_id = 0
        self.delivered: asyncio.Queue[Delivered | None] = asyncio.Queue()
        self.receipts: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.ensure_future(self._read())

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Raw:
        return await cls.greet(*await asyncio.open_connection(*address))

    @classmethod
    async def greet(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Raw:
        """Perform the handshake on an open connection."""
        writer.write(commands.connect("raw"))
        answer, _ = await read_frame(reader)
        assert answer.kind == Kind.CONNECTED, answer
        return cls(reader, writer)

    async def close(self) -> None:
        self._task.cancel()
        self._writer.transport.abort()
        await asyncio.wait([self._task])

    @property
    def is_closed(self) -> bool:
        return self._task.done()

    @property
    def problem(self) -> BaseException | None:
        """Violation of the protocol by the server, such as a response without a request; None if there was none."""
        return self._task.exception() if self._task.done() and not self._task.cancelled() else None

    def write(self, *frames: bytes) -> None:
        """Send frames; do nothing if the connection is lost."""
        if not self._task.done():
            self._writer.writelines(frames)

    async def ask(self, make: Any, *arguments: Any, **rest: Any) -> Any:
        """Send `make(request_id, ...)`, and return its response's body. Raises `Refused`, `ConnectionError`."""
        self._request_id += 1
        answer = self._waiting[self._request_id] = asyncio.get_running_loop().create_future()
        if self._task.done():
            raise ConnectionResetError("the server is gone")
        self.write(make(self._request_id, *arguments, **rest))
        return await answer

    async def subscribe(
        self,
        topic: str,
        subscription: str,
        kind: int = pb.CommandSubscribe.Exclusive,
        *,
        consumer_id: int = 1,
        durable: bool = True,
        start: Position | None = None,
        permits: int = 1000,
    ) -> None:
        """Subscribe, from the earliest message unless `start` is given, and send a FLOW with `permits`."""

        def make(request_id: int) -> bytes:
            body = pb.CommandSubscribe(
                topic=topic,
                subscription=subscription,
                subType=kind,  # type: ignore[arg-type]
                consumer_id=consumer_id,
                request_id=request_id,
                durable=durable,
                initialPosition=pb.CommandSubscribe.Earliest,
            )
            if start is not None:
                body.start_message_id.CopyFrom(commands.message_id(*start))
            return commands.subscribe(body)

        await self.ask(make)
        if permits:
            self.write(commands.flow(consumer_id, permits))

    async def ack(
        self,
        position: Position,
        *,
        consumer_id: int = 1,
        cumulative: bool = False,
        batch: tuple[int, set[int]] | None = None,
    ) -> None:
        """Acknowledge an entry, and await the response.

        For a part of a batch, `batch` contains its size and the indexes that are *not* acknowledged yet.
        """
        data = commands.message_id(*position)
        if batch is not None:
            size, left = batch
            words = [0] * (-(-size // 64))
            for index in left:
                words[index // 64] |= 1 << (index % 64)
            signed = (word - (1 << 64) if word >> 63 else word for word in words)
            data = commands.message_id(*position, batch_index=0, ack_set=signed, batch_size=size)
        await self.ask(
            lambda request_id: commands.ack(consumer_id, [data], cumulative=cumulative, request_id=request_id)
        )

    async def producer(self, topic: str, *, producer_id: int = 1, name: str = "") -> str:
        """Create a producer, and return its name, which its entries must contain."""

        def make(request_id: int) -> bytes:
            body = pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=request_id)
            if name:
                body.producer_name = name
                body.user_provided_producer_name = True
            return commands.producer(body)

        return str((await self.ask(make)).producer_name)

    # -- reading ----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while True:
                command, tail = await read_frame(self._reader)
                self._take(command.kind, command.body, tail)
        except (OSError, EOFError, ProtocolError):
            pass
        finally:
            self.delivered.put_nowait(None)
            self.receipts.put_nowait(None)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionResetError("the server is gone"))
                    future.exception()

    def _take(self, kind: int, body: Any, tail: bytes) -> None:
        if kind == Kind.MESSAGE:
            self.delivered.put_nowait(_delivered(body, tail))
        elif kind == Kind.PING:
            self.write(commands.PONG)
        elif kind in (Kind.SEND_RECEIPT, Kind.SEND_ERROR):
            self.receipts.put_nowait(body)
        elif kind not in (Kind.PONG, Kind.ACTIVE_CONSUMER_CHANGE, Kind.CLOSE_CONSUMER, Kind.CLOSE_PRODUCER):
            self._answer(kind, body)

    def _answer(self, kind: int, body: Any) -> None:
        if kind == Kind.ERROR and body.request_id == commands.NO_REQUEST:
            return  # the connection will be closed
        future = self._waiting.pop(body.request_id, None)
        assert future is not None, f"an answer to nothing: {body}"
        refused = kind == Kind.ERROR or (kind == Kind.ACK_RESPONSE and body.HasField("error"))
        if future.cancelled():
            return
        if refused:
            future.set_exception(Refused(body.message, body.error))
        else:
            future.set_result(body)


async def read_frame(reader: asyncio.StreamReader) -> tuple[commands.Command, bytes]:
    """Return the next command and the rest of its frame. Raises `EOFError`, `OSError`, `ProtocolError`."""
    (size,) = _U32.unpack(await reader.readexactly(4))
    frame = await reader.readexactly(size)
    (length,) = _U32.unpack_from(frame)
    return commands.parse(frame[4 : 4 + length]), frame[4 + length :]


def _delivered(body: Any, tail: bytes) -> Delivered:
    payloads = [one.payload or b"" for one in decode(tail)]
    indexes = list(range(len(payloads)))
    if body.ack_set:
        bits = sum((word & (1 << 64) - 1) << 64 * at for at, word in enumerate(body.ack_set))
        indexes = [index for index in indexes if bits >> index & 1]
    place = (body.message_id.ledgerId, body.message_id.entryId)
    return Delivered(body.consumer_id, place, payloads, indexes, body.redelivery_count)
