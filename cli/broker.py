"""`quire broker`: one broker of a cluster, until SIGTERM or SIGINT.

It holds no data: start and stop as many as the load asks for. Brokers find each other and the bookies through the
metadata store. SIGTERM hands its topics over to the others first; killed, it leaves them to be recovered when its
session is over.

The line on standard output that programs may rely on is `ready pulsar://HOST:PORT http://HOST:PORT`: the addresses
that clients are told, without and then with TLS.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from typing import Any
from urllib.parse import urlsplit

import click

from quire.cli.audit_topic import audit_topic
from quire.cli.broker_parts import broker_checks, start_archive, start_sidecars, start_wals
from quire.cli.doors import EVERYWHERE, http_url_tls, open_doors, with_tls
from quire.cli.members import make_member
from quire.cli.parts import Parts, allow_open_files
from quire.cli.rest import serve_rest
from quire.cli.settings import (
    SECURITY,
    Given,
    check_cluster_store,
    check_file,
    check_log,
    settings_options,
    start_log,
    wal_defaults,
)
from quire.cli.telemetry import tracing
from quire.cli.until_signal import ready, run_until_signal
from quire.ledger.bookie_client import BookieClient
from quire.ledger.directory import BookieDirectory, ClusterDirectory
from quire.ledger.ledgers import Ledgers
from quire.ledger.reach import Reach
from quire.ledger.repair import Repair
from quire.ledger.settings import LedgerSettings, RepairSettings
from quire.metadata.cluster import begin_cluster, find_cluster, is_begun
from quire.metadata.open import look_at as look_at_metadata
from quire.metadata.store import MetadataStore
from quire.metadata.underreplicated import Reports
from quire.objects.open import open_for_log
from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError
from quire.runtime.machine import Machine
from quire.runtime.memory import keep_heap
from quire.runtime.metrics import MetricSource
from quire.runtime.settings import MILLISECONDS, Loaded, format_address, parse_address, setting
from quire.runtime.telemetry import TelemetrySettings
from quire.security import tls
from quire.security.configuration import load as load_security
from quire.serving.admin.app import make_app
from quire.serving.broker import Broker
from quire.serving.cluster.ownership import ClusterOwnership
from quire.serving.settings import BrokerSettings
from quire.serving.topic.services import Services
from quire.tiering.metadata_copy import MetadataCopies
from quire.wal import wal_object
from quire.wal.collector import Collector
from quire.wal.settings import WalSettings

CLUSTER_DEFAULTS = {"cluster": "quire", "namespace_bundles": 16}
"""Where a broker of a cluster differs from a process that is alone."""


@dataclass(frozen=True)
class BrokerProcessSettings:
    """What a broker needs beside its topics when it is a process of its own."""

    metadata: str = setting("", "Metadata store of the cluster, zk://HOST:PORT,…/CHROOT.")
    archive: str = setting(
        "", "Object store for sealed segments, s3://BUCKET/PREFIX or file:///PATH; empty: none."
    )
    http: str = setting(
        "127.0.0.1:8080", "Address of the REST interface, /metrics and /health; port 0: any free."
    )
    http_advertise: str = setting(
        "",
        "Where other brokers send REST requests, HOST:PORT; empty: the host of advertise, the port of http.",
    )
    new_cluster: bool = setting(
        False,
        "With wal, begin a cluster where the metadata store holds none; else a broker refuses to start there.",
    )
    security: str = setting("", SECURITY)
    rack: str = setting("", "Rack of this broker; replicas there are read first.")
    balance_moves_per_minute_max: int = setting(
        10, "Bundles that this broker gives away in a minute when it has too much load; 0: none."
    )
    log_level: str = setting("info", "Least severe line of the log: debug, info, warning or error.")
    log_json: bool = setting(False, "Log lines as JSON.")
    log_slow_ms: int = setting(
        1_000,
        "Operations that take longer are named in the log, with what took how long; 0: none.",
        unit=MILLISECONDS,
    )

    def validate(self) -> None:
        """Raises `ConfigurationError`."""
        check_log(self)
        check_cluster_store(self.metadata)
        if self.balance_moves_per_minute_max < 0:
            raise ConfigurationError("balance_moves_per_minute_max must not be negative")
        parse_address(self.http, "http")


KINDS = (
    BrokerProcessSettings,
    BrokerSettings,
    WalSettings,
    LedgerSettings,
    RepairSettings,
    TelemetrySettings,
)


@dataclass(frozen=True)
class BrokerConfiguration:
    process: Loaded[BrokerProcessSettings]
    broker: Loaded[BrokerSettings]
    wal: Loaded[WalSettings]
    ledger: Loaded[LedgerSettings]
    repair: Loaded[RepairSettings]
    telemetry: Loaded[TelemetrySettings]

    @property
    def all(self) -> tuple[Loaded[Any], ...]:
        return (self.process, self.broker, self.wal, self.ledger, self.repair, self.telemetry)


def load(given: Given) -> BrokerConfiguration:
    """Flags, environment and file as settings. Raises `ConfigurationError`."""
    check_file(given.config, *KINDS)
    process, wal = given.load(BrokerProcessSettings), given.load(WalSettings)
    if process.values.new_cluster and not wal.values.wal:
        raise ConfigurationError("new_cluster needs wal; a cluster with bookies is begun by its bookies")
    return BrokerConfiguration(
        process,
        given.load(BrokerSettings, {**CLUSTER_DEFAULTS, **wal_defaults(wal.values)}),
        wal,
        given.load(LedgerSettings),
        given.load(RepairSettings),
        given.load(TelemetrySettings),
    )


@asynccontextmanager
async def broker(configuration: BrokerConfiguration) -> AsyncIterator[Broker]:
    """A broker of a cluster in this process, taking part inside the `async with`."""
    process, settings = configuration.process.values, configuration.broker.values
    telemetry = configuration.telemetry.values
    security = load_security(process.security)
    inside = tls.between_processes(security)
    clock = SystemClock()
    allow_open_files(settings.connections_max)
    async with Parts() as parts:
        watchdog = parts.watch_loop()
        doors = open_doors(parts, settings.listen, process.http, security)
        service_url = advertised(settings.advertise, doors.service_url, settings.listen)
        settings = with_tls(replace(settings, advertise=service_url), doors)
        name = urlsplit(settings.advertise_tls if doors.clients is None else service_url).netloc
        look_at_metadata(process.metadata)
        secured = parts.security(security, clock, calls_brokers=True)
        doors.audit(secured)
        archive = await start_archive(parts, process.archive) if process.archive else None
        to_metadata = inside.client.current if inside else None
        store = await parts.metadata(process.metadata, watchdog, to_metadata, security.metadata.login)
        if process.new_cluster and not await is_begun(store):
            await _refuse_remains(store, configuration.wal.values)
            await begin_cluster(store, clock.now_ms())
        await find_cluster(store, process.metadata)

        bookies = await parts.start(ClusterDirectory(store, lambda bookie: BookieClient.of(bookie, inside)))
        wals = None
        if configuration.wal.values.wal:
            wals = await start_wals(parts, configuration.wal.values, store, name, bookies)
        ledgers = await _ledgers(parts, configuration, store, wals or bookies)
        ownership = ClusterOwnership(
            store, clock, name, moves_per_minute_max=process.balance_moves_per_minute_max
        )
        ownership.reports.tell_lag(watchdog.lag_s_max)
        reach = Reach(wals or bookies, ledgers.ack_quorum, ownership.shedding.look_soon)
        ownership.reports.tell_cannot_write(lambda: reach.why_not)
        traced, to_brokers = tracing(parts, telemetry, "broker", name, clock), tls.to_brokers(security)
        services = Services(
            settings, store, ledgers, archive, clock, to_brokers, tracing=traced, security=secured
        )
        running = Broker(services, ownership)
        running.services.budget.add_gauge(lambda: ledgers.bytes_lagging)
        if wals is not None:
            running.rest_on(wals)
        told = running.addresses
        if doors.http is not None:
            told.http_url = advertised_http(process.http_advertise, service_url, doors.http_url)
        told.http_url_tls = http_url_tls(settings.advertise_tls, doors)
        repair = Repair(store, wals or bookies, clock, SystemRandom(), configuration.repair.values, name)
        repair.on_open(running.ownerless.want)
        metrics: list[MetricSource] = [watchdog.metrics, repair.metrics]
        if wals is not None:
            metrics.append(wals.metrics)
            await parts.start(Collector(wals.context, wals.own_wal, lambda: repair.is_coordinator))
        if settings.archive_sidecars and running.offloading is not None:
            metrics += await start_sidecars(parts, process.archive, running.offloading.offloader)
        wal_url = configuration.wal.values.wal
        checks = broker_checks(running, process.metadata, metrics, archive, wal_url, to_metadata)
        running.admin.member = make_member("broker", name, Machine(), configuration.all, security, checks)
        await serve_rest(parts, make_app(running, metrics), doors, telemetry, "broker", name)
        await running.start(doors.clients, doors.clients_tls)
        parts.push_async_callback(running.stop)
        await parts.start(reach)
        if (publishing := audit_topic(secured, running.addresses)) is not None:
            await parts.start(publishing)
        await parts.start(repair)
        if archive is not None:
            await parts.start(MetadataCopies(store, archive.store, clock, lambda: repair.is_coordinator))
        keep_heap()
        yield running


async def _refuse_remains(store: MetadataStore, settings: WalSettings) -> None:
    """Raise `ConfigurationError` where the object store has logs of a cluster: its metadata may have been lost."""
    objects = open_for_log(settings.wal, settings.threads)
    try:
        await objects.prepare()
        remains = await objects.list(wal_object.FOLDER)
    finally:
        await objects.close()
    if remains and not await is_begun(store):  # another broker may have begun it meanwhile
        raise ConfigurationError(
            f"{objects.url} has write-ahead logs, and the metadata store knows of no cluster: restore its contents, "
            "rebuild it (quire rescue metadata --wal), or begin the new cluster with another prefix"
        )


async def _ledgers(
    parts: Parts,
    configuration: BrokerConfiguration,
    store: MetadataStore,
    directory: BookieDirectory,
) -> Ledgers:
    """Those of this broker, who reports copies that it finds damaged."""
    clock = SystemClock()
    ledgers = Ledgers(
        store,
        directory,
        clock,
        SystemRandom(),
        configuration.ledger.values,
        rack=configuration.process.values.rack,
        lost_after_s=configuration.repair.values.repair_delay_ms / 1000,
    )
    parts.push_async_callback(ledgers.stop)
    reports = await parts.start(Reports(store, clock))
    ledgers.on_damage(lambda bookie, *what: reports.met(str(bookie), *what))
    return ledgers


def advertised(advertise: str, listening: str, listen_address: str) -> str:
    """The address that clients are told, as a URL. Raises `ConfigurationError`."""
    if advertise:
        if not urlsplit(advertise).hostname or not _port_of(advertise):
            raise ConfigurationError(f"advertise {advertise!r} is no address; write pulsar://HOST:PORT")
        return advertise
    if parse_address(listen_address)[0] in EVERYWHERE:
        raise ConfigurationError(
            f"advertise must name the host that clients reach this broker at, for it listens on {listen_address}"
        )
    return listening


def advertised_http(advertise: str, service_url: str, listening: str) -> str:
    """The REST interface's address as others are told it. Raises `ConfigurationError`."""
    if not advertise:
        host = urlsplit(service_url).hostname or ""
        return f"http://{format_address(host, _port_of(listening))}"
    url = advertise if "://" in advertise else f"http://{advertise}"
    if not _port_of(url):
        raise ConfigurationError(f"http_advertise {advertise!r} is no address; write HOST:PORT")
    return url


def _port_of(url: str) -> int:
    """0 when there is none."""
    try:
        return urlsplit(url).port or 0
    except ValueError:
        return 0


@click.command("broker")
@settings_options(*KINDS, defaults=CLUSTER_DEFAULTS)
def command(config: Path | None, **flags: Any) -> None:
    """Run one broker of a cluster.

    What is published is kept by bookies, or with --wal in an object store.

    Stop it with SIGTERM: its topics go to the other brokers with a pause of a moment. Killing it loses nothing either;
    its topics go on when its session is over.

    \b
    Example:
      quire broker --metadata zk://zookeeper:2181/quire --archive s3://bucket/prefix \\
                   --listen 0.0.0.0:6650 --advertise pulsar://broker-1:6650 --http 0.0.0.0:8080
      quire broker --metadata zk://zookeeper:2181/quire --wal s3://bucket/prefix --archive s3://bucket/prefix \\
                   --new-cluster true
    """
    configuration = load(Given(flags, config))
    start_log(configuration.process.values)
    run_until_signal(_run(configuration))


async def _run(configuration: BrokerConfiguration) -> None:
    async with broker(configuration) as running:
        await ready(*running.addresses.all)
