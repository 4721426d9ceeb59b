"""Lookup of the broker that owns a topic, and the connections to all brokers.

There is one connection per broker and client, shared by all producers and consumers. Lookups go to the service URL,
which may name several hosts (`pulsar://a:6650,b:6650`); when one fails, the next is tried. A broker answers a lookup
with the owner's URL, with another broker to ask, or with the instruction to connect through the service URL (a proxy).

The end of a connection is logged in one line, for all producers and consumers that were attached to it.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from ssl import SSLContext
from typing import Final, NamedTuple

from quire.client.authentication import Authentication
from quire.client.backoff import Backoff
from quire.client.connection import Connection, connect, host_and_port
from quire.client.errors import Closed, Refused, is_final
from quire.client.settings import ClientSettings
from quire.runtime.errors import ConfigurationError, QuireError, Unavailable
from quire.runtime.tasks import Tasks
from quire.runtime.tls import ClientTls
from quire.wire import commands
from quire.wire import pulsar_pb2 as pb

REDIRECTS_MAX: Final = 20
TLS_SCHEME: Final = "pulsar+ssl://"

_log = logging.getLogger(__name__)


class BrokerAddress(NamedTuple):
    """The `url` to connect to. If it is a proxy, `proxy_to` is the broker behind it."""

    url: str
    proxy_to: str = ""


def service_urls(text: str) -> list[str]:
    """Split a service URL with several hosts into one URL per host. Raises `ConfigurationError`."""
    scheme, separator, hosts = text.partition("://")
    if not separator:
        raise ConfigurationError(f"{text!r} is not a service URL such as pulsar://127.0.0.1:6650")
    urls = [f"{scheme}://{host.strip('/')}" for host in hosts.split(",")]
    for url in urls:
        host_and_port(url)
    return urls


class Lookup:
    """The connections of a client, and the lookup of its topics' owners."""

    def __init__(
        self,
        service_url: str,
        settings: ClientSettings,
        authentication: Authentication,
        tls: ClientTls | SSLContext | None,
        tasks: Tasks,
        rng: Random,
    ) -> None:
        self._urls = service_urls(service_url)
        self._turn = 0
        self._settings = settings
        self._authentication = authentication
        self._tls = tls
        self._tasks = tasks
        self._rng = rng
        self._connections: dict[BrokerAddress, asyncio.Task[Connection | QuireError]] = {}
        self._proxy = ""
        """The service URL if the last lookup required connecting through it (a proxy), else ""."""
        self._is_closed = False

    async def broker_of(self, topic: str) -> Connection:
        """Return a connection to the owner of a topic (full name of a partition or of an unpartitioned topic)."""
        asked = await self.service()
        address = BrokerAddress(asked.url)
        authoritative = False
        for _ in range(REDIRECTS_MAX):
            answer = await self._ask(await self.connection(address), topic, authoritative)
            url = self._url_of(answer)
            self._proxy = asked.url if answer.proxy_through_service_url else ""
            address = BrokerAddress(self._proxy, url) if self._proxy else BrokerAddress(url)
            if answer.response != pb.CommandLookupTopicResponse.Redirect:
                return await self.connection(address)
            authoritative = answer.authoritative
        raise Refused(f"the lookup of {topic} was redirected {REDIRECTS_MAX} times")

    async def at(self, url: str) -> Connection:
        """Return a connection to the broker at `url`, which another broker named, through the proxy if there is one."""
        if self._proxy:
            return await self.connection(BrokerAddress(self._proxy, url))
        return await self.connection(BrokerAddress(self._with_tls(url)))

    async def _ask(
        self, connection: Connection, topic: str, authoritative: bool
    ) -> pb.CommandLookupTopicResponse:
        return await connection.request(
            f"the lookup of {topic}",
            lambda request_id: commands.ask_lookup(request_id, topic, authoritative=authoritative),
            pb.CommandLookupTopicResponse,
        )

    def _url_of(self, answer: pb.CommandLookupTopicResponse) -> str:
        if not self._is_tls:
            return answer.brokerServiceUrl
        url = answer.brokerServiceUrlTls or answer.brokerServiceUrl
        return url if answer.proxy_through_service_url else self._with_tls(url)

    @property
    def _is_tls(self) -> bool:
        return self._urls[0].startswith(TLS_SCHEME)

    def _with_tls(self, url: str) -> str:
        """Return `url`, but reject a redirect from TLS to plain text, which would expose the client's credentials."""
        if self._is_tls and not url.startswith(TLS_SCHEME):
            raise Unavailable(
                f"a broker redirected to {url or 'another broker'}, which has no TLS; enable TLS on all brokers"
            )
        return url

    async def connect(self) -> None:
        """Connect to one of the service URL's hosts, if there is no connection yet."""
        await self.service()

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Return the number of partitions of a topic, or 0 for an unpartitioned topic.

        Retries while no broker answers. A missing topic raises `NotFound`, unless `create` is True and the broker
        creates topics: a partitioned topic at once, an unpartitioned one on its first use.
        """
        backoff = Backoff(self._settings.backoff_first_ms, self._settings.backoff_max_ms, self._rng)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._settings.operation_timeout_ms / 1000
        while True:
            try:
                return await self._ask_partitions(topic, create)
            except QuireError as error:
                wait_s = backoff.next_s()
                if is_final(error, established=False) or loop.time() + wait_s > end_s:
                    raise
            await asyncio.sleep(wait_s)

    async def _ask_partitions(self, topic: str, create: bool) -> int:
        connection = await self.service()
        answer = await connection.request(
            f"getting the partition count of {topic}",
            lambda request_id: commands.ask_partitions(request_id, topic, create=create),
            pb.CommandPartitionedTopicMetadataResponse,
        )
        return answer.partitions

    async def topics(self, namespace: str) -> list[str]:
        """Return the full names of the topics in `tenant/namespace`, with each partition listed separately."""
        connection = await self.service()
        answer = await connection.request(
            f"listing the topics of {namespace}",
            lambda request_id: commands.ask_topics(request_id, namespace),
            pb.CommandGetTopicsOfNamespaceResponse,
        )
        return list(answer.topics)

    async def service(self) -> Connection:
        """Return a connection to any of the service URL's hosts."""
        url = self._urls[self._turn % len(self._urls)]
        try:
            return await self.connection(BrokerAddress(url))
        except QuireError:
            self._turn += 1
            raise

    async def connection(self, address: BrokerAddress) -> Connection:
        """Return the connection to a broker, after connecting if there is none.

        Cancelling one caller does not affect the others.
        """
        if self._is_closed:
            raise Closed("the client is closed")
        attempt = self._connections.get(address)
        if attempt is None:
            attempt = self._tasks.start(self._connect(address), f"connect to {address.url}")
            self._connections[address] = attempt
        outcome = await asyncio.shield(attempt)
        if isinstance(outcome, QuireError):
            raise outcome.with_traceback(None)
        return outcome

    async def _connect(self, address: BrokerAddress) -> Connection | QuireError:
        """Connect to a broker.

        An error is returned, not raised, so that the task does not log it. Each waiting caller raises it.
        """
        try:
            tls = self._tls.context() if isinstance(self._tls, ClientTls) else self._tls
            connection = await connect(
                address.url, self._settings, self._authentication, tls, address.proxy_to
            )
        except QuireError as error:
            del self._connections[address]
            return error
        if connection.ended is not None:
            del self._connections[address]
            return connection.ended
        connection.on_end = lambda ended, reason: self._ended(address, ended, reason)
        return connection

    def _ended(self, address: BrokerAddress, connection: Connection, reason: QuireError) -> None:
        if self._is_closed:
            return
        del self._connections[address]
        attached = len(connection.members.producers) + len(connection.members.consumers)
        if attached:
            _log.warning("%s; reconnecting %d producers and consumers", reason, attached)

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for attempt in self._connections.values():
            if attempt.done() and isinstance(connection := attempt.result(), Connection):
                connection.close(Closed("the client is closed"))
            else:
                attempt.cancel()
