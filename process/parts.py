"""Builder of processes: `Parts` start in order and stop in reverse; `Process` adds the common parts.

A process is one function that reads like a list of its parts:

    async with Process("broker", settings, settings[BrokerProcessSettings]) as process:
        process.watch_loop()                      a watchdog of the event loop
        process.listen_for_clients(…)             ports, security file, limit of open files
        store = await process.open_metadata()
        broker = …                                its own parts, by `process.start`
        member = process.member(…)                its report for `quire doctor`
        await process.serve_http(application, …)  probes, metrics, REST
        await process.send_metrics(scrapes)       to a collector

This module imports neither aiohttp nor OpenTelemetry, because a standalone process opens its disks before them.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import cached_property
from ssl import SSLContext
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from quire import __version__
from quire.metadata.open import end_session_when_standing
from quire.metadata.open import look_at as look_at_metadata
from quire.metadata.open import open_store as open_metadata
from quire.metadata.store import MetadataStore
from quire.process import member_checks
from quire.process.listeners import Listeners, listen
from quire.process.settings import LoadedSettings, ProcessSettings
from quire.runtime.clock import SystemClock
from quire.runtime.errors import ConfigurationError
from quire.runtime.limits import HTTP_CONNECTIONS_MAX
from quire.runtime.machine import Machine
from quire.runtime.member import Check, Member
from quire.runtime.metrics import MetricSource, all_of
from quire.runtime.redaction import hidden
from quire.runtime.telemetry import MetricsSender, TelemetrySettings, tracer_provider
from quire.runtime.telemetry import resource as otel_resource
from quire.runtime.threads import DaemonThreads
from quire.runtime.watchdog import Watchdog
from quire.security import tls
from quire.security.configuration import Configuration
from quire.security.configuration import load as load_security
from quire.security.listener import HANDSHAKES_MAX, TlsListener

if TYPE_CHECKING:
    from aiohttp import web
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    from quire.runtime.probes import Scrapes
    from quire.security.security import Security
    from quire.serving.model.tracing import Tracing

FILES_BESIDE_CONNECTIONS: Final = 1_000 + HTTP_CONNECTIONS_MAX + 2 * HANDSHAKES_MAX
"""Number of files besides connections: journal, entry logs, index, archive, REST, and handshakes on two TLS ports."""

LAST_SPANS_S: Final = 2.0
"""Seconds that a stopping process waits for a collector to accept its last spans."""


class Part(Protocol):
    """Part of a process that runs between its start and its stop."""

    def start(self) -> Awaitable[None] | None: ...

    async def stop(self) -> None: ...


P = TypeVar("P", bound=Part)


class Parts(AsyncExitStack):
    """Started parts. They stop in reverse order when the process ends, or when a later part fails to start."""

    async def start(self, part: P) -> P:
        """Start a part, and stop it when the process ends."""
        begun = part.start()
        if begun is not None:
            await begun
        self.push_async_callback(part.stop)
        return part

    async def serve_http(self, application: web.Application, listeners: Listeners) -> None:
        """Serve HTTP on the plain port, HTTPS on the TLS port, or both."""
        from quire.runtime.http_server import (
            HttpServer,
        )  # importing aiohttp takes as long as importing a broker

        server = HttpServer(application)
        await server.start()
        self.push_async_callback(server.stop)
        if listeners.http is not None:
            self.callback((await server.listen(listeners.http)).close)
        if listeners.http_tls is not None:
            listeners.http_tls.start(server)


class Process(Parts):
    """Broker, bookie or gateway process: it adds parts while it starts, and stops them at its end."""

    store: MetadataStore
    """The metadata store, set by `open_metadata`."""

    def __init__(self, kind: str, settings: LoadedSettings, own: ProcessSettings) -> None:
        """Read the security file of `own`. Raises `ConfigurationError`."""
        super().__init__()
        self.kind = kind
        self.settings = settings
        self.clock = SystemClock()
        self.watchdog = Watchdog()
        self.security_file = load_security(own.security)
        self.security: Security | None = None
        """Security of clients by the security file; None without a file."""
        self.listeners = Listeners()
        self.instance = ""
        """Address of this process, for collectors and operators."""
        self.metrics: list[MetricSource] = [self.watchdog.metrics]
        """Metrics of the parts; `member` and the HTTP port add those of the broker, bookie or gateway itself."""
        self.machine = Machine()
        self.metadata_url = own.metadata

    @property
    def name(self) -> str:
        """`host:port` of `instance`."""
        return self.instance.rpartition("://")[2]

    @cached_property
    def inside(self) -> tls.BetweenProcesses | None:
        """TLS between processes of the cluster; None if it is off in the security file. Raises `ConfigurationError`."""
        return tls.between_processes(self.security_file)

    def watch_loop(self) -> None:
        """Start the watchdog of this process's event loop."""
        self.watchdog.start()
        self.callback(self.watchdog.stop)

    # -- ports -----------------------------------------------------------------------------------------

    def listen(self, address: str) -> socket.socket:
        """Listen on `address`. Raises `ConfigurationError`."""
        sock = listen(address)
        self.callback(sock.close)
        return sock

    def listen_tls(
        self, address: str, context: tls.FollowedContext, *, takes_plain: bool = False
    ) -> TlsListener:
        """Listen with TLS. Raises `ConfigurationError`."""
        listener = TlsListener(listen(address), context, takes_plain=takes_plain)
        self.callback(listener.close)
        return listener

    def listen_for_clients(
        self, clients: str, http: str, connections_max: int, *, calls_brokers: bool = False
    ) -> None:
        """Bind all ports, without accepting clients yet, and apply the security file to them.

        `clients` and `http` are the plain ports. With `calls_brokers`, this process is a client of brokers, which
        authenticate it. Raises `ConfigurationError`, also for a metadata store that cannot be opened.
        """
        allow_open_files(connections_max)
        configured = self.security_file.tls
        if configured is None:
            self.listeners = Listeners(self.listen(clients), self.listen(http))
        else:
            context = tls.for_clients(configured)
            self.listeners = Listeners(
                self.listen(clients) if configured.plain else None,
                self.listen(http) if configured.plain else None,
                self.listen_tls(configured.listen, context),
                self.listen_tls(configured.http, context),
            )
        self.instance = self.listeners.urls[0]
        look_at_metadata(self.metadata_url)
        self.security = self._apply_security(calls_brokers)
        self.listeners.audit(self.security)

    def _apply_security(self, calls_brokers: bool) -> Security | None:
        configuration = self.security_file
        if configuration == Configuration():
            return None
        publishes = configuration.audit is not None and bool(configuration.audit.topic)
        if (
            (calls_brokers or publishes)
            and configuration.authentication is not None
            and configuration.client.method == "none"
        ):
            raise ConfigurationError(
                "the security file has [authentication], so brokers authenticate this process as well: set its "
                "credentials under [client], such as a token_file"
            )
        from quire.security.security import make_security  # imported only by processes with security

        made = make_security(configuration, self.clock)
        self.push_async_callback(made.stop)
        return made

    # -- the metadata store ----------------------------------------------------------------------------

    async def open_metadata(self, *, create: bool = True) -> MetadataStore:
        """Open the metadata store; its session ends if the event loop is stalled.

        Without `create`, a missing store is not created, because the process needs an existing cluster.
        """
        login = self.security_file.metadata.login
        self.store = await open_metadata(self.metadata_url, self._metadata_tls, login, create=create)
        self.push_async_callback(self.store.close)
        end_session_when_standing(self.store, self.watchdog)
        return self.store

    @property
    def _metadata_tls(self) -> Callable[[], SSLContext] | None:
        """TLS context for ZooKeeper."""
        is_file = urlsplit(self.metadata_url).scheme == "sqlite"
        return None if is_file or self.inside is None else self.inside.client.current

    # -- health, metrics, traces -----------------------------------------------------------------------

    def member(self, metrics: MetricSource, more: Mapping[str, Check] | None = None) -> Member:
        """Create the process's report for `quire doctor` and `quire support-bundle`."""
        checks = {
            "the metadata store": member_checks.metadata(self.store, self.metadata_url, self._metadata_tls),
            "its counters": member_checks.counters(lambda: all_of([metrics, *self.metrics])),
            **(more or {}),
        }
        tables = None
        if self.security_file != Configuration():
            checks["certificates"] = member_checks.certificates(self.security_file)
            tables = hidden(msgspec.to_builtins(self.security_file))
        return Member(
            self.kind,
            self.name,
            machine=self.machine,
            checks=checks,
            settings=tuple(self.settings),
            more={"security": tables},
        )

    async def send_metrics(self, scrapes: Scrapes) -> None:
        """Send metrics to a collector while the process runs, if the settings have one."""
        telemetry = self.settings[TelemetrySettings]
        if telemetry.otel_endpoint and telemetry.otel_metrics_ms:
            await self.start(MetricsSender(telemetry, self._resource(), scrapes))

    def tracing(self) -> Tracing | None:
        """Create the tracer of messages with a trace context; return None if no collector is configured."""
        telemetry = self.settings[TelemetrySettings]
        if not telemetry.otel_endpoint or not telemetry.otel_trace_one_in:
            return None
        from quire.serving.model.tracing import Tracing

        provider = tracer_provider(telemetry, self._resource())
        made = Tracing(provider.get_tracer("quire", __version__), self.clock)
        self.push_async_callback(_send_last_spans, made, provider)
        return made

    def _resource(self) -> Resource:
        return otel_resource(f"quire-{self.kind}", self.instance)


async def _send_last_spans(made: Tracing, provider: TracerProvider) -> None:
    await asyncio.to_thread(made.close, LAST_SPANS_S)
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_SPANS_S):
            await DaemonThreads(1, "quire-otel-end").run(provider.shutdown)


def allow_open_files(connections_max: int) -> None:
    """Raise the limit of open files for `connections_max`, up to the hard limit; the usual soft limit is 1,024."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + FILES_BESIDE_CONNECTIONS
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if wanted > now != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
