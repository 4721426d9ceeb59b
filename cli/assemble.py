"""Everything in one process: its configuration, and its list of parts.

Nothing on disk is touched before everything that can be refused cheaply (URLs, ports) has been looked at.

Most of a start is imports, so what is needed later is imported later: the broker's modules while the bookie waits for
its disks, HTTP's beside the first clients. HTTP's port listens from the beginning; who asks there first waits for it.
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
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from quire.bookie.registration import describe
from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.cli.audit_topic import audit_topic
from quire.cli.broker_parts import broker_checks, start_archive, start_sidecars, start_wals
from quire.cli.doors import Doors, http_url_tls, open_doors, with_tls
from quire.cli.members import bookie_machine, make_member
from quire.cli.parts import Parts, allow_open_files
from quire.cli.settings import Given, StandaloneSettings, check_file, wal_defaults
from quire.cli.telemetry import tracing
from quire.ledger.directory import BookieDirectory, LocalDirectory
from quire.ledger.settings import LedgerSettings
from quire.metadata.open import look_at as look_at_metadata
from quire.metadata.store import MetadataStore
from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError
from quire.runtime.memory import keep_heap
from quire.runtime.metrics import MetricSource
from quire.runtime.settings import Loaded
from quire.runtime.tasks import Tasks
from quire.runtime.telemetry import TelemetrySettings
from quire.runtime.threads import DaemonThreads
from quire.runtime.watchdog import Watchdog
from quire.security.configuration import load as load_security
from quire.serving.settings import BrokerSettings
from quire.wal.settings import WalSettings

if TYPE_CHECKING:
    from aiohttp.web import Application

    from quire.serving.broker import Broker
    from quire.serving.cluster.addresses import Addresses
    from quire.wal.directory import WalDirectory

STANDALONE_DEFAULTS = {"write_quorum": 1, "ack_quorum": 1}
"""Where one process alone differs from a cluster: there is one bookie."""

STANDALONE = "standalone"
"""What this process is, and whose write-ahead logs on object storage are."""

IMPORT_S: Final = 10.0
"""How long a process that ends waits for an import that is under way."""

STANDALONE_KINDS = (
    StandaloneSettings,
    BrokerSettings,
    BookieSettings,
    WalSettings,
    LedgerSettings,
    TelemetrySettings,
)


@dataclass(frozen=True)
class StandaloneConfiguration:
    """The settings of every part of a standalone process."""

    process: Loaded[StandaloneSettings]
    broker: Loaded[BrokerSettings]
    bookie: Loaded[BookieSettings]
    wal: Loaded[WalSettings]
    ledger: Loaded[LedgerSettings]
    telemetry: Loaded[TelemetrySettings]

    @property
    def all(self) -> tuple[Loaded[Any], ...]:
        return (self.process, self.broker, self.bookie, self.wal, self.ledger, self.telemetry)


def load_standalone(given: Given) -> StandaloneConfiguration:
    """Flags, environment and file as settings; parts lie in the data directory. Raises `ConfigurationError`."""
    check_file(given.config, *STANDALONE_KINDS)
    process = given.load(StandaloneSettings)
    root = Path(process.values.data).absolute()
    ledger = given.load(LedgerSettings, STANDALONE_DEFAULTS)
    if ledger.values.write_quorum > 1:
        raise ConfigurationError("write_quorum must be 1: there is one bookie in this process")
    wal = given.load(WalSettings)
    places = {"journal": str(root / "journal"), "entry_log": str(root / "entries")}
    return StandaloneConfiguration(
        given.load(
            StandaloneSettings,
            {
                "metadata": f"sqlite://{quote(str(root / 'metadata.db'))}",
                "archive": wal.values.wal or f"file://{quote(str(root / 'archive'))}",
            },
        ),
        given.load(BrokerSettings, wal_defaults(wal.values)),
        given.load(BookieSettings, places),
        wal,
        ledger,
        given.load(TelemetrySettings),
    )


@dataclass(frozen=True)
class Standalone:
    """A running process: its parts, for those who look into it, and its addresses."""

    storage: Storage | WalDirectory
    broker: Broker
    addresses: Addresses
    http: asyncio.Task[None]
    """Done when HTTP is answered; raises why it cannot be."""

    @property
    def service_url(self) -> str:
        return self.addresses.service_url

    @property
    def http_url(self) -> str:
        return self.addresses.http_url


@asynccontextmanager
async def standalone(configuration: StandaloneConfiguration) -> AsyncIterator[Standalone]:
    """Broker, bookie or write-ahead log, metadata and archive in this process, running inside the `async with`."""
    process, broker_settings = configuration.process.values, configuration.broker.values
    telemetry, wal_url = configuration.telemetry.values, configuration.wal.values.wal
    clock = SystemClock()
    security = load_security(process.security)
    allow_open_files(broker_settings.connections_max)
    watchdog = Watchdog()
    async with Parts() as parts:
        doors = open_doors(parts, broker_settings.listen, process.http, security)
        broker_settings = with_tls(broker_settings, doors)
        look_at_metadata(process.metadata)
        secured = parts.security(security, clock)
        doors.audit(secured)
        archive = await start_archive(parts, process.archive)
        imports = DaemonThreads(1, "imports")
        parts.callback(imports.close, IMPORT_S)
        imported = imports.submit(import_module, "quire.serving.broker")
        storage: Storage | WalDirectory
        directory: BookieDirectory
        if wal_url:
            store = await parts.metadata(process.metadata, watchdog)
            storage = directory = await _write_ahead_log(parts, configuration.wal.values, store)
        else:
            storage = bookie = await parts.start(Storage(configuration.bookie.values, clock=clock))
            store = await parts.metadata(process.metadata, watchdog)
            directory = local = LocalDirectory()
            local.join(lambda: describe(bookie), bookie)
        imported.result()
        from quire.ledger.ledgers import Ledgers
        from quire.serving.broker import Broker
        from quire.serving.topic.services import Services

        ledgers = Ledgers(store, directory, clock, SystemRandom(), configuration.ledger.values)
        parts.push_async_callback(ledgers.stop)
        traced = tracing(parts, telemetry, STANDALONE, doors.service_url, clock)
        services = Services(broker_settings, store, ledgers, archive, clock, tracing=traced, security=secured)
        broker = Broker(services)
        broker.rest_on(storage)
        broker.addresses.http_url = doors.http_url
        broker.addresses.http_url_tls = http_url_tls(broker_settings.advertise_tls, doors)
        metrics: list[MetricSource] = [storage.metrics, watchdog.metrics]
        if broker_settings.archive_sidecars and broker.offloading is not None:
            metrics += await start_sidecars(parts, process.archive, broker.offloading.offloader)
        broker.admin.member = make_member(
            STANDALONE,
            doors.urls[0].partition("://")[2],
            bookie_machine(configuration.bookie.values, wal_url),
            configuration.all,
            security,
            broker_checks(broker, process.metadata, metrics, archive, wal_url),
        )
        await broker.start(doors.clients, doors.clients_tls)
        parts.push_async_callback(broker.stop)
        if (publishing := audit_topic(secured, broker.addresses)) is not None:
            await parts.start(publishing)
        tasks = Tasks("http")
        parts.push_async_callback(tasks.stop)
        http = tasks.start(_http(parts, imports, broker, metrics, doors, telemetry), "answering HTTP")
        keep_heap()
        watchdog.start()  # nobody was served before
        parts.callback(watchdog.stop)
        yield Standalone(storage, broker, broker.addresses, http)


async def _write_ahead_log(parts: Parts, settings: WalSettings, store: MetadataStore) -> WalDirectory:
    """On object storage, in the place of a bookie."""
    from quire.wal.collector import Collector

    wals = await start_wals(parts, settings, store, STANDALONE, LocalDirectory())
    await parts.start(Collector(wals.context, wals.own_wal, lambda: True))
    return wals


async def _http(
    parts: Parts,
    imports: DaemonThreads,
    broker: Broker,
    metrics: list[MetricSource],
    doors: Doors,
    telemetry: TelemetrySettings,
) -> None:
    """The last part of a start: imported, and made, beside the loop, for it takes a tenth of a second."""

    def made() -> Application:
        from quire.serving.admin.app import make_app

        return make_app(broker, metrics)

    application = await imports.run(made)
    from quire.cli.rest import serve_rest

    await serve_rest(parts, application, doors, telemetry, STANDALONE, doors.service_url)
    gc.freeze()  # as `keep_heap` did at the start: what was imported since is no garbage either
