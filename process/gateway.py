"""Gateway: a proxy with one public address for a cluster's brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import SystemRandom

from quire.gateway.gateway import Gateway
from quire.metadata.cluster import find_cluster
from quire.process.parts import Process
from quire.process.settings import SECURITY, LoadedSettings, LogSettings, check_cluster_store
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import CONNECTIONS_MAX
from quire.runtime.probes import Scrapes
from quire.runtime.settings import parse_address, setting
from quire.runtime.telemetry import TelemetrySettings
from quire.security import tls


@dataclass(frozen=True)
class GatewaySettings:
    """Settings of a gateway, which stores no data and has no identity."""

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

    def validate(self) -> None:
        """Check the settings. Raises `ConfigurationError`."""
        check_cluster_store(self.metadata)
        parse_address(self.listen)
        parse_address(self.http)
        if self.connections_max <= 0:
            raise ConfigurationError("connections_max must be greater than 0")


KINDS = (GatewaySettings, LogSettings, TelemetrySettings)


@asynccontextmanager
async def gateway(settings: LoadedSettings) -> AsyncIterator[Sequence[str]]:
    """Run a gateway inside the `async with`; yield its `pulsar://` and `http://` addresses, then those with TLS."""
    own = settings[GatewaySettings]
    async with Process("gateway", settings, own) as process:
        security = process.security_file
        if security.authentication is not None and security.audit is not None and not security.audit.file:
            raise ConfigurationError(
                "[audit] of the security file must set a file if a gateway authenticates clients, because it "
                "cannot publish to a topic: its own role only proxies others"
            )
        process.watch_loop()
        connections_max = 2 * own.connections_max  # each client connection may need one to a broker
        process.listen_for_clients(own.listen, own.http, connections_max, calls_brokers=True)
        store = await process.open_metadata(create=False)
        await find_cluster(store, own.metadata)
        running = Gateway(
            store,
            SystemRandom(),
            own.connections_max,
            process.watchdog.metrics,
            tls.to_brokers(security, shows_itself=security.authentication is not None),
            process.security,
        )
        process.push_async_callback(running.stop)
        scrapes = Scrapes([running.metrics])
        running.member = process.member(running.metrics)
        running.member.metrics = scrapes.text
        ports = process.listeners
        await running.start(ports.clients, ports.http, ports.clients_tls, ports.http_tls)
        await process.send_metrics(scrapes)
        yield ports.urls
