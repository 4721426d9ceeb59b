"""Bookie: one storage node of a cluster.

It registers when it can serve brokers: after the identity check and the replay of its journal, once it listens. SIGTERM
first unregisters it, so that brokers no longer choose it, and keeps its data. To remove it permanently, an operator
drains it first (`quire bookies decommission`). With `--drain-on-stop-ms`, SIGTERM itself drains it
(`quire.bookie.drain`), for clusters that are scaled by stopping containers; SIGINT still stops it without draining.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from quire.bookie.disks import real_disks
from quire.bookie.drain import Drain
from quire.bookie.membership import enter_cluster
from quire.bookie.registration import Registration
from quire.bookie.scrub import Scrub
from quire.bookie.server import BookieServer
from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.metadata.store import MetadataStore
from quire.metadata.underreplicated import Reports
from quire.process.bookie_http import advertised_http, make_app
from quire.process.listeners import EVERYWHERE, Listeners
from quire.process.member_checks import bookie_machine
from quire.process.parts import Process
from quire.process.settings import SECURITY, LoadedSettings, LogSettings, check_cluster_store
from quire.runtime import probes
from quire.runtime.budget import ByteBudget
from quire.runtime.disk import RealDisk
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import BYTES_IN_FLIGHT_MAX
from quire.runtime.memory import keep_heap
from quire.runtime.metrics import Values
from quire.runtime.settings import BYTES, MILLISECONDS, is_loopback, parse_address, setting
from quire.runtime.telemetry import TelemetrySettings
from quire.security.listener import TlsListener
from quire.security.tls import for_clients

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BookieProcessSettings:
    """Settings of a bookie process, besides those of its storage."""

    metadata: str = setting("", "Metadata store of the cluster, zk://HOST:PORT,…/CHROOT.")
    listen: str = setting("127.0.0.1:3181", "Address that brokers connect to; port 0: any free.")
    advertise: str = setting("", "Address that brokers connect to, HOST:PORT; empty: the listening address.")
    http: str = setting(
        "",
        "Address of /metrics and /health, by TLS where the security file closes plain ports; empty: none, port 0: "
        "any free.",
    )
    security: str = setting("", SECURITY)
    new_cluster: bool = setting(
        False, "Create a cluster if the metadata store has none; else the bookie refuses to start there."
    )
    drain_on_stop_ms: int = setting(
        0,
        "SIGTERM first replicates this bookie's ledgers to others, for at most this time; 0: it stops at once.",
        unit=MILLISECONDS,
    )
    bytes_in_flight_max: int = setting(
        BYTES_IN_FLIGHT_MAX,
        "Accepted and not yet in the entry log; beyond it sockets are not read.",
        unit=BYTES,
    )
    scrub_interval_ms: int = setting(
        7 * 86_400_000, "Everything is read and verified once in this time; 0: never.", unit=MILLISECONDS
    )

    def validate(self) -> None:
        """Check the settings. Raises `ConfigurationError`."""
        check_cluster_store(self.metadata)
        for address in (self.listen, self.advertise, self.http):
            if address:
                parse_address(address)
        if self.advertise and parse_address(self.advertise)[1] == 0:
            raise ConfigurationError(
                f"advertise {self.advertise!r} must name the port that brokers connect to"
            )
        if not self.advertise and parse_address(self.listen)[0] in EVERYWHERE:
            raise ConfigurationError(
                f"advertise must name the host at which brokers reach this bookie, because it listens on {self.listen}"
            )
        if self.bytes_in_flight_max <= 0 or self.scrub_interval_ms < 0 or self.drain_on_stop_ms < 0:
            raise ConfigurationError(
                "bytes_in_flight_max must be greater than 0, scrub_interval_ms and drain_on_stop_ms not negative"
            )


KINDS = (BookieProcessSettings, LogSettings, BookieSettings, TelemetrySettings)


@dataclass(frozen=True)
class Bookie:
    """Running bookie and its parts. `http_url` is "" without an HTTP port."""

    store: MetadataStore
    storage: Storage
    registration: Registration
    drain: Drain
    reports: Reports
    scrub: Scrub | None
    budget: ByteBudget
    address: str
    http_url: str = ""

    def why_not_ready(self) -> Sequence[str]:
        """Return the reason why the bookie is not ready (see `probes.Probed`).

        A draining bookie is ready, as it serves reads.
        """
        return [why] if (why := self.storage.health.why_not_ready) else []

    def warnings(self) -> Sequence[str]:
        return [lost] if (lost := self.storage.lost_at_start) else []

    def metrics(self) -> Values:
        found = self.storage.metrics()
        found["quire_bookie_bytes_in_flight"] = self.budget.used_bytes
        found["quire_bookie_bytes_in_flight_max"] = self.budget.limit_bytes
        found["quire_bookie_damage_reported_total"] = self.reports.reported
        found |= self.store.counts.metrics()
        found["quire_bookie_retired"] = self.registration.is_retired
        if self.scrub is not None:
            found["quire_bookie_scrub_bytes_total"] = self.scrub.bytes_read
            found["quire_bookie_scrub_rounds_total"] = self.scrub.rounds
            found["quire_bookie_scrub_damaged_total"] = self.scrub.damaged
        return found


@asynccontextmanager
async def bookie(settings: LoadedSettings) -> AsyncIterator[Bookie]:
    """Run a storage node in this process, registered for brokers inside the `async with`."""
    own, of_storage = settings[BookieProcessSettings], settings[BookieSettings]
    async with Process("bookie", settings, own) as process:
        _check_clients(process, own)
        process.watch_loop()
        listener = _listen(process, own.listen)
        process.listeners = _listen_http(process, own.http)
        store, clock = await process.open_metadata(create=own.new_cluster), process.clock

        disks = real_disks(of_storage)
        cluster = await enter_cluster(store, own.metadata, disks, clock, new_cluster=own.new_cluster)
        storage = await process.start(Storage(of_storage, disks, clock=clock))
        budget = ByteBudget(own.bytes_in_flight_max)
        server = await process.start(BookieServer(storage, listener=listener, budget=budget))

        reports = await process.start(Reports(store, clock))
        storage.health.on_damage(lambda damage: reports.met(str(storage.bookie_id), *damage))
        scrub = None
        if own.scrub_interval_ms:
            disk = RealDisk(of_storage.entry_log)
            scrub = await process.start(Scrub(storage, disk, clock, own.scrub_interval_ms))
        process.instance = address = own.advertise or server.address
        http_url = next(iter(process.listeners.urls), "")
        registration = Registration(
            store,
            storage,
            address,
            of_storage.rack,
            cluster=cluster,
            tls=process.inside is not None,
            http_url=advertised_http(http_url, address),
        )
        drain = Drain(store, registration, storage.bookie_id.uuid)
        running = Bookie(store, storage, registration, drain, reports, scrub, budget, address, http_url)
        scrapes = probes.Scrapes([running.metrics, *process.metrics])
        if http_url:
            process.machine = bookie_machine(of_storage)
            application = make_app(running, scrapes, process.member(running.metrics), process)
            await process.serve_http(application, process.listeners)
        await process.send_metrics(scrapes)
        await process.start(registration)
        keep_heap()
        yield running


def _listen(process: Process, address: str) -> TlsListener | socket.socket:
    """Listen for brokers. Raises `ConfigurationError`."""
    inside = process.inside
    if inside is None:
        return process.listen(address)
    return process.listen_tls(address, inside.server, takes_plain=not inside.required)


def _listen_http(process: Process, address: str) -> Listeners:
    """Listen for HTTP, with TLS if the security file closes plain ports for clients. Raises `ConfigurationError`."""
    if not address:
        return Listeners()
    of_clients = process.security_file.tls
    if of_clients is None or of_clients.plain:
        return Listeners(http=process.listen(address))
    return Listeners(http_tls=process.listen_tls(address, for_clients(of_clients)))


def _check_clients(process: Process, own: BookieProcessSettings) -> None:
    """Require TLS between processes, or a loopback address, because bookies do not authenticate clients by tokens.

    Raises `ConfigurationError`.
    """
    inside = process.inside
    if not own.security or is_loopback(parse_address(own.listen)[0]):
        return
    if inside is None:
        raise ConfigurationError(
            f"any client that reaches {own.listen} could read and write all data of this bookie, because the "
            f"security file {own.security} has no TLS for bookies: set under [internal] a certificate, its key and "
            "the authority of the cluster's processes (`quire certs make`), or listen on 127.0.0.1"
        )
    if not inside.required:
        logger.warning(
            (
                "this bookie takes connections without TLS as well, from any client that reaches %s; when all brokers "
                "use TLS, set required = true under [internal]"
            ),
            own.listen,
        )
