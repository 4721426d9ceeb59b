"""The REST interface of the cluster at the gateway's address.

A request goes to any broker. One that is for another broker is answered with a redirect, which the gateway follows,
for the client could not. Only registered brokers are followed to. Answers are streamed, so that reading blocks
for Spark takes no memory here. The console (`/console`) is a broker's, too; its files are for everybody.

`/metrics` joins all brokers' metrics, each with a label `broker`, to the gateway's own. What this process tells of
itself (`runtime/member`) is asked for with `?here=true`, by whom a broker takes for a superuser.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from ssl import SSLContext
from typing import Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from quire.gateway.brokers import Brokers
from quire.gateway.login import ORIGINAL_PRINCIPAL, Proxy
from quire.metadata.records import BrokerRecord
from quire.runtime import exposition, probes
from quire.runtime.errors import NotAuthenticated, NotAuthorized, QuireError, Unavailable
from quire.runtime.member import DOCTOR, SUPPORT, Member
from quire.runtime.metrics import MetricSource
from quire.runtime.network import peer_address
from quire.runtime.other_sites import REFUSAL, TOLD_BY, is_from_another_site
from quire.runtime.slices import Slices
from quire.runtime.tls import peer_certificate

log = logging.getLogger(__name__)

FORWARDED: Final = ("/admin/v2/", "/admin/v3/", "/lookup/", "/quire/v1/")
CONSOLE: Final = "/console{rest:(/.*)?}"
REQUEST_BYTES_MAX: Final = 1 << 20
CHUNK_BYTES: Final = 1 << 18
HOPS_MAX: Final = 8
ATTEMPTS_MAX: Final = 3
METRICS_S: Final = 5.0
WHO: Final = "/quire/v1/whoami"
WHO_S: Final = 5.0

_HOP_BY_HOP: Final = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailers transfer-encoding upgrade host "
    "content-length".split()
)


def make_app(
    brokers: Brokers, own_metrics: MetricSource, proxy: Proxy | None = None, member: Member | None = None
) -> web.Application:
    """The aiohttp application of one gateway, which is `member`."""
    application = web.Application(client_max_size=REQUEST_BYTES_MAX)
    member = member or Member("gateway", "")
    forwarding = Forwarding(brokers, proxy, {DOCTOR: member.doctor, SUPPORT: member.support})
    application.cleanup_ctx.append(forwarding.session)
    for prefix in FORWARDED:
        application.router.add_route("*", prefix + "{rest:.*}", forwarding.handle)
    application.router.add_get(CONSOLE, forwarding.show)
    metrics = Metrics(brokers, own_metrics, forwarding)

    def why_not_ready() -> list[str]:
        return [] if brokers.all() else ["no broker is registered"]

    application.add_routes(probes.routes_with(metrics.handle, why_not_ready))
    return application


class Forwarding:
    """Requests on their way to brokers."""

    def __init__(
        self, brokers: Brokers, proxy: Proxy | None, own: Mapping[str, Callable[[], Awaitable[object]]]
    ) -> None:
        """`own`: what is answered here, by paths, when it is asked for `here`."""
        self._brokers = brokers
        self._proxy = proxy
        self._own = own
        self.client: aiohttp.ClientSession | None = None

    async def session(self, _: web.Application) -> AsyncIterator[None]:
        """The connections to brokers, for as long as the application runs."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=3, sock_read=60)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as self.client:
            yield

    @property
    def tls(self) -> SSLContext | bool:
        return True if self._brokers.tls is None else self._brokers.tls.current()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Any request, whoever sends it; where clients log in here, it is asked first who that is."""
        if is_from_another_site(request.method, request.headers):
            return _refusal(403, REFUSAL)
        try:
            headers = await self._presented(request)
        except (NotAuthenticated, NotAuthorized) as error:
            return _refusal(401 if isinstance(error, NotAuthenticated) else 403, str(error))
        except QuireError as error:
            return _refusal(503, str(error))
        own = self._own.get(request.path)
        if own is not None and request.query.get("here") == "true":
            return await self._tell_own(headers, own)
        return await self._forward(request, headers)

    async def _tell_own(
        self, headers: CIMultiDict[str], own: Callable[[], Awaitable[object]]
    ) -> web.StreamResponse:
        """A broker says who asks: this process may not know, and knows no superusers."""
        assert self.client is not None
        try:
            url = f"{self._brokers.http_url_of(self._brokers.choose())}{WHO}"
            async with self.client.get(
                url, headers=headers, ssl=self.tls, timeout=aiohttp.ClientTimeout(WHO_S)
            ) as answer:
                said = await answer.json() if answer.status == 200 else {}
        except (QuireError, aiohttp.ClientError, TimeoutError, ValueError) as error:
            return _refusal(503, f"no broker says who you are: {str(error) or 'no answer'}")
        if not said.get("isSuperuser"):
            return _refusal(403, "only superusers may ask what a gateway tells of itself")
        return web.json_response({"members": [await own()], "silent": [], "unasked": []})

    async def show(self, request: web.Request) -> web.StreamResponse:
        """A file that everybody may have, so that who is to log in has a page to do so."""
        return await self._forward(request, _end_to_end(request.headers))

    async def _presented(self, request: web.Request) -> CIMultiDict[str]:
        headers, proxy, transport = _end_to_end(request.headers), self._proxy, request.transport
        if proxy is None:
            return headers
        certificate, address = peer_certificate(transport), peer_address(transport)
        presented = proxy.authentication.in_request(request.headers, certificate, address)
        identity = await proxy.log_in(presented, request.headers.get(ORIGINAL_PRINCIPAL, ""))
        return proxy.headers(headers, identity, presented.request)

    async def _forward(self, request: web.Request, headers: CIMultiDict[str]) -> web.StreamResponse:
        for told in TOLD_BY:
            headers.popall(told, None)  # it is about the name that this gateway was asked by
        body = await request.read()
        failed = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                broker = self._brokers.choose(but=failed)
                failed = self._brokers.address_of(broker)
                url = self._brokers.http_url_of(broker) + request.raw_path
                return await self._follow(request, url, headers, body)
            except (Unavailable, aiohttp.ClientConnectorError) as error:
                problem = str(error)  # nothing was sent, so another broker may be asked
            except (aiohttp.ClientError, TimeoutError) as error:
                if request.method not in ("GET", "HEAD"):
                    return _refusal(502, f"a broker broke off, and may have done it: {error}")
                problem = str(error) or "a broker does not answer"
        return _refusal(503, problem)

    async def _follow(
        self, request: web.Request, url: str, headers: CIMultiDict[str], body: bytes
    ) -> web.StreamResponse:
        assert self.client is not None
        for _ in range(HOPS_MAX):
            async with self.client.request(
                request.method, url, headers=headers, data=body or None, allow_redirects=False, ssl=self.tls
            ) as answer:
                location = answer.headers.get("Location", "")
                if answer.status not in (301, 302, 307, 308) or not location:
                    return await _stream(request, answer)
                if not self._brokers.knows_http(location):
                    return _refusal(502, f"{location}, which a broker redirects to, is no registered broker")
                url = location
        return _refusal(503, "brokers redirect to one another; the topic's owner is about to change")


async def _stream(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Pass the answer on as it comes. Once it has begun, an end before its end closes the client's connection."""
    response = web.StreamResponse(
        status=answer.status, reason=answer.reason, headers=_end_to_end(answer.headers)
    )
    if answer.content_length is not None and request.method != "HEAD":
        response.content_length = answer.content_length
    begun = False
    try:
        async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
            if not begun:
                await response.prepare(request)
                begun = True
            await response.write(chunk)
    except (aiohttp.ClientError, TimeoutError) as error:
        if not begun:
            raise
        log.warning("%s broke off: %s", request.path, error)
        if request.transport is not None:
            request.transport.abort()
        return response
    if not begun:
        await response.prepare(request)
    await response.write_eof()
    return response


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers without those that concern one connection only."""
    dropped = _HOP_BY_HOP | {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


def _refusal(status: int, reason: str) -> web.Response:
    return web.json_response({"reason": reason}, status=status)


class Metrics:
    """What Prometheus finds here: the whole cluster in one scrape."""

    def __init__(self, brokers: Brokers, own: MetricSource, forwarding: Forwarding) -> None:
        self._brokers = brokers
        self._slices = Slices()
        self._own = probes.Scrapes([own], slices=self._slices)
        self._forwarding = forwarding

    async def handle(self, request: web.Request) -> web.Response:
        """Brokers are shown the credentials of whoever asks: they tell names to some alone (`probes.Scrapes`)."""
        open_metrics = exposition.wants_open_metrics(request.headers.get("Accept", ""))
        kind = exposition.OPEN_METRICS if open_metrics else exposition.PROMETHEUS
        headers = {name: request.headers[name] for name in ("Authorization",) if name in request.headers}
        brokers = self._brokers.all()
        texts = await asyncio.gather(
            *(self._ask(broker, {**headers, "Accept": kind}) for broker in brokers),
        )
        joined = exposition.Joined()
        joined.add((await self._own.text(open_metrics=open_metrics)).splitlines())
        for broker, text in zip(brokers, texts, strict=True):
            label = f'broker="{broker.broker_id}"'
            async for lines in self._slices.parts(text.splitlines(), exposition.LINES_A_PIECE):
                joined.add(list(lines), label)
        body = joined.text(open_metrics=open_metrics).encode()
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _ask(self, broker: BrokerRecord, headers: Mapping[str, str]) -> str:
        """One broker's metrics; nothing when it does not answer, which is what its absence says."""
        assert self._forwarding.client is not None
        client, tls = self._forwarding.client, self._forwarding.tls
        try:
            async with asyncio.timeout(METRICS_S):
                url = self._brokers.http_url_of(broker) + "/metrics"
                async with client.get(url, headers=headers, ssl=tls) as answer:
                    return await answer.text() if answer.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError):
            return ""
