"""Broker: accepts client connections, and creates the sessions, topics, subscriptions and their shared parts.

    Broker
      namespaces        policies of tenants and namespaces
      ownership         owners of bundles, and the bundles of this broker
      registry          the loaded topics
      fan_out           requests to the partitions of a topic, and to other brokers
      partitioned       growth of partitioned topics
      deletion          deletion of partitioned topics
      offloading        archiving of sealed segments
      bundles           loading, hand-over and splitting of bundles
      rounds            periodic maintenance of all topics
      orphaned_ledgers  recovery of open ledgers that no broker closes
      sessions          connections of clients
      admin             requests of operators

A broker stores no data. It uses helper threads only for work whose duration depends on input from clients
(`Services.helpers`). When it stops, it unloads its topics, so that no ledger has to be recovered. After a crash, the
next owners recover the ledgers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from quire.runtime.metrics import Values
from quire.security.listener import TlsListener
from quire.serving.operations.admin import Admin
from quire.serving.operations.client_topics import ClientTopics
from quire.serving.operations.deletion import Deletion
from quire.serving.operations.fan_out import FanOut
from quire.serving.operations.partitioned import Partitioned
from quire.serving.ownership.port import Addresses, Ownership, SoleOwner
from quire.serving.policy.namespaces import Namespaces
from quire.serving.registry.bundles import split_evenly
from quire.serving.registry.local_bundles import LocalBundles
from quire.serving.registry.offloading import Offloading
from quire.serving.registry.orphaned_ledgers import OrphanedLedgers
from quire.serving.registry.registry import Registry
from quire.serving.registry.rounds import Rounds
from quire.serving.session.sessions import Sessions
from quire.serving.topic.services import Services

HANDOVER_S: Final = 7.0
"""Time-out, in seconds, of the hand-over of bundles.

The sum of this time-out and `STOP_S` fits into the 10 s from a container's SIGTERM to SIGKILL.
"""

STOP_S: Final = 3.0
"""Time-out, in seconds, of closing topics.

The ledgers of topics that are not closed in time are recovered when these topics are loaded again.
"""

WARNINGS_MAX: Final = 20
"""Maximum number of lost ledgers in a health check; `quire ledgers lost` lists all."""

_log = logging.getLogger(__name__)


class Node(Protocol):
    """Storage in this process: a bookie, or write-ahead logs on object storage."""

    @property
    def bytes_unflushed(self) -> int: ...

    @property
    def why_not_ready(self) -> str: ...

    def on_flushed(self, callback: Callable[[], None]) -> None: ...


class Broker:
    """Broker of one process, with its parts as attributes."""

    def __init__(self, services: Services, ownership: Ownership | None = None) -> None:
        settings, store, ledgers = services.settings, services.store, services.ledgers
        settings.validate()
        self.services = services
        self.addresses = Addresses(
            settings.advertise, settings.listeners, listeners_tls=settings.listeners_tls
        )
        self.ownership = owns = ownership or SoleOwner()
        boundaries = split_evenly(settings.namespace_bundles)
        self.namespaces = Namespaces(store, settings.cluster, boundaries, ledgers.delete, services.limits)
        self.registry = registry = Registry(services, self.namespaces, owns)
        self.fan_out = FanOut(registry, owns, self.addresses, services.to_brokers)
        if services.security is not None:
            self.fan_out.peers.credentials = services.security.credentials
        self.partitioned = Partitioned(registry, services, self.fan_out)
        self.deletion = Deletion(registry, services, self.fan_out)
        self.offloading = None
        if services.archive is not None:
            self.offloading = Offloading(services.archive, services, registry)
        self.bundles = LocalBundles(
            services.tasks,
            registry,
            owns,
            self.offloading,
            self.fan_out.peers,
            self.addresses,
        )
        self.rounds = Rounds(services, registry, self.offloading)
        self.orphaned_ledgers = OrphanedLedgers(registry, owns, services)
        topics = ClientTopics(services, registry, self.partitioned, self.fan_out)
        self.sessions = Sessions(services, topics, self.addresses, registry.guard)
        self.admin = Admin(
            services,
            registry,
            self.partitioned,
            self.deletion,
            self.fan_out,
            self.offloading,
        )
        self._why_not: list[Callable[[], str]] = []

    @property
    def service_url(self) -> str:
        """URL for clients, `pulsar://host:port`; an empty string if the broker accepts only TLS."""
        return self.addresses.service_url

    async def start(self, listener: socket.socket | None = None, tls: TlsListener | None = None) -> None:
        """Listen on `listener`, a bound socket, and on `tls`; if both are None, at the address in the settings.

        Raises `ConfigurationError` if it cannot bind the address.
        """
        await self.admin.settings.start()
        await self.namespaces.ensure_defaults()
        await self.sessions.topics.begin()
        await self.sessions.listen(listener, tls)
        await self.ownership.start(self.bundles)
        if self.offloading is not None:
            self.offloading.start()
        self.sessions.start_keep_alive()
        self.rounds.start()
        self.admin.metrics.history.start()

    async def stop(self) -> None:
        """Hand bundles over to other brokers, then close topics, state logs and connections, within ten seconds."""
        if self.offloading is not None:
            await self.offloading.stop()
        try:
            async with asyncio.timeout(HANDOVER_S):
                await self.ownership.stop()
                await self.sessions.answered()
        except TimeoutError:
            _log.warning("hand-over of bundles timed out; the next owners recover the remaining bundles")
        self.sessions.stop_listening()
        try:
            async with asyncio.timeout(STOP_S):
                await self.registry.stop()
                await self.registry.bundles.close()
        except TimeoutError:
            _log.warning("closing of topics timed out; the next loads recover the remaining topics")
        self.sessions.close()
        await self.services.tasks.stop()
        self.services.helpers.close(0.0)
        await self.fan_out.peers.close()

    # -- for probes and metrics ------------------------------------------------------------------------

    def watch(self, why_not: Callable[[], str]) -> None:
        """Include a part of this process in `why_not_ready`.

        `why_not` returns the reason why the part is not ready; an empty string if it is ready.
        """
        self._why_not.append(why_not)

    def rest_on(self, node: Node) -> None:
        """Count the unflushed bytes of `node` in the byte budget, and include it in `why_not_ready`."""
        self.services.budget.add_gauge(lambda: node.bytes_unflushed)
        node.on_flushed(self.services.budget.look_again)
        self.watch(lambda: node.why_not_ready)

    def why_not_ready(self) -> Sequence[str]:
        """Return the reasons why this broker should get no traffic now; empty if it is ready."""
        reasons = []
        if not self.sessions.is_listening:
            reasons.append("the broker is not listening yet")
        if self.registry.is_stopping:
            reasons.append("the broker is stopping")
        reasons.append(self.ownership.why_not_ready() if self.sessions.is_listening else "")
        return list(filter(None, (*reasons, *(why_not() for why_not in self._why_not))))

    def warnings(self) -> Sequence[str]:
        """Return a warning for each ledger that lost entries, with the operator's next step. The broker stays ready."""
        return [str(error) for error in self.services.ledgers.lost().values()][:WARNINGS_MAX]

    def metrics(self) -> Values:
        """Return the metrics of the whole broker; `admin.metrics` collects the metrics of its namespaces and topics."""
        return {
            **self.sessions.metrics(),
            "quire_serving_topics_loaded": len(self.registry),
            "quire_serving_bundles_damaged": len(self.registry.bundles.damaged),
            **self.admin.metrics.of_broker(),
            "quire_serving_tail_cache_bytes": self.services.tail_cache.bytes_used,
            **self.services.ledgers.metrics(),
            **({} if self.offloading is None else self.offloading.metrics()),
            **self.services.store.counts.metrics(),
            **({} if self.services.tracing is None else self.services.tracing.metrics()),
            **self.ownership.metrics(),
        }
