"""REST interface of the cluster at the gateway's address.

A request is sent to any broker. If it is for another broker, the first one answers with a redirect, which the gateway
follows, because the client might not reach that broker. Only redirects to registered brokers are followed. Responses
are streamed, so that reading blocks for Spark takes little memory. The console (`/console`) is also served by a broker;
its files are public.

The broker gets exactly the path that was matched here, in the client's encoding. A path with `.` or `..` segments,
which a URL library would resolve, is refused. With authentication, a client's `Authorization` and
`X-Original-Principal` never reach a broker. Requests for the console's files have neither header.

`/metrics` has the gateway's own metrics and those of all brokers, with the label `broker`. Superusers get the status of
the gateway process itself (`runtime/member`) with `?here=true`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from ssl import SSLContext
from typing import Final
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from quire.gateway.brokers import Brokers
from quire.gateway.login import ORIGINAL_PRINCIPAL, Proxy, without_credentials
from quire.metadata.records import BrokerRecord
from quire.runtime import exposition, probes
from quire.runtime.csrf import ORIGIN_HEADERS, REFUSAL, is_cross_site
from quire.runtime.errors import NotAuthenticated, NotAuthorized, QuireError, Unavailable
from quire.runtime.http_headers import RawHeaders
from quire.runtime.http_server import body_of, browser_to_console, note_login
from quire.runtime.member import DOCTOR, SUPPORT, Member
from quire.runtime.metrics import MetricSource
from quire.runtime.network import peer_address
from quire.runtime.slices import Slices
from quire.runtime.tls import peer_certificate
from quire.security.authentication import NONE

log = logging.getLogger(__name__)

FORWARDED: Final = ("/admin/v2/", "/admin/v3/", "/lookup/", "/quire/v1/")
CONSOLE: Final = "/console{rest:(/.*)?}"
CHALLENGE: Final = 'Bearer realm="quire", Basic realm="quire"'
"""Challenge in a 401 response, the same as a broker's."""
REQUEST_BYTES_MAX: Final = 1 << 20
CHUNK_BYTES: Final = 1 << 18
HOPS_MAX: Final = 8
ATTEMPTS_MAX: Final = 3
METRICS_S: Final = 5.0
WHO: Final = "/quire/v1/whoami"
WHO_S: Final = 5.0

_IS_ANONYMOUS: Final = web.RequestKey("is_anonymous", bool)
_HOP_BY_HOP: Final = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    "upgrade host content-length".split()
)


def make_app(
    brokers: Brokers, own_metrics: MetricSource, proxy: Proxy | None = None, member: Member | None = None
) -> web.Application:
    """Return the aiohttp application of the gateway process `member`."""
    application = web.Application(client_max_size=REQUEST_BYTES_MAX)
    member = member or Member("gateway", "")
    forwarding = Forwarding(brokers, proxy, {DOCTOR: member.doctor, SUPPORT: member.support})
    application.cleanup_ctx.append(forwarding.session)
    for prefix in FORWARDED:
        application.router.add_route("*", prefix + "{rest:.*}", forwarding.handle)
    application.router.add_get("/", browser_to_console)
    application.router.add_get(CONSOLE, forwarding.show)
    metrics = Metrics(brokers, own_metrics, forwarding)

    def why_not_ready() -> list[str]:
        return [] if brokers.all() else ["no broker is registered"]

    application.add_routes(probes.routes_with(metrics.handle, why_not_ready))
    return application


class Forwarding:
    """Forwards requests to brokers."""

    def __init__(
        self, brokers: Brokers, proxy: Proxy | None, own: Mapping[str, Callable[[], Awaitable[object]]]
    ) -> None:
        """Create it. `own` contains the handlers of requests about this process (`?here=true`), by path."""
        self._brokers = brokers
        self.proxy = proxy
        self._own = own
        self.client: aiohttp.ClientSession | None = None

    async def session(self, _: web.Application) -> AsyncIterator[None]:
        """Keep the HTTP session for brokers open while the application runs."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=3, sock_read=60)
        async with aiohttp.ClientSession(
            timeout=timeout,
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding",),  # the client may not support this library's encodings
        ) as self.client:
            yield

    @property
    def tls(self) -> SSLContext | bool:
        return True if self._brokers.tls is None else self._brokers.tls.current()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Authenticate the client if that is enabled, and answer its request."""
        if is_cross_site(request.method, request.headers, request.query):
            return _refusal(403, REFUSAL)
        try:
            headers = await self.presented(request)
        except (NotAuthenticated, NotAuthorized) as error:
            return _refusal(401 if isinstance(error, NotAuthenticated) else 403, str(error))
        except QuireError as error:
            return _refusal(503, str(error))
        own = self._own.get(request.path)
        if own is not None and request.query.get("here") == "true":
            return await self._tell_own(headers, own, 401 if _is_anonymous(request) else 403)
        try:
            body = await body_of(request)
        except QuireError as error:
            return _refusal(503, str(error))
        return await self._forward(request, headers, body)

    async def _tell_own(
        self, headers: CIMultiDict[str], own: Callable[[], Awaitable[object]], forbidden: int
    ) -> web.StreamResponse:
        """Return this process's status to a superuser; other clients get the HTTP status `forbidden`.

        A broker identifies the client, because this process may be unable to, and does not know the superusers.
        """
        assert self.client is not None
        try:
            url = f"{self._brokers.http_url_of(self._brokers.choose())}{WHO}"
            async with self.client.get(
                url, headers=headers, ssl=self.tls, timeout=aiohttp.ClientTimeout(WHO_S)
            ) as answer:
                said = await answer.json() if answer.status == 200 else {}
        except (QuireError, aiohttp.ClientError, TimeoutError, ValueError) as error:
            return _refusal(503, f"no broker could authenticate this client: {str(error) or 'no answer'}")
        if not said.get("isSuperuser"):
            return _refusal(forbidden, "only superusers may read a gateway's status")
        return web.json_response({"members": [await own()], "silent": [], "unasked": []})

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Serve a file of the console, without authentication; no body and no credentials are forwarded."""
        return await self._forward(request, without_credentials(_end_to_end(request.headers)), b"")

    async def presented(self, request: web.Request) -> CIMultiDict[str]:
        """Return the headers for the broker. Raises `NotAuthenticated`, `NotAuthorized` or `Unavailable`."""
        headers, proxy, transport = _end_to_end(request.headers), self.proxy, request.transport
        if proxy is None:
            return headers
        certificate, address = peer_certificate(transport), peer_address(transport)
        presented = proxy.authentication.in_request(request.headers, certificate, address)
        identity = await proxy.log_in(presented, request.headers.get(ORIGINAL_PRINCIPAL, ""))
        request[_IS_ANONYMOUS] = identity.method in NONE
        if not request[_IS_ANONYMOUS]:
            note_login(request)
        return proxy.headers(headers, identity, presented.request)

    async def _forward(
        self, request: web.Request, headers: CIMultiDict[str], body: bytes
    ) -> web.StreamResponse:
        target = _target(request)
        if not target:
            return _refusal(400, "the path must not contain a . or .. segment")
        for told in ORIGIN_HEADERS:
            headers.popall(told, None)  # it refers to the gateway's host name, not to the broker's
        failed = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                broker = self._brokers.choose(but=failed)
                failed = self._brokers.address_of(broker)
                url = self._brokers.http_url_of(broker) + target
                return await self._follow(request, url, headers, body)
            except (Unavailable, aiohttp.ClientConnectorError) as error:
                problem = str(error)  # nothing was sent, so another broker can be tried
            except (aiohttp.ClientError, TimeoutError) as error:
                if request.method not in ("GET", "HEAD"):
                    return _refusal(
                        502,
                        f"the broker's response was interrupted, and the request may have taken effect: {error}",
                    )
                problem = str(error) or "the broker did not answer"
        return _refusal(503, problem)

    async def _follow(
        self, request: web.Request, url: str, headers: CIMultiDict[str], body: bytes
    ) -> web.StreamResponse:
        assert self.client is not None
        for _ in range(HOPS_MAX):
            async with self.client.request(
                request.method,
                URL(url, encoded=True),
                headers=headers,
                data=body or None,
                allow_redirects=False,
                ssl=self.tls,
            ) as answer:
                location = answer.headers.get("Location", "")
                if answer.status not in (301, 302, 307, 308) or not location:
                    if answer.status < 400 and "Authorization" in request.headers:
                        note_login(request)
                    return await _stream(request, answer)
                if not self._brokers.knows_http(location):
                    return _refusal(
                        502, f"a broker redirected to {location}, which is not a registered broker"
                    )
                url = location
        return _refusal(
            503, "more than 8 redirects between brokers, because the topic's owner is changing; try again"
        )


async def _stream(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Forward the broker's response to the client as it arrives.

    If the broker's response breaks off after its first byte, the client's connection is aborted. To the broker, an
    anonymous client is authenticated by the gateway, so the broker refuses it with 403. The client gets 401 instead, as
    it would directly from a broker.
    """
    status, reason, headers = answer.status, answer.reason, _end_to_end(answer.headers)
    if status == 403 and _is_anonymous(request):
        status, reason = 401, None
        headers["WWW-Authenticate"] = CHALLENGE
    response = RawHeaders(status=status, reason=reason, headers=headers)
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
        log.warning("response of a broker interrupted: path %s: %s", request.path, error)
        if request.transport is not None:
            request.transport.abort()
        return response
    except ConnectionError:
        return response  # the client has closed the connection
    if not begun:
        await response.prepare(request)
    await response.write_eof()
    return response


def _is_anonymous(request: web.Request) -> bool:
    """Return whether the gateway has authenticated the client as the anonymous role."""
    return bool(request.get(_IS_ANONYMOUS))


def _target(request: web.Request) -> str:
    """Return path and query for the broker, in the client's encoding, or "" for a path with dot segments."""
    path, query = request.rel_url.raw_path, request.rel_url.raw_query_string
    if not {".", ".."}.isdisjoint(unquote(path).replace("\\", "/").split("/")) or not path.startswith("/"):
        return ""
    return f"{path}?{query}" if query else path


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers without hop-by-hop ones ([RFC 9110](https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1))."""
    named = (name for value in CIMultiDict(headers).getall("Connection", ()) for name in value.split(","))
    dropped = _HOP_BY_HOP | {name.strip().lower() for name in named}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


def _refusal(status: int, reason: str) -> web.Response:
    headers = {"WWW-Authenticate": CHALLENGE} if status == 401 else None
    return web.json_response({"reason": reason}, status=status, headers=headers)


class Metrics:
    """Metrics of the gateway and all brokers in one scrape."""

    def __init__(self, brokers: Brokers, own: MetricSource, forwarding: Forwarding) -> None:
        self._brokers = brokers
        self._slices = Slices()
        self._own = probes.Scrapes([own], slices=self._slices)
        self._forwarding = forwarding

    async def handle(self, request: web.Request) -> web.Response:
        """Return all metrics, with topic names if the client may see them (`probes.Scrapes`)."""
        open_metrics = exposition.wants_open_metrics(request.headers.get("Accept", ""))
        kind = exposition.OPEN_METRICS if open_metrics else exposition.PROMETHEUS
        path, headers = await self._question(request)
        headers["Accept"] = kind
        brokers = self._brokers.all()
        texts = await asyncio.gather(*(self._ask(broker, path, headers) for broker in brokers))
        joined = exposition.Joined()
        joined.add((await self._own.text(open_metrics=open_metrics)).splitlines())
        for broker, text in zip(brokers, texts, strict=True):
            label = f'broker="{broker.broker_id}"'
            async for lines in self._slices.parts(text.splitlines(), exposition.LINES_A_PIECE):
                joined.add(list(lines), label)
        body = joined.text(open_metrics=open_metrics).encode()
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _question(self, request: web.Request) -> tuple[str, CIMultiDict[str]]:
        """Return the path and headers of requests for brokers' metrics.

        If the client presents no credentials, the requests do not have the gateway's credentials either.
        """
        forwarding = self._forwarding
        shows = "Authorization" in request.headers or peer_certificate(request.transport)
        if forwarding.proxy is None or shows:
            try:
                headers = await forwarding.presented(request)
                sent = ("Authorization", ORIGINAL_PRINCIPAL) if forwarding.proxy else ("Authorization",)
                return probes.METRICS, CIMultiDict((one, headers[one]) for one in sent if one in headers)
            except QuireError:
                pass  # ask without credentials, for the public metrics
        return f"{probes.METRICS}?{probes.WITHOUT_NAMES}", CIMultiDict()

    async def _ask(self, broker: BrokerRecord, path: str, headers: Mapping[str, str]) -> str:
        """Return one broker's metrics, or "" if it does not answer."""
        assert self._forwarding.client is not None
        client, tls = self._forwarding.client, self._forwarding.tls
        try:
            async with asyncio.timeout(METRICS_S):
                url = self._brokers.http_url_of(broker) + path
                async with client.get(url, headers=headers, ssl=tls) as answer:
                    return await answer.text() if answer.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError):
            return ""
