"""Which broker serves a topic, and the connections to all brokers.

There is one connection per broker and client, shared by whatever needs it. Lookups go to the service URL, which may
name several hosts (`pulsar://a:6650,b:6650`); the next is tried when one fails. A broker answers a lookup with the
owner's URL, with another broker to ask, or with "keep using the service URL" (a proxy).

When a connection ends, that is one incident and one line in the log, however many producers and consumers were
attached to it.
"""

from __future__ import annotations

import asyncio
import logging
from ssl import SSLContext
from typing import Final, NamedTuple

from quire.client.authentication import Authentication
from quire.client.connection import Connection, connect, host_and_port
from quire.client.errors import Closed, Refused
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
    """`url` to connect to; `proxy_to` is the broker behind it, when it is a proxy."""

    url: str
    proxy_to: str = ""


def service_urls(text: str) -> list[str]:
    """The URLs that one service URL with several hosts stands for. Raises `ConfigurationError`."""
    scheme, separator, hosts = text.partition("://")
    if not separator:
        raise ConfigurationError(f"{text!r} is not a service URL, such as pulsar://127.0.0.1:6650")
    urls = [f"{scheme}://{host.strip('/')}" for host in hosts.split(",")]
    for url in urls:
        host_and_port(url)
    return urls


class Lookup:
    """A client's connections, and where its topics are."""

    def __init__(
        self,
        service_url: str,
        settings: ClientSettings,
        authentication: Authentication,
        tls: ClientTls | SSLContext | None,
        tasks: Tasks,
    ) -> None:
        self._urls = service_urls(service_url)
        self._turn = 0
        self._settings = settings
        self._authentication = authentication
        self._tls = tls
        self._tasks = tasks
        self._connections: dict[BrokerAddress, asyncio.Task[Connection | QuireError]] = {}
        self._proxy = ""
        """The service URL, when lookups say that all connections go through it."""
        self._is_closed = False

    async def broker_of(self, topic: str) -> Connection:
        """A connection to the broker that serves the topic (a partition's or an unpartitioned topic's full name)."""
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
        """A connection to the broker at `url`, which another broker named; through the proxy, if there is one."""
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
        """Who speaks TLS is never sent on without it, for credentials would go with him."""
        if self._is_tls and not url.startswith(TLS_SCHEME):
            raise Unavailable(
                f"a broker sends on to {url or 'another one'}, which is without TLS; give it TLS, too"
            )
        return url

    async def connect(self) -> None:
        """Be connected to one of the service URL's hosts."""
        await self.service()

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """How many partitions the topic has; 0: it is not partitioned, or is not there and its use may `create` it."""
        connection = await self.service()
        answer = await connection.request(
            f"asking for the partitions of {topic}",
            lambda request_id: commands.ask_partitions(request_id, topic, create=create),
            pb.CommandPartitionedTopicMetadataResponse,
        )
        return answer.partitions

    async def topics(self, namespace: str) -> list[str]:
        """The full names of the topics in `tenant/namespace`, partitions singly."""
        connection = await self.service()
        answer = await connection.request(
            f"asking for the topics of {namespace}",
            lambda request_id: commands.ask_topics(request_id, namespace),
            pb.CommandGetTopicsOfNamespaceResponse,
        )
        return list(answer.topics)

    async def service(self) -> Connection:
        """A connection to any of the service URL's hosts."""
        url = self._urls[self._turn % len(self._urls)]
        try:
            return await self.connection(BrokerAddress(url))
        except QuireError:
            self._turn += 1
            raise

    async def connection(self, address: BrokerAddress) -> Connection:
        """The one connection to a broker, made if there is none. Whoever waits may be cancelled alone."""
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
        """A failure is a result here: it belongs to those who wait, not into the log."""
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
        attached = len(connection.producers) + len(connection.consumers)
        if attached:
            _log.warning("%s; %d producers and consumers connect again", reason, attached)

    def close(self) -> None:
        """End every connection."""
        self._is_closed = True
        for attempt in self._connections.values():
            if attempt.done() and isinstance(connection := attempt.result(), Connection):
                connection.close(Closed("the client is closed"))
            else:
                attempt.cancel()
