"""One broker: it listens to clients and joins sessions, topics and subscriptions.

    Broker
      namespaces   what tenants and namespaces prescribe
      ownership    which bundles are this broker's
      registry     the loaded topics
      fan_out      the partitions of a topic, and other brokers, asked together
      partitioned  topics with partitions grow
      deletion     topics, and topics with partitions, are deleted
      offloading   sealed segments on their way to the archive
      bundles      what ownership asks of the topics
      rounds       what is done for topics every few seconds
      ownerless    ledgers that nobody else would close
      sessions     serving/session: one Connection per client
      admin        what operators ask that is more than one call

A broker holds no data, and threads only for what clients can make long (`Services.helpers`). It stops by unloading its
topics, so that nothing has to be recovered; killed, it leaves that to the next start.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from quire.runtime.metrics import Values
from quire.security.listener import TlsListener
from quire.serving.cluster.addresses import Addresses
from quire.serving.cluster.admin import Admin
from quire.serving.cluster.bundles import split_evenly
from quire.serving.cluster.client_topics import ClientTopics
from quire.serving.cluster.deletion import Deletion
from quire.serving.cluster.fan_out import FanOut
from quire.serving.cluster.local_bundles import LocalBundles
from quire.serving.cluster.offloading import Offloading
from quire.serving.cluster.ownerless import Ownerless
from quire.serving.cluster.partitioned import Partitioned
from quire.serving.cluster.port import Ownership, SoleOwner
from quire.serving.cluster.registry import Registry
from quire.serving.cluster.rounds import Rounds
from quire.serving.policy.namespaces import Namespaces
from quire.serving.session.sessions import Sessions
from quire.serving.topic.services import Services

HANDOVER_S: Final = 7.0
"""How long stopping waits for bundles to be handed over; containers are killed ten seconds after they are told."""

STOP_S: Final = 3.0
"""How long stopping waits for topics to close; what is not closed by then is recovered at the next load."""

WARNINGS_MAX: Final = 20
"""Lost ledgers that a health check tells of; `quire ledgers lost` has all."""

_log = logging.getLogger(__name__)


class Node(Protocol):
    """What keeps messages and is inside this process: a bookie, or write-ahead logs on object storage."""

    @property
    def bytes_unflushed(self) -> int: ...

    @property
    def why_not_ready(self) -> str: ...

    def on_flushed(self, callback: Callable[[], None]) -> None: ...


class Broker:
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
        self.rounds = Rounds(services, registry, self.deletion, self.offloading)
        self.ownerless = Ownerless(registry, owns, services)
        topics = ClientTopics(registry, self.partitioned, self.fan_out)
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
        """`pulsar://host:port` for clients; "" when it takes TLS alone."""
        return self.addresses.service_url

    async def start(self, listener: socket.socket | None = None, tls: TlsListener | None = None) -> None:
        """Listen: on `listener`, a bound socket, and on `tls`; without either, where the settings say.

        Raises `ConfigurationError` when the address cannot be had.
        """
        await self.namespaces.ensure_defaults()
        await self.sessions.listen(listener, tls)
        await self.ownership.start(self.bundles)
        if self.offloading is not None:
            self.offloading.start()
        self.sessions.start_keep_alive()
        self.rounds.start()

    async def stop(self) -> None:
        """Let the clients go, close topics and state logs, hand over what others can serve, within a few seconds."""
        if self.offloading is not None:
            await self.offloading.stop()
        try:
            async with asyncio.timeout(HANDOVER_S):
                await self.ownership.stop()
                await self.sessions.answered()
        except TimeoutError:
            _log.warning("not all bundles could be handed over in time; the next owners will recover them")
        self.sessions.stop_listening()
        try:
            async with asyncio.timeout(STOP_S):
                await self.registry.stop()
                await self.registry.bundles.close()
        except TimeoutError:
            _log.warning("not all topics could be closed in time; they will be recovered")
        self.sessions.close()
        await self.services.tasks.stop()
        self.services.helpers.close(0.0)
        await self.fan_out.peers.close()

    # -- what probes ask -------------------------------------------------------------------------------

    def watch(self, why_not: Callable[[], str]) -> None:
        """`why_not` tells of a part of this process why it cannot work; nothing when all is well."""
        self._why_not.append(why_not)

    def rest_on(self, node: Node) -> None:
        """Count what `node` has in memory, and be as ready as it is."""
        self.services.budget.add_gauge(lambda: node.bytes_unflushed)
        node.on_flushed(self.services.budget.look_again)
        self.watch(lambda: node.why_not_ready)

    def why_not_ready(self) -> Sequence[str]:
        """Reasons why this broker should get no traffic now; empty when it should."""
        reasons = []
        if not self.sessions.is_listening:
            reasons.append("the broker is not listening yet")
        if self.registry.is_stopping:
            reasons.append("the broker is stopping")
        reasons.append(self.ownership.why_not_ready() if self.sessions.is_listening else "")
        return list(filter(None, (*reasons, *(why_not() for why_not in self._why_not))))

    def warnings(self) -> Sequence[str]:
        """What a person should look at though the broker serves: what was lost for good, and how to go on."""
        return [str(error) for error in self.services.ledgers.lost().values()][:WARNINGS_MAX]

    def metrics(self) -> Values:
        """Of the whole broker; `admin.metrics` has those of its namespaces and topics."""
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
