"""`quire bookie`: one storage node of a cluster, until SIGTERM or SIGINT.

It is seen by brokers only when it can answer: after the identity check, the replay of its journal, and when it listens.
SIGTERM takes it out of sight first, so that nobody chooses it any more, and leaves its data where they are; whoever
wants to be rid of it drains it before (`quire bookies decommission`). With `--drain-on-stop-ms` SIGTERM itself drains
it (`quire.bookie.drain`), for clusters that are scaled by stopping containers; SIGINT then still stops it as it is.

The line on standard output that programs may rely on is `ready bookie://HOST:PORT`, followed by the HTTP address when
there is one.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from quire.bookie.disks import real_disks
from quire.bookie.drain import Drain
from quire.bookie.membership import enter_cluster
from quire.bookie.registration import Registration
from quire.bookie.scrub import Scrub
from quire.bookie.server import BookieServer
from quire.bookie.settings import BookieSettings
from quire.bookie.storage import Storage
from quire.cli.bookie_http import advertised_http, make_app
from quire.cli.doors import listen_tls
from quire.cli.http import serve_http
from quire.cli.members import bookie_machine, make_member, process_checks
from quire.cli.parts import Parts, url_of
from quire.cli.settings import (
    SECURITY,
    Given,
    check_cluster_store,
    check_file,
    check_log,
    settings_options,
    start_log,
)
from quire.cli.telemetry import send_metrics
from quire.cli.until_signal import run_until_signal, say_ready, told_to_stop, until_cancelled
from quire.metadata.store import MetadataStore
from quire.metadata.underreplicated import Reports
from quire.runtime import probes
from quire.runtime.budget import ByteBudget
from quire.runtime.clock import SystemClock
from quire.runtime.disk import RealDisk
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import BYTES_IN_FLIGHT_MAX
from quire.runtime.memory import keep_heap
from quire.runtime.metrics import Values
from quire.runtime.settings import BYTES, MILLISECONDS, Loaded, is_loopback, parse_address, setting
from quire.runtime.telemetry import TelemetrySettings
from quire.security.configuration import Configuration
from quire.security.configuration import load as load_security
from quire.security.listener import TlsListener
from quire.security.tls import BetweenProcesses, between_processes, for_clients

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BookieProcessSettings:
    """What a bookie needs beside its storage when it is a process of its own."""

    metadata: str = setting("", "Metadata store of the cluster, zk://HOST:PORT,…/CHROOT.")
    listen: str = setting("127.0.0.1:3181", "Address that brokers connect to; port 0: any free.")
    advertise: str = setting("", "Address that brokers are told, HOST:PORT; empty: the listening address.")
    http: str = setting(
        "",
        "Address of /metrics and /health, by TLS where the security file closes plain ports; empty: none, port 0: "
        "any free.",
    )
    security: str = setting("", SECURITY)
    new_cluster: bool = setting(
        False, "Begin a cluster where the metadata store holds none; else the bookie refuses to start there."
    )
    drain_on_stop_ms: int = setting(
        0,
        "SIGTERM has others copy what this bookie holds first, for this long at most; 0: it stops at once.",
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
        for address in (self.listen, self.advertise, self.http):
            if address:
                parse_address(address)
        if self.advertise and parse_address(self.advertise)[1] == 0:
            raise ConfigurationError(
                f"advertise {self.advertise!r} must name the port that brokers connect to"
            )
        if not self.advertise and parse_address(self.listen)[0] in ("0.0.0.0", "::", ""):
            raise ConfigurationError(
                f"advertise must name the host that brokers reach this bookie at, for it listens on {self.listen}"
            )
        if self.bytes_in_flight_max <= 0 or self.scrub_interval_ms < 0 or self.drain_on_stop_ms < 0:
            raise ConfigurationError(
                "bytes_in_flight_max must be greater than 0, scrub_interval_ms and drain_on_stop_ms not negative"
            )


KINDS = (BookieProcessSettings, BookieSettings, TelemetrySettings)


@dataclass(frozen=True)
class BookieConfiguration:
    process: Loaded[BookieProcessSettings]
    storage: Loaded[BookieSettings]
    telemetry: Loaded[TelemetrySettings]


def load(given: Given) -> BookieConfiguration:
    """Flags, environment and file as settings. Raises `ConfigurationError`."""
    check_file(given.config, *KINDS)
    return BookieConfiguration(
        given.load(BookieProcessSettings), given.load(BookieSettings), given.load(TelemetrySettings)
    )


@dataclass(frozen=True)
class Bookie:
    """A running bookie: its parts, for those who look into it. `http_url` is empty when there is none."""

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
        """See `probes.Probed`. A bookie that is drained serves reads: it is as ready as it can be."""
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
async def bookie(configuration: BookieConfiguration) -> AsyncIterator[Bookie]:
    """A storage node of a cluster in this process, seen by brokers inside the `async with`."""
    process, settings = configuration.process.values, configuration.storage.values
    security = load_security(process.security)
    inside = between_processes(security)
    _look_who_comes_in(process, security, inside)
    clock = SystemClock()
    async with Parts() as parts:
        watchdog = parts.watch_loop()
        listener = _listen(parts, process.listen, inside)
        http, http_tls = _listen_http(parts, process.http, security)
        to_metadata = inside.client.current if inside else None
        store = await parts.metadata(process.metadata, watchdog, to_metadata, security.metadata.login)

        disks = real_disks(settings)
        cluster = await enter_cluster(store, process.metadata, disks, clock, new_cluster=process.new_cluster)
        storage = await parts.start(Storage(settings, disks, clock=clock))
        budget = ByteBudget(process.bytes_in_flight_max)
        server = await parts.start(BookieServer(storage, listener=listener, budget=budget))

        reports = await parts.start(Reports(store, clock))
        storage.health.on_damage(lambda damage: reports.met(str(storage.bookie_id), *damage))
        scrub = None
        if process.scrub_interval_ms:
            disk = RealDisk(settings.entry_log)
            scrub = await parts.start(Scrub(storage, disk, clock, process.scrub_interval_ms))
        address = process.advertise or server.address
        http_url = f"https://{http_tls.address}" if http_tls is not None else ""
        if http is not None:
            http_url = url_of("http", http)
        registration = Registration(
            store,
            storage,
            address,
            settings.rack,
            cluster=cluster,
            tls=inside is not None,
            http_url=advertised_http(http_url, address),
        )
        drain = Drain(store, registration, storage.bookie_id.uuid)
        running = Bookie(store, storage, registration, drain, reports, scrub, budget, address, http_url)
        scrapes = probes.Scrapes([running.metrics, watchdog.metrics])
        if http_url:
            member = make_member(
                "bookie",
                address,
                bookie_machine(settings),
                (configuration.process, configuration.storage, configuration.telemetry),
                security,
                process_checks(store, process.metadata, [running.metrics, watchdog.metrics], to_metadata),
            )
            app = make_app(running, scrapes, member, security, parts)
            await serve_http(parts, app, http, http_tls)
        await send_metrics(parts, configuration.telemetry.values, "bookie", address, scrapes)
        await parts.start(registration)
        keep_heap()
        yield running


def _listen(parts: Parts, address: str, inside: BetweenProcesses | None) -> TlsListener | socket.socket:
    """For brokers. Raises `ConfigurationError`."""
    if inside is None:
        return parts.listen(address)
    return listen_tls(parts, address, inside.server, takes_plain=not inside.required)


def _listen_http(
    parts: Parts, address: str, security: Configuration
) -> tuple[socket.socket | None, TlsListener | None]:
    """Plain, or with TLS where the file has it for clients. Raises `ConfigurationError`."""
    if not address:
        return None, None
    if security.tls is None or security.tls.plain:
        return parts.listen(address), None
    return None, listen_tls(parts, address, for_clients(security.tls))


def _look_who_comes_in(
    process: BookieProcessSettings, security: Configuration, inside: BetweenProcesses | None
) -> None:
    """A bookie asks nobody for a token: what keeps strangers out is TLS among processes, or a port of this machine's.

    Raises `ConfigurationError`.
    """
    if not process.security or is_loopback(parse_address(process.listen)[0]):
        return
    if inside is None:
        raise ConfigurationError(
            f"whoever reaches {process.listen} could read and write all that this bookie holds, for the security file "
            f"{process.security} has nothing for bookies: name under [internal] a certificate, its key and the "
            "authority of the cluster's processes (`quire certs make`), or listen on 127.0.0.1"
        )
    if not inside.required:
        logger.warning(
            "this bookie takes connections without TLS as well, from whoever reaches %s; once all brokers use TLS, "
            "set required = true under [internal]",
            process.listen,
        )


@click.command("bookie")
@settings_options(*KINDS)
def command(config: Path | None, **flags: Any) -> None:
    """Run one storage node of a cluster.

    Stop it with SIGTERM; killing it loses nothing either. To be rid of it for good, drain it first with
    `quire bookies decommission`. The first bookies of a cluster begin it with `--new-cluster true`.

    \b
    Example:
      quire bookie --journal /disk1/journal --entry-log /disk2/entries --new-cluster true \\
                   --metadata zk://zookeeper:2181/quire --listen 0.0.0.0:3181 --advertise bookie-1:3181
    """
    configuration = load(Given(flags, config))
    start_log(configuration.process.values)
    run_until_signal(_run(configuration))


async def _run(configuration: BookieConfiguration) -> None:
    drain_ms = configuration.process.values.drain_on_stop_ms
    async with bookie(configuration) as running:
        say_ready(f"bookie://{running.address}", running.http_url)
        if drain_ms:
            await told_to_stop()
            await running.drain.run(drain_ms / 1000)
        else:
            await until_cancelled()
