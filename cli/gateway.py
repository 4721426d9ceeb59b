"""`quire gateway`: one public address before a cluster's brokers, until SIGTERM or SIGINT."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

import click

from quire.cli.doors import open_doors
from quire.cli.members import make_member, process_checks
from quire.cli.parts import Parts, allow_open_files
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
from quire.cli.until_signal import ready, run_until_signal
from quire.gateway.gateway import Gateway
from quire.metadata.cluster import find_cluster
from quire.metadata.open import look_at
from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import CONNECTIONS_MAX
from quire.runtime.machine import Machine
from quire.runtime.probes import Scrapes
from quire.runtime.settings import MILLISECONDS, Loaded, parse_address, setting
from quire.runtime.telemetry import TelemetrySettings
from quire.security import tls
from quire.security.configuration import load as load_security


@dataclass(frozen=True)
class GatewaySettings:
    """A gateway has no data and no identity: where it listens, and where it learns who the brokers are."""

    metadata: str = setting("", "Metadata store of the cluster, zk://HOST:PORT,…/CHROOT.")
    listen: str = setting(
        "127.0.0.1:6650", "Address that clients connect to; loopback unless told otherwise, port 0: any free."
    )
    http: str = setting(
        "127.0.0.1:8080", "Address of the REST interface, /metrics and /health; port 0: any free."
    )
    security: str = setting("", SECURITY)
    connections_max: int = setting(
        CONNECTIONS_MAX, "Client connections; with more the oldest that has not logged in is closed."
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
        parse_address(self.listen)
        parse_address(self.http)
        if self.connections_max <= 0:
            raise ConfigurationError("connections_max must be greater than 0")


KINDS = (GatewaySettings, TelemetrySettings)


@click.command("gateway")
@settings_options(*KINDS)
def command(config: Path | None, **flags: Any) -> None:
    """Give clients one address when they cannot reach brokers by name.

    It speaks Pulsar's proxy handshake, so stock clients need nothing but its URL, and it passes on the REST
    interface. It keeps nothing: run as many as you like.

    \b
    Example:
      quire gateway --metadata zk://zookeeper:2181/quire --listen 0.0.0.0:6650 --http 0.0.0.0:8080
    """
    check_file(config, *KINDS)
    given = Given(flags, config)
    loaded = given.load(GatewaySettings), given.load(TelemetrySettings)
    start_log(loaded[0].values)
    run_until_signal(_run(*loaded))


async def _run(settings: Loaded[GatewaySettings], telemetry: Loaded[TelemetrySettings]) -> None:
    async with gateway(settings.values, telemetry.values, (settings, telemetry)) as urls:
        await ready(*urls)


@asynccontextmanager
async def gateway(
    settings: GatewaySettings, telemetry: TelemetrySettings | None = None, loaded: Sequence[Loaded[Any]] = ()
) -> AsyncIterator[Sequence[str]]:
    """A gateway running inside the `async with`: its `pulsar://` and `http://` addresses, then those with TLS.

    `loaded`: where its settings came from, for who asks it.
    """
    look_at(settings.metadata)
    security = load_security(settings.security)
    if security.authentication is not None and security.audit is not None and not security.audit.file:
        raise ConfigurationError(
            "[audit] of the security file needs a file where a gateway logs clients in: it speaks for others alone, "
            "so it publishes nothing to a topic"
        )
    inside = tls.between_processes(security)
    allow_open_files(2 * settings.connections_max)  # each has one to a broker
    async with Parts() as parts:
        watchdog = parts.watch_loop()
        doors = open_doors(parts, settings.listen, settings.http, security)
        to_metadata = inside.client.current if inside else None
        store = await parts.metadata(settings.metadata, watchdog, to_metadata, security.metadata.login)
        await find_cluster(store, settings.metadata)
        secured = parts.security(security, SystemClock(), calls_brokers=True)
        doors.audit(secured)
        running = Gateway(
            store,
            SystemRandom(),
            settings.connections_max,
            watchdog.metrics,
            tls.to_brokers(security, shows_itself=security.authentication is not None),
            secured,
        )
        parts.push_async_callback(running.stop)
        scrapes = Scrapes([running.metrics])
        checks = process_checks(store, settings.metadata, [running.metrics], to_metadata)
        running.member = make_member(
            "gateway", doors.urls[0].partition("://")[2], Machine(), loaded, security, checks
        )
        running.member.metrics = scrapes.text
        await running.start(doors.clients, doors.http, doors.clients_tls, doors.http_tls)
        await send_metrics(parts, telemetry or TelemetrySettings(), "gateway", doors.urls[0], scrapes)
        yield doors.urls
