"""Puts processes together. Each is one short function that reads like a list of parts.

Nothing on disk is touched before everything that can be refused cheaply (URLs, ports) has been looked at, and what
was begun is undone in reverse order when a later part fails.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.cli.settings import Given, StandaloneSettings, check_file
from quire.ledger.directory import LocalDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata.open import look_at as look_at_metadata
from quire.metadata.open import open_store as open_metadata
from quire.metadata.records import BookieRecord
from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError, Unavailable
from quire.runtime.memory import keep_heap
from quire.runtime.settings import Loaded, parse_address
from quire.runtime.watchdog import Watchdog
from quire.serving.admin.app import make_app
from quire.serving.admin.probes import MetricSource
from quire.serving.broker import Broker
from quire.serving.settings import BrokerSettings
from quire.tiering.archive import Archive
from quire.tiering.open import open_store as open_archive

log = logging.getLogger(__name__)

STANDALONE_DEFAULTS = {"write_quorum": 1, "ack_quorum": 1}
"""Where one process alone differs from a cluster: there is one bookie."""

ARCHIVE_ANSWERS_S: Final = 10.0
FILES_BESIDE_CONNECTIONS: Final = 1_000
"""Journal, entry logs, index, archive, and what people open by REST."""

STANDALONE_KINDS = (StandaloneSettings, BrokerSettings, BookieSettings, LedgerSettings)


@dataclass(frozen=True)
class StandaloneConfiguration:
    """The settings of every part of a standalone process."""

    process: Loaded[StandaloneSettings]
    broker: Loaded[BrokerSettings]
    bookie: Loaded[BookieSettings]
    ledger: Loaded[LedgerSettings]

    @property
    def all(self) -> tuple[Loaded[Any], ...]:
        return (self.process, self.broker, self.bookie, self.ledger)


def load_standalone(given: Given) -> StandaloneConfiguration:
    """Flags, environment and file as settings; parts lie in the data directory. Raises `ConfigurationError`."""
    check_file(given.config, *STANDALONE_KINDS)
    process = given.load(StandaloneSettings)
    root = Path(process.values.data).absolute()
    ledger = given.load(LedgerSettings, STANDALONE_DEFAULTS)
    if ledger.values.write_quorum > 1:
        raise ConfigurationError("write_quorum must be 1: there is one bookie in this process")
    places = {"journal": str(root / "journal"), "entry_log": str(root / "entries")}
    return StandaloneConfiguration(
        given.load(
            StandaloneSettings,
            {
                "metadata": f"sqlite://{quote(str(root / 'metadata.db'))}",
                "archive": f"file://{quote(str(root / 'archive'))}",
            },
        ),
        given.load(BrokerSettings),
        given.load(BookieSettings, places),
        ledger,
    )


def listen(address: str) -> socket.socket:
    """A bound socket, or a `ConfigurationError` that says what is in the way."""
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        hint = "; choose another with --listen or --http" if error.errno == errno.EADDRINUSE else ""
        raise ConfigurationError(f"cannot listen on {address}: {error.strerror}{hint}") from error
    sock.setblocking(False)
    return sock


def url_of(scheme: str, sock: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@dataclass(frozen=True)
class Standalone:
    """A running process: its parts, for those who look into it, and its addresses."""

    storage: Storage
    broker: Broker
    service_url: str
    http_url: str


async def look_at(archive: Archive) -> None:
    """Refuse an archive that can never work; one that does not answer now is only told of, for brokers must start."""
    try:
        async with asyncio.timeout(ARCHIVE_ANSWERS_S):
            await archive.store.prepare()
    except Unavailable as error:
        log.warning("the archive does not answer, so nothing moves there for now: %s", error)
    except TimeoutError:
        log.warning("the archive at %s hangs, so nothing moves there for now", archive.store.url)


def allow_open_files(connections_max: int) -> None:
    """Each connection is an open file, and the usual 1,024 are soon used up. As many as the machine lets us have."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + FILES_BESIDE_CONNECTIONS
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if wanted > now != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def watch_loop(stack: AsyncExitStack, prefix: str = "quire") -> Watchdog:
    """A watchdog of this process's loop, until the stack unwinds; `prefix` begins its metrics' names."""
    watchdog = Watchdog(prefix)
    watchdog.start()
    stack.callback(watchdog.stop)
    return watchdog


@asynccontextmanager
async def standalone(configuration: StandaloneConfiguration) -> AsyncIterator[Standalone]:
    """Broker, bookie, metadata and archive in this process, running inside the `async with`."""
    process, broker_settings = configuration.process.values, configuration.broker.values
    clock = SystemClock()
    allow_open_files(broker_settings.connections_max)
    watchdog = Watchdog()
    async with AsyncExitStack() as stack:
        clients = listen(broker_settings.listen)
        stack.callback(clients.close)
        rest = listen(process.http)
        stack.callback(rest.close)
        archive = Archive(open_archive(process.archive), clock)
        stack.push_async_callback(archive.close)
        look_at_metadata(process.metadata)
        await look_at(archive)

        storage = Storage(configuration.bookie.values, clock=clock)
        await storage.start()
        stack.push_async_callback(storage.stop)
        store = await open_metadata(process.metadata)
        stack.push_async_callback(store.close)

        directory = LocalDirectory()
        directory.join(lambda: bookie_record(storage), storage)
        ledgers = Ledgers(store, directory, clock, SystemRandom(), configuration.ledger.values)
        stack.push_async_callback(ledgers.stop)
        broker = Broker(broker_settings, store, ledgers, archive, clock)
        broker.budget.add_gauge(lambda: storage.bytes_unflushed)
        storage.on_flushed(broker.budget.look_again)
        broker.watch(lambda: storage.why_not_ready)
        broker.addresses.http_url = url_of("http", rest)
        await serve_http(broker, rest, stack, lambda: bookie_metrics(storage), watchdog.metrics)
        await broker.start(clients)
        stack.push_async_callback(broker.stop)
        keep_heap()
        watchdog.start()  # nobody was served before
        stack.callback(watchdog.stop)
        yield Standalone(storage, broker, broker.service_url, broker.addresses.http_url)


async def serve_http(
    broker: Broker, sock: socket.socket, stack: AsyncExitStack, *more_metrics: MetricSource
) -> None:
    """The REST interface of a broker on a bound socket, until the stack unwinds."""
    runner = web.AppRunner(make_app(broker, more_metrics), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.SockSite(runner, sock).start()


def bookie_metrics(storage: Storage) -> dict[str, float]:
    """What a bookie of this process tells Prometheus."""
    stats = storage.stats()
    return {
        "quire_bookie_ledgers": stats.ledgers,
        "quire_bookie_unflushed_bytes": stats.unflushed_bytes,
        "quire_bookie_journal_groups_total": stats.journal_groups,
        "quire_bookie_journal_bytes_total": stats.journal_bytes,
        "quire_bookie_journal_live_bytes": stats.journal_live_bytes,
        "quire_bookie_checkpoints_total": stats.checkpoints,
        "quire_bookie_disk_free_bytes": stats.free_bytes,
        "quire_bookie_disk_size_bytes": stats.total_bytes,
        "quire_bookie_read_only": stats.read_only,
        "quire_bookie_failed": bool(stats.failure),
    }


def bookie_record(storage: Storage) -> BookieRecord:
    """How a bookie of this process appears to those who place ledgers."""
    stats, identity = storage.stats(), storage.bookie_id
    return BookieRecord(
        uuid=identity.uuid,
        incarnation=identity.incarnation,
        read_only=stats.read_only,
        read_only_why=storage.why_read_only,
        takes_priority=storage.takes_priority,
        short_of_space=storage.is_short_of_space,
        free_bytes=stats.free_bytes,
        total_bytes=stats.total_bytes,
    )
