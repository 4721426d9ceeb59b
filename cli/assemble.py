"""Everything in one process: its configuration, and its list of parts.

Nothing on disk is touched before everything that can be refused cheaply (URLs, ports) has been looked at.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any
from urllib.parse import quote

from quire.bookie.registration import describe
from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.cli.audit_topic import audit_topic
from quire.cli.broker_parts import broker_checks, start_archive, start_sidecars, start_wals
from quire.cli.doors import http_url_tls, open_doors, with_tls
from quire.cli.members import bookie_machine, make_member
from quire.cli.parts import Parts, allow_open_files
from quire.cli.settings import Given, StandaloneSettings, check_file, wal_defaults
from quire.cli.telemetry import send_metrics, tracing
from quire.ledger.directory import BookieDirectory, LocalDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata.open import look_at as look_at_metadata
from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError
from quire.runtime.memory import keep_heap
from quire.runtime.metrics import MetricSource
from quire.runtime.settings import Loaded
from quire.runtime.telemetry import TelemetrySettings
from quire.runtime.watchdog import Watchdog
from quire.security.configuration import load as load_security
from quire.serving.admin.app import SCRAPES, make_app
from quire.serving.broker import Broker
from quire.serving.cluster.addresses import Addresses
from quire.serving.settings import BrokerSettings
from quire.serving.topic.services import Services
from quire.wal.collector import Collector
from quire.wal.directory import WalDirectory
from quire.wal.settings import WalSettings

STANDALONE_DEFAULTS = {"write_quorum": 1, "ack_quorum": 1}
"""Where one process alone differs from a cluster: there is one bookie."""

STANDALONE = "standalone"
"""Whose write-ahead logs on object storage are."""

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
    telemetry = configuration.telemetry.values
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
        storage: Storage | WalDirectory
        directory: BookieDirectory
        if configuration.wal.values.wal:
            store = await parts.metadata(process.metadata, watchdog)
            wals = await start_wals(
                parts, configuration.wal.values, store, clock, STANDALONE, LocalDirectory()
            )
            await parts.start(Collector(wals.context, wals.own_wal, lambda: True))
            storage = directory = wals
        else:
            bookie = await parts.start(Storage(configuration.bookie.values, clock=clock))
            store = await parts.metadata(process.metadata, watchdog)
            local = LocalDirectory()
            local.join(lambda: describe(bookie), bookie)
            storage, directory = bookie, local
        ledgers = Ledgers(store, directory, clock, SystemRandom(), configuration.ledger.values)
        parts.push_async_callback(ledgers.stop)
        traced = tracing(parts, telemetry, "standalone", doors.service_url, clock)
        services = Services(broker_settings, store, ledgers, archive, clock, tracing=traced, security=secured)
        broker = Broker(services)
        broker.rest_on(storage)
        broker.addresses.http_url = doors.http_url
        broker.addresses.http_url_tls = http_url_tls(broker_settings.advertise_tls, doors)
        metrics: list[MetricSource] = [storage.metrics, watchdog.metrics]
        if broker_settings.archive_sidecars and broker.offloading is not None:
            metrics += await start_sidecars(parts, process.archive, broker.offloading.offloader)
        broker.admin.member = make_member(
            "standalone",
            doors.urls[0].partition("://")[2],
            bookie_machine(configuration.bookie.values, configuration.wal.values.wal),
            configuration.all,
            security,
            broker_checks(broker, process.metadata, metrics, archive, configuration.wal.values.wal),
        )
        application = make_app(broker, metrics)
        await parts.serve_http(application, doors.http, doors.http_tls)
        await send_metrics(parts, telemetry, "standalone", doors.service_url, application[SCRAPES])
        await broker.start(doors.clients, doors.clients_tls)
        parts.push_async_callback(broker.stop)
        if (publishing := audit_topic(secured, broker.addresses)) is not None:
            await parts.start(publishing)
        keep_heap()
        watchdog.start()  # nobody was served before
        parts.callback(watchdog.stop)
        yield Standalone(storage, broker, broker.addresses)
