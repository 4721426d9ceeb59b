"""Broker of a cluster.

It stores no data, so operators may start and stop brokers as the load requires. Brokers discover each other and the
bookies through the metadata store. SIGTERM first transfers a broker's topics to other brokers; after SIGKILL, they
recover its topics when its session has expired.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import SystemRandom
from urllib.parse import urlsplit

from quire.ledger.bookie_client import BookieClient
from quire.ledger.directory import BookieDirectory, ClusterDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.reach import Reach
from quire.ledger.repair import Repair
from quire.ledger.settings import LedgerSettings, RepairSettings
from quire.metadata.cluster import find_cluster
from quire.process.broker_parts import make_broker, publish_audit, rest_on, start_sidecars
from quire.process.dynamic_settings import follow_moves
from quire.process.ledger_home import home_of, start_ledgers
from quire.process.listeners import EVERYWHERE
from quire.process.object_stores import begin_with_wal, enter_archive, open_archive, start_wals
from quire.process.parts import Process
from quire.process.settings import (
    SECURITY,
    Given,
    LoadedSettings,
    LogSettings,
    check_cluster_store,
    wal_defaults,
)
from quire.runtime.errors import ConfigurationError
from quire.runtime.memory import keep_heap
from quire.runtime.settings import format_address, parse_address, setting
from quire.runtime.telemetry import TelemetrySettings
from quire.security import tls
from quire.serving.admin.app import SCRAPES, make_app
from quire.serving.broker import Broker
from quire.serving.ownership.cluster_ownership import ClusterOwnership
from quire.serving.settings import BrokerSettings
from quire.tiering.metadata_copy import MetadataCopies
from quire.wal.collector import Collector
from quire.wal.settings import WalSettings

DEFAULTS = {"cluster": "quire", "namespace_bundles": 16}
"""Defaults of a cluster's broker that differ from those of a standalone process."""


@dataclass(frozen=True)
class BrokerProcessSettings:
    """Settings of a broker process, besides those of its topics."""

    metadata: str = setting("", "Metadata store of the cluster, zk://HOST:PORT,…/CHROOT.")
    archive: str = setting(
        "", "Object store for sealed segments, s3://BUCKET/PREFIX or file:///PATH; empty: none."
    )
    http: str = setting(
        "127.0.0.1:8080", "Address of the REST interface, /metrics and /health; port 0: any free."
    )
    http_advertise: str = setting(
        "",
        "Address for REST requests of other brokers, HOST:PORT; empty: the host of advertise, the port of http.",
    )
    new_cluster: bool = setting(
        False,
        "With wal, create a cluster if the metadata store has none; else a broker refuses to start there.",
    )
    security: str = setting("", SECURITY)
    rack: str = setting("", "Rack of this broker; replicas there are read first.")
    balance_moves_per_minute_max: int = setting(
        10, "Bundles that this broker gives away per minute while it is overloaded; 0: none."
    )

    def validate(self) -> None:
        """Check the settings. Raises `ConfigurationError`."""
        check_cluster_store(self.metadata)
        if self.balance_moves_per_minute_max < 0:
            raise ConfigurationError("balance_moves_per_minute_max must not be negative")
        parse_address(self.http, "http")


KINDS = (
    BrokerProcessSettings,
    LogSettings,
    BrokerSettings,
    WalSettings,
    LedgerSettings,
    RepairSettings,
    TelemetrySettings,
)


def load(given: Given) -> LoadedSettings:
    """Load settings from flags, environment and file. Raises `ConfigurationError`."""
    wal = given.load(WalSettings)
    loaded = given.load_all(KINDS, {**DEFAULTS, **wal_defaults(wal)})
    if loaded[BrokerProcessSettings].new_cluster and not wal.wal:
        raise ConfigurationError(
            "new_cluster needs wal; a cluster with bookies is created by its first bookie"
        )
    return loaded


@asynccontextmanager
async def broker(settings: LoadedSettings) -> AsyncIterator[Broker]:
    """Run a broker of a cluster in this process, registered inside the `async with`."""
    own = settings[BrokerProcessSettings]
    async with Process("broker", settings, own) as process:
        to_bookies, clock = process.inside, process.clock
        process.watch_loop()
        of_broker = _listen(process, own)
        archived = await open_archive(process, own.archive)
        store = await process.open_metadata(create=own.new_cluster)
        if own.new_cluster:
            await begin_with_wal(process)
        cluster = (await find_cluster(store, own.metadata)).uuid
        archive = await enter_archive(process, archived, cluster)

        bookies = await process.start(ClusterDirectory(store, lambda one: BookieClient.of(one, to_bookies)))
        wals = None
        if settings[WalSettings].wal:
            wals = await start_wals(process, cluster, process.name, bookies)
        directory = wals or bookies
        home = home_of(own.rack, store, cluster, archive, wals)
        ledgers = await start_ledgers(process, home, directory)
        ownership, reach = _ownership(process, directory, ledgers)
        to_brokers = tls.to_brokers(process.security_file)
        running = make_broker(process, of_broker, ledgers, archive, ownership, to_brokers)
        follow_moves(running, own, ownership.shedding.limit_moves)
        running.services.budget.add_gauge(lambda: ledgers.lag.bytes)
        if process.listeners.http is not None:
            running.addresses.http_url = advertised_http(
                own.http_advertise, of_broker.advertise, process.listeners.http_url
            )
        repair = Repair(
            store, directory, clock, SystemRandom(), settings[RepairSettings], process.name, cluster
        )
        repair.on_open(running.orphaned_ledgers.close_later)
        process.metrics.append(repair.metrics)
        if wals is not None:
            rest_on(process, running, wals)
            await process.start(Collector(wals.context, wals.own_wal, lambda: repair.is_coordinator))
        await start_sidecars(process, running, own.archive)

        application = make_app(running, process.metrics)
        await process.serve_http(application, process.listeners)
        await process.send_metrics(application[SCRAPES])
        await running.start(process.listeners.clients, process.listeners.clients_tls)
        process.push_async_callback(running.stop)
        await process.start(reach)
        await publish_audit(process, running)
        await process.start(repair)
        if archive is not None:
            await process.start(MetadataCopies(archive.place, clock, lambda: repair.is_coordinator))
        keep_heap()
        yield running


def _listen(process: Process, own: BrokerProcessSettings) -> BrokerSettings:
    """Listen for clients. Return the settings with the advertised addresses. Raises `ConfigurationError`."""
    settings = process.settings[BrokerSettings]
    process.listen_for_clients(settings.listen, own.http, settings.connections_max, calls_brokers=True)
    listeners = process.listeners
    url = advertised(settings.advertise, listeners.service_url, settings.listen)
    settings = listeners.with_tls(replace(settings, advertise=url))
    process.instance = urlsplit(settings.advertise_tls if listeners.clients is None else url).netloc
    return settings


def _ownership(
    process: Process, directory: BookieDirectory, ledgers: Ledgers
) -> tuple[ClusterOwnership, Reach]:
    """Create the broker's ownership of bundles, and the check of how many bookies are reachable.

    The broker unloads bundles while its event loop lags, or while too few bookies are reachable.
    """
    moves_max = process.settings[BrokerProcessSettings].balance_moves_per_minute_max
    ownership = ClusterOwnership(process.store, process.clock, process.name, moves_per_minute_max=moves_max)
    ownership.reports.set_lag_source(process.watchdog.lag_s_max)
    reach = Reach(directory, ledgers.ack_quorum, ownership.shedding.shed_soon)
    ownership.reports.set_cannot_write_source(lambda: reach.why_not)
    return ownership, reach


def advertised(advertise: str, listening: str, listen_address: str) -> str:
    """Return the URL that clients connect to. Raises `ConfigurationError`."""
    if advertise:
        if not urlsplit(advertise).hostname or not _port_of(advertise):
            raise ConfigurationError(f"advertise {advertise!r} is not an address; write pulsar://HOST:PORT")
        return advertise
    if parse_address(listen_address)[0] in EVERYWHERE:
        raise ConfigurationError(
            f"advertise must name the host at which clients reach this broker, because it listens on {listen_address}"
        )
    return listening


def advertised_http(advertise: str, service_url: str, listening: str) -> str:
    """Return the advertised address of the REST interface. Raises `ConfigurationError`."""
    if not advertise:
        host = urlsplit(service_url).hostname or ""
        return f"http://{format_address(host, _port_of(listening))}"
    url = advertise if "://" in advertise else f"http://{advertise}"
    if not _port_of(url):
        raise ConfigurationError(f"http_advertise {advertise!r} is not an address; write HOST:PORT")
    return url


def _port_of(url: str) -> int:
    """Return the port of a URL; 0 if it has none."""
    try:
        return urlsplit(url).port or 0
    except ValueError:
        return 0
