"""Standalone process: broker, bookie or write-ahead log, metadata and archive.

URLs and ports are checked before anything is written to disk.

Imports take most of the start-up time, so the broker's modules are imported while the bookie waits for its disks, and
the modules of HTTP while the first clients connect. The HTTP port listens from the beginning; early requests wait.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote

from quire.bookie.membership import enter_standalone
from quire.bookie.registration import describe
from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.ledger.directory import BookieDirectory, LocalDirectory
from quire.ledger.settings import LedgerSettings
from quire.metadata.cluster import read_cluster
from quire.process.member_checks import bookie_machine
from quire.process.object_stores import begin_with_wal, enter_archive, open_archive, start_wals
from quire.process.parts import Process
from quire.process.settings import SECURITY, Given, LoadedSettings, LogSettings, wal_defaults
from quire.runtime.errors import ConfigurationError
from quire.runtime.memory import keep_heap
from quire.runtime.settings import parse_address, setting
from quire.runtime.tasks import Tasks
from quire.runtime.telemetry import TelemetrySettings
from quire.runtime.threads import DaemonThreads
from quire.serving.settings import BrokerSettings
from quire.tiering.archive import Archive
from quire.wal.settings import WalSettings

if TYPE_CHECKING:
    from aiohttp.web import Application

    from quire.runtime.probes import Scrapes
    from quire.serving.broker import Broker
    from quire.serving.ownership.port import Addresses
    from quire.wal.directory import WalDirectory

DEFAULTS = {"write_quorum": 1, "ack_quorum": 1}
"""Defaults of a standalone process that differ from a cluster's, because it has one bookie."""

STANDALONE: Final = "standalone"
"""Kind of this process, and the owner of its write-ahead logs on object storage."""

IMPORT_S: Final = 10.0
"""Seconds that a stopping process waits for an import in progress."""


@dataclass(frozen=True)
class StandaloneSettings:
    """Settings of a standalone process. Its data are in the directory `data` by default."""

    data: str = setting("data", "Directory for everything that is kept.")
    metadata: str = setting("", "Metadata store, sqlite:///PATH; empty: in the data directory.")
    archive: str = setting(
        "",
        "Object store for sealed segments, file:///PATH or s3://BUCKET/PREFIX; empty: in the data directory.",
    )
    http: str = setting(
        "127.0.0.1:8080", "Address of the REST interface, /metrics and /health; port 0: any free."
    )
    security: str = setting("", SECURITY)

    def validate(self) -> None:
        """Check the settings. Raises `ConfigurationError`."""
        parse_address(self.http, "http")
        if not self.data:
            raise ConfigurationError("data must name a directory")


KINDS = (
    StandaloneSettings,
    LogSettings,
    BrokerSettings,
    BookieSettings,
    WalSettings,
    LedgerSettings,
    TelemetrySettings,
)


def load(given: Given) -> LoadedSettings:
    """Load settings from flags, environment and file, with paths in the data directory. Raises `ConfigurationError`."""
    root, wal = Path(given.load(StandaloneSettings).data).absolute(), given.load(WalSettings)
    places = {
        "metadata": f"sqlite://{quote(str(root / 'metadata.db'))}",
        "archive": wal.wal or f"file://{quote(str(root / 'archive'))}",
        "journal": str(root / "journal"),
        "entry_log": str(root / "entries"),
    }
    loaded = given.load_all(KINDS, {**DEFAULTS, **places, **wal_defaults(wal)})
    if loaded[LedgerSettings].write_quorum > 1:
        raise ConfigurationError("write_quorum must be 1, because a standalone process has one bookie")
    return loaded


@dataclass(frozen=True)
class Standalone:
    """Running standalone process: its addresses, and its parts for tests."""

    storage: Storage | WalDirectory
    broker: Broker
    addresses: Addresses
    http: asyncio.Task[None]
    """Task that is done when HTTP is served, or fails with the reason."""
    process: Process
    """Its settings, its ports and its security file."""

    @property
    def service_url(self) -> str:
        return self.addresses.service_url

    @property
    def http_url(self) -> str:
        return self.addresses.http_url


@asynccontextmanager
async def standalone(settings: LoadedSettings) -> AsyncIterator[Standalone]:
    """Run a broker with a bookie or write-ahead log, metadata and archive in this process, inside the `async with`."""
    own, of_broker = settings[StandaloneSettings], settings[BrokerSettings]
    async with Process(STANDALONE, settings, own) as process:
        process.listen_for_clients(of_broker.listen, own.http, of_broker.connections_max)
        archived = await open_archive(process, own.archive)
        imports = DaemonThreads(1, "imports")
        process.callback(imports.close, IMPORT_S)
        imported = imports.submit(import_module, "quire.process.broker_parts")
        storage, directory, cluster = await _storage(process)
        archive = await enter_archive(process, archived, cluster)
        imported.result()
        from quire.process import broker_parts

        broker = _broker(process, directory, cluster, archive)
        broker_parts.rest_on(process, broker, storage)
        await broker_parts.start_sidecars(process, broker, own.archive)
        await broker.start(process.listeners.clients, process.listeners.clients_tls)
        process.push_async_callback(broker.stop)
        await broker_parts.publish_audit(process, broker)
        tasks = Tasks("http")
        process.push_async_callback(tasks.stop)
        http = tasks.start(_http(process, imports, broker), "answering HTTP")
        keep_heap()
        process.watch_loop()  # started last, because there were no clients before
        yield Standalone(storage, broker, broker.addresses, http, process)


async def _storage(process: Process) -> tuple[Storage | WalDirectory, BookieDirectory, str]:
    """Start a bookie, or a write-ahead log instead. Return it, its directory, and the cluster's id."""
    settings = process.settings
    if settings[WalSettings].wal:
        from quire.wal.collector import Collector

        store = await process.open_metadata()
        await begin_with_wal(process)
        cluster = (await read_cluster(store)).uuid
        wals = await start_wals(process, cluster, STANDALONE, LocalDirectory())
        await process.start(Collector(wals.context, wals.own_wal, lambda: True))
        return wals, wals, cluster
    bookie = await process.start(Storage(settings[BookieSettings], clock=process.clock))
    process.machine = bookie_machine(settings[BookieSettings])
    store = await process.open_metadata()
    cluster = await enter_standalone(store, settings[StandaloneSettings].metadata, bookie, process.clock)
    directory = LocalDirectory()
    directory.join(lambda: describe(bookie), bookie)
    return bookie, directory, cluster


def _broker(process: Process, directory: BookieDirectory, cluster: str, archive: Archive | None) -> Broker:
    from quire.ledger.ledgers import Ledgers
    from quire.process.broker_parts import make_broker
    from quire.process.ledger_home import home_of

    settings = process.listeners.with_tls(process.settings[BrokerSettings])
    wals = cast("WalDirectory", directory) if process.settings[WalSettings].wal else None
    ledgers = Ledgers(
        process.store,
        directory,
        process.clock,
        SystemRandom(),
        process.settings[LedgerSettings],
        home=home_of("", process.store, cluster, archive, wals),
    )
    process.push_async_callback(ledgers.stop)
    broker = make_broker(process, settings, ledgers, archive)
    broker.addresses.http_url = process.listeners.http_url_at(settings.advertise)
    return broker


async def _http(process: Process, imports: DaemonThreads, broker: Broker) -> None:
    """Start HTTP as the last part, imported and created on a thread, because that takes 100 ms."""

    def make() -> tuple[Application, Scrapes]:
        from quire.serving.admin.app import SCRAPES, make_app

        application = make_app(broker, process.metrics)
        return application, application[SCRAPES]

    application, scrapes = await imports.run(make)
    await process.serve_http(application, process.listeners)
    await process.send_metrics(scrapes)
    gc.freeze()  # like `keep_heap` at the start, because later imports are long-lived as well
