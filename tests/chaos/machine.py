"""A standalone server in this process, on a simulated machine whose power fails: disks, storage, ledgers, broker.

    machine = Machine(seed)
    await machine.boot()
    raw = await machine.connect()          # a client's connection, without a socket
    machine.power.fail_after(100)          # the hundredth operation on a disk is torn, and all after it fail
    ...
    await machine.cut()                    # unsynced bytes and names are kept, dropped or torn; then boot again

Metadata and archive are in memory, and survive power cuts, because SQLite and files sync before they respond. They have
their own tests. These tests cover everything between a client's bytes and a bookie's disks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from quire.bookie.storage import Storage
from quire.ledger.directory import LocalDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata.records import BookieRecord
from quire.metadata.store import Step
from quire.runtime.clock import SystemClock
from quire.runtime.limits import KIB, MIB
from quire.serving.broker import Broker
from quire.serving.session.session import Session
from quire.serving.settings import BrokerSettings
from quire.serving.topic.services import Services
from quire.testing.disk import Power
from quire.testing.metadata import MemoryStore
from quire.testing.node import SMALL_SETTINGS, SimulatedNode
from quire.testing.objects import MemoryObjectStore
from quire.testing.place import TrustedPlace
from quire.tiering.archive import Archive

from .raw import Raw

BOOKIE = replace(
    SMALL_SETTINGS,
    memtable_bytes=128 * KIB,
    journal_segment_bytes=128 * KIB,
    journal_group_bytes_max=64 * KIB,
    entry_log_bytes=512 * KIB,
)
LEDGERS = LedgerSettings(
    write_quorum=1,
    ack_quorum=1,
    ensemble_change_delay_ms=0,
    busy_retry_ms=0,
    metadata_retry_ms=0,
    metadata_attempts_max=5,
    idle_lac_ms=1,
)


class Machine:
    def __init__(self, seed: int, **settings: Any) -> None:
        self.rng = Random(seed)
        self.node = SimulatedNode(self.rng.getrandbits(32))
        self.archive_store = MemoryObjectStore()
        self.settings = BrokerSettings(
            **{
                "listen": "127.0.0.1:0",
                "segment_bytes_max": 64 * KIB,
                "archive_lag_ms": 0,
                "bytes_in_flight_max": 16 * MIB,
                **settings,
            }
        )
        self._store = SlowStore()
        self._session: SlowStore | None = None
        self._pipes: list[Pipe] = []
        self._is_up = False
        self._broker: Broker | None = None
        self._ledgers: Ledgers | None = None

    @property
    def power(self) -> Power:
        return self.node.power

    @property
    def broker(self) -> Broker:
        assert self._broker is not None
        return self._broker

    async def boot(self) -> None:
        """Start the server. Raises `QuireError` if the power fails meanwhile; then call `cut`."""
        self.storage = storage = Storage(BOOKIE, self.node.disks(), rng=self.node.rng)
        await storage.start()
        identity = storage.bookie_id
        directory = LocalDirectory()
        directory.join(
            lambda: BookieRecord(
                uuid=identity.uuid, incarnation=identity.incarnation, read_only=storage.health.is_read_only
            ),
            storage,
        )
        self._session = self._store.join()
        self._ledgers = Ledgers(self._session, directory, SystemClock(), self.rng, LEDGERS)
        archive = Archive(TrustedPlace(self.archive_store, self._session), SystemClock())
        self._broker = Broker(Services(self.settings, self._session, self._ledgers, archive, SystemClock()))
        await self._broker.start()
        self._is_up = True

    async def connect(self) -> Raw:
        """Open a client's connection. Raises `ConnectionRefusedError` while the machine is down."""
        if not self._is_up:
            raise ConnectionRefusedError("the machine is down")
        client = Client(self.broker.sessions.accept())
        self._pipes.append(client.transport)
        return await Raw.greet(client.transport.reader, client)  # type: ignore[arg-type]

    async def cut(self) -> None:
        """Cut the power: the process dies, and of unsynced data a random part survives."""
        self.node.crash()
        self._is_up = False
        for pipe in self._pipes:
            pipe.abort()
        self._pipes.clear()
        if self._broker is not None:
            await self._end(self._broker)
        self._broker = None
        if self._session is not None:
            self._session.expire()
        self._session = None

    async def _end(self, broker: Broker) -> None:
        assert self._ledgers is not None
        broker.sessions.stop_listening()
        await self._ledgers.stop()
        if broker.offloading is not None:
            await broker.offloading.stop()
        await broker.services.tasks.stop()


class SlowStore(MemoryStore):
    """Metadata store in which each transaction takes an iteration of the event loop, as in a real store."""

    async def transact(self, steps: Sequence[Step]) -> None:
        await asyncio.sleep(0)
        await super().transact(steps)

    def join(self) -> SlowStore:
        return SlowStore(shared=self._shared)


class Surprises(logging.Handler):
    """Log handler that collects records with a traceback, which are unexpected exceptions."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(f"{record.getMessage()} {logging.Formatter().formatException(record.exc_info)}")

    def __enter__(self) -> Surprises:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


class Pipe(asyncio.Transport):
    """Broker's transport of a connection without a socket. `reader` receives the bytes that the broker writes."""

    def __init__(self, connection: Session) -> None:
        super().__init__()
        self.reader = asyncio.StreamReader(limit=1 << 30)
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._inbox: list[bytes] = []
        self._reads = True
        self._closed = False
        connection.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closed:
            self.reader.feed_data(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self._loop.call_soon(self._deliver)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self.reader.feed_eof()
            self._connection.connection_lost(None)

    def from_client(self, data: bytes) -> None:
        self._inbox.append(data)
        self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        if not self._reads:
            return
        rest = memoryview(b"".join(self._inbox))
        self._inbox.clear()
        while rest and not self._closed:
            room = self._connection.get_buffer(len(rest))
            taken = min(len(room), len(rest))
            room[:taken] = rest[:taken]
            self._connection.buffer_updated(taken)
            rest = rest[taken:]


class Client:
    """Client's end of a pipe, with the methods of a `StreamWriter` that `Raw` calls."""

    def __init__(self, connection: Session) -> None:
        self.transport = Pipe(connection)

    def write(self, data: bytes) -> None:
        self.transport.from_client(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.transport.from_client(b"".join(parts))
